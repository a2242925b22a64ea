"""The two seams where environments, agents and policies meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from forge_env.core.episode import Turn
from forge_env.core.types import Action, Completion, Message, Sampling, ToolSpec

ANSWER_SECONDS = 1800.0
"""An agent's answer is waited for so long, where the agent does not say otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTurn:
    """What an environment asks of the next turn, as info["next"] of `reset` or `step`. Without one, the conversation
    goes on.

    Example: ``NextTurn(context=1, max_tokens=64)`` starts a second conversation where there was only the first, 0.
    """

    context: int = 0
    """The conversation that goes on. A number that is new starts one: its observation is then all that the agent sees,
    and its turns begin a row of their own."""
    max_tokens: int | None = None
    """Sampled tokens at most, where that is less than the episode's limit."""
    stop: tuple[str, ...] = ()
    """Texts that end the turn; its tokens go up to the one that completes such a text."""
    prompt: str | tuple[int, ...] | None = None
    """The whole prompt, as text or tokens, for an agent that `completes`: no chat template is put around it, and the
    observation is left aside."""


@dataclass(slots=True)
class Conversation:
    """What an agent is shown: the turns so far and the messages that came since."""

    request_id: str
    """Unique per episode; a policy may route all turns of one to the same replica."""
    seed: int | None = None
    max_turn_tokens: int = 512
    max_tokens: int = 4096
    turns: list[Turn] = field(default_factory=list)
    observation: tuple[Message, ...] = ()
    asked: NextTurn | None = None
    """What the environment asks of the next turn, where it asks anything."""

    @property
    def messages(self) -> list[Message]:
        history = [m for turn in self.turns for m in (*turn.observation, turn.message)]
        return history + list(self.observation)


class ContextFull(Exception):
    """An agent's word that the next prompt leaves no room to answer: the episode is truncated, which is no fault."""


class Agent(Protocol):
    """Message level: reads a conversation and answers it.

    One that also takes a plain prompt, see `NextTurn.prompt`, has the attribute `completes`, which is True.

    No limit of an episode runs while an agent answers. One that ends by itself has the attribute `answer_seconds`,
    which is None; any other number of seconds there, ANSWER_SECONDS by default, is how long an answer is waited for.
    """

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        """Answer. The turn is the token-exact record, the action is what the environment is given.

        A plain method is run in a thread. Whatever else is raised is a fault of the episode, with file and line.

        Raises:
            ContextFull: when the prompt leaves no room to answer.
            InfraError: when the policy did not answer.
            UserError: for a mistake that is the same in every episode; it ends the run.
        """
        ...


class Policy(Protocol):
    """Token level: does not know what a message is, nor where generation runs.

    It may have `answer_seconds`, which is then the agent's, see `Agent`.
    """

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session: str
    ) -> Completion: ...
