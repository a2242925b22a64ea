"""The messages of an Episode in OpenAI's exact shape, and its conversations one by one.

An Episode may hold calls without ids and arguments that are objects, as an expert wrote them, and several
conversations, as a program with sub-agents has. Other programs expect one conversation, ids, and arguments as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from contrib.common.json_text import portable
from forge_env.core.episode import Episode
from forge_env.core.turn import Turn
from forge_env.core.types import NOT_SAMPLED, Message

OURS = "forge_env"
"""Key of data for which another format has no field, under its `extra` or its `metadata`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A message of a conversation, and the turn that it is the answer of; None for messages of the environment."""

    message: dict[str, Any]
    turn: Turn | None = None


def conversations(episode: Episode) -> list[list[Said]]:
    """Return the conversations of an episode, almost always one; an episode without turns has its task's prompt.

    A further conversation begins where the lineage of the rows says so. Without a lineage, it begins where the
    environment shows a system message first, or an answer of the model: in the same conversation it shows only what is
    new, and the model knows its own answers.
    """
    if not episode.turns:
        conversation = _with_ids([(message, None) for message in episode.tail or episode.task.prompt])
        return [conversation] if conversation else []
    parts: list[list[Turn]] = []
    begins = {row.turn for row in episode.lineage if row.kind != "template"}
    for number, turn in enumerate(episode.turns):
        if not parts or (number in begins if begins else _begins_conversation(turn)):
            parts.append([])
        parts[-1].append(turn)
    result = []
    for place, turns in enumerate(parts):
        origins: list[tuple[Message, Turn | None]] = []
        for turn in turns:
            origins += [(message, None) for message in turn.observation]
            origins.append((turn.message, turn))
        if place == len(parts) - 1:
            origins += [(message, None) for message in episode.tail]
        result.append(_with_ids(origins))
    return result


def _begins_conversation(turn: Turn) -> bool:
    if not turn.observation or (turn.kind != "text" and not turn.starts_row):
        return False
    roles = [message["role"] for message in turn.observation]
    return roles[0] == "system" or "assistant" in roles


def _with_ids(origins: Sequence[tuple[Message, Turn | None]]) -> list[Said]:
    """Give arguments as text, and ids to calls without any: those that the agent gave them, which results name."""
    result: list[Said] = []
    waiting: list[str] = []
    """Ids of calls that nobody has given one; their results come in the order of the calls."""
    count = 0
    for message, turn in origins:
        copy: dict[str, Any] = dict(message)
        if calls := message.get("tool_calls"):
            copy["tool_calls"], waiting = [], []
            ids = [call.id for call in turn.tool_calls] if turn is not None else []
            for number, call in enumerate(calls):
                call_id = call.get("id") or (ids[number] if number < len(ids) else "")
                if not call_id:
                    call_id = f"forge_call_{count}"
                    count += 1
                    waiting.append(call_id)
                copy["tool_calls"].append(_call(call, call_id))
        elif message["role"] == "tool" and not message.get("tool_call_id") and waiting:
            copy["tool_call_id"] = waiting.pop(0)
        result.append(Said(message=copy, turn=turn))
    return result


def _call(call: Mapping[str, Any], call_id: str) -> dict[str, Any]:
    function = call.get("function", call)
    arguments = function.get("arguments", "")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": function.get("name", ""), "arguments": text}}


def json_text(value: Any) -> tuple[str, bool]:
    """Return a value as one line of JSON that every reader takes, and whether `portable` had to change it for that."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
        return text, False
    except ValueError:  # UnicodeEncodeError is one
        return json.dumps(portable(value), ensure_ascii=False, allow_nan=False), True


def outcome_of(episode: Episode) -> dict[str, Any]:
    """What an episode is and how it ended: all but its turns, its messages and its info."""
    task = episode.task
    return {
        "id": episode.id,
        "group_id": episode.group_id,
        "env": episode.env,
        "seed": episode.seed,
        "outcome": str(episode.outcome),
        "reward": episode.reward,
        "rewards": dict(episode.rewards),
        "success": episode.success,
        "error": episode.error,
        "ended_by": episode.ended_by,
        "task": {
            "id": task.id,
            "kind": task.kind,
            "prompt": list(task.prompt),
            "target": task.target,
            "metadata": dict(task.metadata),
        },
        **({"lineage": [asdict(row) for row in episode.lineage]} if episode.lineage else {}),
    }


def with_weight(part: Said) -> dict[str, Any]:
    """Return a message; an answer of the history, or one that no loss is over, has the weight 0."""
    turn = part.turn
    is_learned = turn is not None and not turn.auxiliary and (turn.kind != "sampled" or turn.num_written)
    is_read_only = part.message["role"] == "assistant" and not is_learned
    return {**part.message, "weight": 0} if is_read_only else part.message


def token_facts(turn: Turn) -> dict[str, Any]:
    """Return what other formats have no field for of the tokens of a turn; `imports.tokens` reads it again.

    `weight_versions` are the spans [weight version, number of tokens]; the version of inserted tokens is None.
    """
    facts: dict[str, Any] = {
        "weight_versions": [[None if version == NOT_SAMPLED else version, n] for version, n in turn.versions],
        "starts_row": turn.starts_row,
        "context_digest": turn.context_digest,
        "tool_calls": [asdict(call) for call in turn.tool_calls],
    }
    if turn.constraint or turn.constrained:
        facts |= {"constraint": turn.constraint, "constrained": turn.constrained}
    if turn.routes:
        facts["routes"] = [routes.text for routes in turn.routes]
    return facts


def is_auxiliary(parts: Sequence[Said]) -> bool:
    """Whether a conversation is not part of the work: all of its answers are auxiliary."""
    answers = [each.turn for each in parts if each.turn is not None]
    return bool(answers) and all(turn.auxiliary for turn in answers)


def last_answer(parts: Sequence[Said]) -> int:
    """Return how many messages there are up to the last answer and with it; 0 if there is none."""
    return max((i for i, each in enumerate(parts, 1) if each.message["role"] == "assistant"), default=0)


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
    for number, part in enumerate(parts):
        if is_auxiliary(part) or not (end := last_answer(part)):
            continue
        visible = part if scores else part[:end]
        messages = [_message(each, whole=scores) for each in visible]
        line: dict[str, Any] = {"messages": messages, **({"tools": list(tools)} if tools else {})}
        if scores:
            about = outcome_of(episode)
            if len(parts) > 1:
                first = next((each.turn for each in part if each.turn is not None), None)
                began = [row for row in about.pop("lineage", ()) if episode.turns[row["turn"]] is first]
                about |= {"id": f"{episode.id}#{number}", **({"row": began[0]} if began else {})}
            line["episode"] = about
        yield line


def sft_lines(episode: Episode, tools: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield a line for each conversation of an episode that has an answer, with its reward beside it; see above."""
    about = {**({"tools": list(tools)} if tools else {}), "id": episode.id, "reward": episode.reward}
    for part in conversations(episode):
        if not is_auxiliary(part) and (end := last_answer(part)):
            yield {"messages": [with_weight(each) for each in part[:end]], **about}


def has_thoughts(episode: Episode) -> bool:
    """Whether the model's thoughts are recorded, which OpenAI's format has no place for."""
    return any(turn.message.get("reasoning_content") for turn in episode.turns)


def _message(part: Said, *, whole: bool) -> dict[str, Any]:
    message = with_weight(part)
    if not whole:
        message = {key: value for key, value in message.items() if key in _TAKEN}
        if message["role"] == "tool":
            message.pop("name", None)
    return message
