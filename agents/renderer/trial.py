"""A conversation of five turns that is played as a rollout would play it: the trial of a renderer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from agents.renderer.call_form import TRIAL_TOOLS, trial_calls
from forge_env.core.protocols import Conversation
from forge_env.core.tokens import IDS, array_of
from forge_env.core.turn import Turn
from forge_env.core.types import Message, ToolSpec

if TYPE_CHECKING:
    from agents.renderer.rendering import Renderer

_PROMPT: tuple[Message, ...] = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is é?"})


def trial(renderer: Renderer, prompt: Sequence[Message] = (), tools: Sequence[ToolSpec] | None = None) -> list[Turn]:
    """Play a conversation of calls, answers and questions, as a rollout would; returns its turns.

    Args:
        prompt: the first messages; if empty, the trial's own.
        tools: the first one is called; without tools there are answers only. None is a tool of the trial, if the
            template can be used with tools.
    """
    if tools is None:
        tools = trial_tools(renderer)
    first = tuple(prompt) or (_PROMPT if renderer.format.has_system else _PROMPT[1:])
    conversation = Conversation(request_id="trial", observation=first)
    for answer, following in _exchange(renderer, tools):
        row, new = renderer.next_prompt(conversation, tools)
        turn = Turn(
            kind="tokens",
            observation=conversation.observation,
            message=answer,
            prompt_ids=array_of(new, IDS),
            token_ids=array_of(renderer.write(answer, tools), IDS),
            starts_row=not len(row),
        )
        conversation.turns.append(turn)
        conversation.observation = tuple(following)
    return conversation.turns


def trial_tools(renderer: Renderer) -> Sequence[ToolSpec]:
    """The tools of a trial; none if the template cannot be used with tools."""
    return () if renderer.format.tools_problem else TRIAL_TOOLS


def prompts(turns: Sequence[Turn]) -> Iterator[tuple[list[Message], list[int]]]:
    """Yield the messages before each turn of an episode, and the tokens of the full prompt."""
    messages: list[Message] = []
    row: list[int] = []
    for turn in turns:
        messages += turn.observation
        row = [*([] if turn.starts_row else row), *turn.prompt_ids.tolist()]
        yield messages.copy(), row
        row = [*row, *turn.token_ids.tolist()]
        messages.append(turn.message)


def _exchange(renderer: Renderer, tools: Sequence[ToolSpec]) -> Iterator[tuple[Message, list[Message]]]:
    thought: Any = {"reasoning_content": "So."} if renderer.thinks else {}
    numbers = (1, 1) if renderer.format.answers.one_call else (1, 2)
    texts = ("", "" if renderer.format.drops == "calls" else "Again:")
    for count, text in zip(numbers if tools else (), texts, strict=False):
        calls: Any = trial_calls(count, renderer.format.answers.dialect)
        calls = [{**call, "function": {**call["function"], "name": tools[0]["function"]["name"]}} for call in calls]
        answer: Message = {"role": "assistant", "content": text, **thought, "tool_calls": calls}
        results = zip(("A letter.", "{}"), calls, strict=False)
        yield answer, [{"role": "tool", "content": result, "tool_call_id": call["id"]} for result, call in results]
    yield {"role": "assistant", "content": "A letter.", **thought}, [{"role": "user", "content": "Sure?\n"}]
    bare = thought if renderer.format.answers.opens_thought else {}
    yield {"role": "assistant", "content": "Yes.", **bare}, [{"role": "user", "content": "Good."}]
    yield {"role": "assistant", "content": "So it is.", **thought}, [{"role": "user", "content": "Bye."}]
