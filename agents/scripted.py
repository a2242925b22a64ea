"""Scripted agents: they need no model. They serve as experts, baselines and test doubles."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from agents.renderer.dialects import from_openai
from forge_env.core.errors import PolicyError, UserError
from forge_env.core.plain_value import own_copy
from forge_env.core.protocols import ANSWER_SECONDS, Agent, ContextFull, Conversation
from forge_env.core.tokens import IDS, array_of
from forge_env.core.turn import Turn
from forge_env.core.types import Action, Message, ToolSpec
from forge_env.registry.registry import env_class, load
from forge_env.utils.threads import call_alone

if TYPE_CHECKING:
    from agents.renderer.conversation_format import Thinking, ToolsForm
    from agents.renderer.rendering import Renderer
    from forge_env.registry.agent_spec import AgentSettings

Script = Callable[[list[Message]], Message] | Callable[[list[Message]], Awaitable[Message]]
"""Reads a whole conversation and returns the next assistant message, as a plain function or as a coroutine."""


def scripted_agent(env: str, script: str = "expert", **settings: Any) -> ScriptedAgent:
    """The scripted agent of a name.

    Args:
        script: "expert" plays the environment's solution, "null" answers with an empty text, "module:function" calls a
            function of the conversation.
        settings: of `ScriptedAgent`, such as `model`.

    Raises:
        UserError: the environment has no expert, or there is no such function.
    """
    if script == "null":
        return ScriptedAgent(say_nothing, **settings)
    if script != "expert":
        function = load(script)
        if not callable(function):
            raise UserError(f"{script!r} is {function!r}; a script is a function of the messages so far")
        return ScriptedAgent(function, name=script, **settings)
    expert = getattr(env_class(env), "expert", None)
    if expert is None:
        raise UserError(
            f"the environment {env} has no expert, which its demonstrations and the tiny model come from: "
            "give it a staticmethod expert(messages), or train a --model with --warmup.steps 0"
        )
    return ScriptedAgent(expert, name=f"expert of {env}", **settings)


async def say_nothing(messages: list[Message]) -> Message:
    """Answer with an empty text. No environment should reward it."""
    return {"role": "assistant", "content": ""}


_OBJECT = (dict, Mapping)  # dict first: asking an abstract class is slow
_ARGUMENTS = (str, *_OBJECT)
_CALL_FORM = "{'function': {'name': 'TOOL', 'arguments': {...}}}"


_to_json = json.JSONEncoder().encode


class ScriptedAgent:
    """Answers with the result of a function. With a model folder its turns hold tokens, so SFT can train on them.

    A plain function runs in a thread, so it may block. Functions of several episodes then run at once: guard shared
    data with a lock. A coroutine runs on the event loop and needs no thread.

    The calls of a scripted message are in OpenAI's form, with `arguments` as an object; missing ids are filled in.
    Arguments that are text stay unchanged, valid JSON or not, like a model's. If the environment asks for a form, see
    `NextTurn.constraint`, the function's answer is checked.

    Args:
        thinking: whether this model thinks, see `Renderer`. If so, the tokens of an answer begin with the message's
            reasoning_content, or with an empty thought.
        name: of the script, for messages; by default the function's.
    """

    constrains = True

    def __init__(
        self,
        script: Script,
        *,
        model: str = "",
        thinking: Thinking = "off",
        tools: ToolsForm = "auto",
        name: str = "",
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._script = script
        self._name = name or getattr(script, "__qualname__", type(script).__name__)
        self._renderer = _renderer(model, thinking, tools) if model else None
        self.answer_seconds = answer_seconds

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        """Ask the script for one turn.

        Raises:
            ContextFull: the prompt is to wait for a summary, see `EpisodeLimits.compact_at`.
            PolicyError: the script returns no assistant message, or a message of another form than the one asked for.
            BaseException: raised by the script.
        """
        tokens: dict[str, Any] = {"kind": "text"}
        if self._renderer is not None:
            row, new = self._renderer.next_prompt(conversation, tools)
            if conversation.is_long(len(row) + len(new)):
                raise ContextFull(f"the prompt has {len(row) + len(new)} tokens")
            tokens = {"kind": "tokens", "starts_row": not len(row), "prompt_ids": array_of(new, IDS)}
        message = _check(self._name, await call_alone(self._script, conversation.messages))
        calls = from_openai(message)
        action = Action(message=message, tool_calls=calls)
        constraint = conversation.constraint
        label = ""
        if constraint is not None:
            label = constraint.label
            constraint.check(action, f"the script {self._name}")
        if self._renderer is not None:
            tokens["token_ids"] = array_of(self._renderer.write(message, tools), IDS)
        turn = Turn(**tokens, observation=conversation.observation, message=message, tool_calls=calls, constraint=label)
        return turn, action


def _check(script: str, value: Any) -> Message:
    """A copy of the script's message, which may be a constant."""
    wrong = _wrong_with(value)
    try:
        if not wrong:
            return own_copy(cast(Message, value), _of_json)
    except (TypeError, ValueError, RecursionError) as error:
        wrong = f"JSON cannot hold it ({error})"
    raise PolicyError(
        f"the script {script} returned {value!r:.80}, and {wrong}; it must return an assistant message, such as "
        "{'role': 'assistant', 'content': '4'}"
    )


