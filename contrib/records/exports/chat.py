"""Episodes as lines of chat: for OpenAI's fine-tuning, and for `python -m trainers.sft`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from contrib.records.exports.conversation import (
    Said,
    conversations,
    is_auxiliary,
    last_answer,
    outcome_of,
    with_weight,
)
from forge_env.core.episode import Episode

_TAKEN = ("role", "content", "name", "tool_calls", "tool_call_id", "weight")
"""Keys of a message that OpenAI's fine-tuning takes; it refuses a file with others."""


def openai_lines(episode: Episode, tools: Sequence[Any], *, scores: bool) -> Iterator[dict[str, Any]]:
    """Yield a line for each conversation of an episode that has an answer.

    Without `scores` it is a line that OpenAI takes: it ends with an answer and holds nothing but messages and tools.
    With them it is the whole conversation with its thoughts, and `episode` says what it is and how it was scored.
    An answer that the environment showed, as the history of another conversation, has the weight 0. Auxiliary
    conversations are left out. If an episode has several conversations, `row` says which one this is.
    """
    parts = conversations(episode)
    for number, said in enumerate(parts):
        if is_auxiliary(said) or not (end := last_answer(said)):
            continue
        shown = said if scores else said[:end]
        messages = [_message(each, whole=scores) for each in shown]
        line: dict[str, Any] = {"messages": messages, **({"tools": list(tools)} if tools else {})}
        if scores:
            about = outcome_of(episode)
            if len(parts) > 1:
                first = next((each.turn for each in said if each.turn is not None), None)
                began = [row for row in about.pop("lineage", ()) if episode.turns[row["turn"]] is first]
                about |= {"id": f"{episode.id}#{number}", **({"row": began[0]} if began else {})}
            line["episode"] = about
        yield line


def sft_lines(episode: Episode, tools: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield a line for each conversation of an episode that has an answer, with its reward beside it; see above."""
    about = {**({"tools": list(tools)} if tools else {}), "id": episode.id, "reward": episode.reward}
    for said in conversations(episode):
        if not is_auxiliary(said) and (end := last_answer(said)):
            yield {"messages": [with_weight(each) for each in said[:end]], **about}


def has_thoughts(episode: Episode) -> bool:
    """Whether the model's thoughts are recorded, which OpenAI's format has no place for."""
    return any(turn.message.get("reasoning_content") for turn in episode.turns)


def _message(said: Said, *, whole: bool) -> dict[str, Any]:
    message = with_weight(said)
    if not whole:
        message = {key: value for key, value in message.items() if key in _TAKEN}
        if message["role"] == "tool":
            message.pop("name", None)
    return message
