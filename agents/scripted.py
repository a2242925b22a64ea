"""Scripted agents and policies: real ones that need no model. They serve as experts, baselines and test doubles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agents.dialects import from_openai
from forge_env.episode import Turn
from forge_env.errors import UserError
from forge_env.protocols import Conversation
from forge_env.registry import env_class, load
from forge_env.types import Action, Completion, Message, Sampling, ToolSpec

if TYPE_CHECKING:
    from agents.rendering import Renderer

Script = Callable[[list[Message]], Message]
"""Reads a whole conversation and returns the next assistant message."""


def scripted_agent(env: str, script: str = "expert", *, model: str = "") -> ScriptedAgent:
    """Return the agent that a name stands for.

    Args:
        env: the environment whose expert it may be.
        script: "expert" plays the environment's own solution, "null" answers with nothing, "module:function" is a
            function of the conversation.
        model: folder of a model; the turns then hold its tokens.

    Raises:
        UserError: when the environment has no expert, or there is no such function.
    """
    if script == "null":
        return ScriptedAgent(say_nothing, model=model)
    if script != "expert":
        return ScriptedAgent(load(script), model=model)
    expert = getattr(env_class(env), "expert", None)
    if expert is None:
        raise UserError(
            f"the environment {env} has no expert, which its demonstrations and the tiny model come from: "
            "give it a staticmethod expert(messages), or train a --model with --warmup.steps 0"
        )
    return ScriptedAgent(expert, model=model)


def say_nothing(messages: list[Message]) -> Message:
    """Answer with an empty text: the least that an agent can do, and no environment should reward it."""
    return {"role": "assistant", "content": ""}


class ScriptedAgent:
    """Answers with what a function says. With a model folder its turns hold tokens, and may enter SFT.

    The calls of a scripted message are OpenAI-shaped, `arguments` an object; ids are given where there are none.
    """

    def __init__(self, script: Script, *, model: str = "") -> None:
        self._script = script
        self._renderer = _renderer(model) if model else None

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        message = self._script(conversation.messages)
        calls = from_openai(message)
        action = Action(message=message, tool_calls=calls)
        if self._renderer is None:
            return Turn(kind="text", observation=conversation.observation, message=message, tool_calls=calls), action
        prompt, old, starts_row = self._renderer.next_prompt(conversation, tools)
        turn = Turn(
            kind="tokens",
            observation=conversation.observation,
            message=message,
            tool_calls=calls,
            prompt_ids=tuple(prompt[old:]),
            token_ids=tuple(self._renderer.write(message)),
            starts_row=starts_row,
        )
        return turn, action


def _renderer(model: str) -> Renderer:
    from agents.rendering import Renderer  # needs the tokenizer packages, which text agents do without

    return Renderer(model)


class ScriptedPolicy:
    """A policy whose tokens come from a function of the prompt; every logprob is 0, every version is `version`."""

    def __init__(self, script: Callable[[Sequence[int]], Sequence[int]], *, version: int = 0) -> None:
        self._script = script
        self.version = version

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session: str
    ) -> Completion:
        token_ids = tuple(self._script(prompt_ids))[: sampling.max_tokens]
        stopped = token_ids[-1] in sampling.stop_token_ids
        return Completion(
            prompt_ids=tuple(prompt_ids),
            token_ids=token_ids,
            logprobs=(0.0,) * len(token_ids),
            versions=((self.version, len(token_ids)),),
            finish_reason="stop" if stopped else "length",
        )