def _of_json(value: Any) -> Any:
    _to_json(value)  # an Episode is written to disk
    return own_copy(value)


def _wrong_with(value: Any) -> str:
    """Why a value is not an assistant message; "" if it is one."""
    if not isinstance(value, dict):
        return f"that is a {type(value).__name__} and no dict"
    if value.get("role") != "assistant":
        return f"its role is {value.get('role')!r:.40}"
    if not isinstance(value.get("content"), str):
        return f"its content is {value.get('content')!r:.40} and no text ('' beside calls)"
    calls = value.get("tool_calls") or ()
    if not isinstance(calls, (list, tuple)):
        return f"its tool_calls are a {type(calls).__name__} and no list"
    for call in calls:
        if wrong := _wrong_with_call(call):
            return wrong
    return ""


def _wrong_with_call(call: Any) -> str:
    function = call.get("function", call) if isinstance(call, _OBJECT) else None
    if not isinstance(function, _OBJECT) or not isinstance(function.get("name"), str):
        return f"a call in it is {call!r:.80} and not of the form {_CALL_FORM}"
    if not isinstance(function.get("arguments"), _ARGUMENTS):
        return f"the arguments of its call of {function['name']} are {function.get('arguments')!r:.40} and no dict"
    if not isinstance(call.get("id", ""), str):
        return f"the id of its call of {function['name']} is {call['id']!r:.40} and no text"
    return ""


def _renderer(model: str, thinking: Thinking, tools: ToolsForm) -> Renderer:
    from agents.renderer.rendering import Renderer  # needs the tokenizer packages; text agents do not

    return Renderer(model, thinking=thinking, tools=tools)


@asynccontextmanager
async def open_scripted(script: str | Script | Agent, settings: AgentSettings) -> AsyncIterator[Agent]:
    """Open scripted:expert, scripted:null or scripted:module:function, or a function; an Agent stays as it is."""
    of_models = ("temperature", "top_p", "deterministic", "thinking", "adapter", "idle_seconds")
    settings.refuse("a scripted agent", *of_models, "requests_per_minute", "api_key_env")
    seconds, name = ANSWER_SECONDS if settings.answer_seconds is None else settings.answer_seconds, ""
    if script == "expert":
        script, name = getattr(settings.env_class or env_class(settings.env), "expert", ""), f"expert of {settings.env}"
        if not script:
            raise UserError(
                f"the environment {settings.env} has no expert: take scripted:null, a function of yours as "
                "scripted:FILE.py:FUNCTION, or give the environment a staticmethod expert(messages)"
            )
    if isinstance(script, str):
        yield scripted_agent(settings.env, script, answer_seconds=seconds)
    elif not hasattr(script, "act"):
        yield ScriptedAgent(script, name=name, answer_seconds=seconds)
    elif settings.answer_seconds is None:
        yield script
    else:
        raise UserError(f"answer_seconds is {seconds:g}, and an Agent that is given has its own: leave it out")
