"""The interfaces between environments, agents and policies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from forge_env.core.episode import Turn
from forge_env.core.plain_value import own_copy
from forge_env.core.turn import Completion
from forge_env.core.types import Action, Message, Sampling, ToolSpec

ANSWER_SECONDS = 1800.0
"""Default time limit of an agent's answer."""


class RowBegan(NamedTuple):
    """Why a conversation begins, and a row of the Episode with it, though there were others before."""

    kind: str
    """A word for counting, such as "edited_message"."""
    why: str
    """What differs from an earlier conversation, in a few words that let a user mend his agent."""
    parent: int | None = None
    """Number of the conversation that it branches from, if any."""
    turns: int = 0
    """How many answers of that conversation come before the branch."""
    known_by: str = ""
    """What the parent is known by, see `Lineage`."""
    agent: str = ""
    """The client's own name for the agent, see `Lineage`."""


class AnswerForm(Protocol):
    """The form of an answer that an environment asks for. It knows how each kind of agent holds an answer to it."""

    @property
    def label(self) -> str:
        """What a turn records of it: a word and a digest."""

    @property
    def record(self) -> Mapping[str, Any]:
        """The whole of it, for the info of an Episode."""

    def request(self, tools: Sequence[ToolSpec]) -> tuple[Sequence[ToolSpec], Mapping[str, Any]]:
        """Return the tools that an endpoint gets, and the fields of a request that ask it for the form."""

    async def sample(
        self,
        ask: Callable[[np.ndarray, Sampling, int], Awaitable[Completion]],
        prompt: np.ndarray,
        sampling: Sampling,
        *,
        renderer: Any,
        tools: Sequence[ToolSpec],
        budget: int,
        thinks: bool,
    ) -> tuple[Completion, list[np.ndarray]]:
        """Sample a turn with `ask`, and set `Sampling.grammar`; returns also the prompts as the engine reports them.

        Args:
            ask: samples one request; the number is its place in the turn, 0 or 1.
            sampling: `max_tokens` is the limit of the full turn.
            budget: tokens of a thought; 0 means no limit.

        Raises:
            TurnRefused: the model or the policy cannot give an answer of this form.
        """

    def check(self, action: Action, writer: str) -> None:
        """Check the answer of an agent that has no grammars.

        Raises:
            PolicyError: the answer has another form; `writer` names who has given it.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTurn:
    """Requirements of the next turn, which an environment returns as info["next"] of `reset` or `step`.

    Without it, the current conversation continues.

    Example: ``NextTurn(context=1, max_tokens=64)`` starts a second conversation where there was only the first, 0.
    """

    context: int = 0
    """Number of the conversation to continue. A new number starts a new conversation: the agent sees only its
    observation, and its turns start a new row."""
    max_tokens: int | None = None
    """Maximum number of sampled tokens, if it is less than the episode's limit."""
    stop: tuple[str, ...] = ()
    """Texts that end the turn; its last token is the one that completes such a text."""
    prompt: str | tuple[int, ...] | None = None
    """The whole prompt, as text or token ids, for an agent that `completes`: it replaces the observation and is used
    without a chat template."""
    constraint: AnswerForm | None = None
    """The form that the answer must have, for an agent that `constrains`."""
    began: RowBegan | None = None
    """Why a new conversation begins, for the record."""
    auxiliary: str = ""
    """Why the turn is not part of the work, see `Turn`; "" for a part of it. A conversation is auxiliary as a whole, or
    not at all. In an environment with turns at once, auxiliary turns do not count for `max_turns`."""


@dataclass(slots=True)
class Conversation:
    """What an agent sees: the turns so far and the messages since the last one."""

    request_id: str
    """Unique for each conversation of an episode; a policy may send all its turns to the same replica."""
    seed: int | None = None
    max_turn_tokens: int = 512
    max_tokens: int = 4096
    max_thinking_tokens: int = 0
    compact_at: float = 0.0
    """See `EpisodeLimits`."""
    turns: list[Turn] = field(default_factory=list)
    observation: tuple[Message, ...] = ()
    next_turn: NextTurn | None = None
    """Requirements of the next turn, if the environment has any."""
    auxiliary: str = ""
    """Why it is not part of the work, see `Turn`; "" for a part of it."""
    endpoint_is_full: bool = False
    """Whether the agent's endpoint has refused it as too long for the endpoint's own context."""
    is_summarised: bool = False
    """Whether the next turn is a summary of it."""
    head: tuple[Message, ...] = ()
    """The messages that it keeps when a summary replaces its turns; () for the observation of its first turn."""
    shorter: tuple[Message, ...] = ()
    """The observation of a conversation that begins with a summary, without the last exchange before it."""
    _copies: list[Message] = field(default_factory=list, repr=False)
    """What `messages` returned last."""

    @property
    def constraint(self) -> AnswerForm | None:
        """The form that the next answer must have, if any."""
        return None if self.next_turn is None else self.next_turn.constraint

    @property
    def messages(self) -> list[Message]:
        """All messages so far: copies, so that an agent that edits them edits no record."""
        history: list[Message] = []
        for turn in self.turns:
            history += turn.observation
            history.append(turn.message)
        history += self.observation
        copies = self._copies
        if copies != history[: len(copies)]:  # edited by the agent; to compare takes a tenth of a copy
            copies = []
        self._copies = [*copies, *own_copy(history[len(copies) :])]
        return [*self._copies]

    def is_long(self, tokens: int) -> bool:
        """Whether a prompt of so many tokens is to wait for a summary: an agent then raises ContextFull."""
        if (
            self.is_summarised
            or not (self.turns or self.shorter)
            or (self.next_turn and self.next_turn.prompt is not None)
        ):
            return False
        return 0 < self.compact_at * self.max_tokens < tokens


class ContextFull(Exception):
    """Raised by an agent when the next prompt leaves no room to answer: the episode is truncated, not a fault."""


class EndpointFull(ContextFull):
    """The context of the agent's endpoint is full, whatever `max_tokens` allows."""


class Agent(Protocol):
    """Works on messages: reads a conversation and answers it.

    An agent that also accepts a plain prompt, see `NextTurn.prompt`, has the attribute `completes = True`; and one that
    holds its answers to a form, see `NextTurn.constraint`, `constrains = True`. Any other agent is not asked for such a
    turn: the environment is told that it is refused.

    The time limits of an episode do not run while an agent answers. The attribute `answer_seconds`, by default
    ANSWER_SECONDS, limits an answer; None means that the agent limits its answers itself.
    """

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        """Return the turn, which is the token-exact record, and the action for the environment.

        A plain method runs in a thread. Any other exception than those below is a fault of the episode.

        Raises:
            ContextFull: when the prompt leaves no room to answer.
            TurnRefused: when it cannot do what `NextTurn` asks.
            InfraError: when the policy did not answer.
            UserError: for a mistake that affects every episode; it ends the run.
        """
        ...


class Policy(Protocol):
    """Works on tokens: knows neither messages nor where generation runs.

    Its attribute `answer_seconds`, if there is one, is used as the agent's, see `Agent`.
    """

    async def generate(
        self, prompt_ids: np.ndarray, sampling: Sampling, *, request_id: str, session: str
    ) -> Completion:
        """Sample a completion of a prompt, an int32 array that cannot be written to; `tolist` makes a list of it."""
        ...
