"""The spans of an Episode by the GenAI semantic conventions of OpenTelemetry, version 1.41.0.

    invoke_agent AGENT     the episode, with its reward and its outcome
      chat MODEL           each turn
      execute_tool NAME    each tool call

1.41.0 is the last release of these conventions in OpenTelemetry's own repository, and all of them are in development:
a later version may rename attributes, so the version is pinned, and sent as the schema URL. What they have no name for
is under `forge_env.`. Texts of messages, arguments and results are sent only when asked for, as the conventions demand.

An Episode holds durations, and in an evaluation the time of its start. So durations are as measured; a turn begins
where the one before it ended, and calls that ran at the same time begin with the environment's step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from contrib.common.json_text import portable
from forge_env.core.episode import Episode
from forge_env.core.turn import Turn
from forge_env.core.types import Message
from forge_env.registry.agent_spec import model_at

CONVENTIONS = "1.41.0"
SCHEMA_URL = f"https://opentelemetry.io/schemas/{CONVENTIONS}"
_FINISH = {"tool_calls": "tool_call"}
"""Finish reasons that have another name in the conventions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What acts in the episodes. Example: ``Source(agent="openai:m@http://host/v1", provider="openai", model="m")``"""

    agent: str
    provider: str
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span without its ids; the first one of an episode is the parent of the others."""

    name: str
    kind: Literal["internal", "client"]
    start: float
    """Seconds since 1970."""
    seconds: float
    attributes: dict[str, Any]
    error: str = ""
    """Why it failed; "" if it did not."""
    events: Sequence[tuple[str, dict[str, Any]]] = field(default=())


def source_of(config: Mapping[str, Any]) -> Source:
    """Return what acts in a training run, or in an evaluation, by its config."""
    if "agent" not in config:
        return Source(agent="policy", provider="vllm", model=config["model"]["path"] or "tiny model")
    agent = config["agent"]
    kind, _, rest = agent.partition(":")
    if kind == "openai":
        model = model_at(rest)
        return Source(agent=f"openai:{model}", provider="openai", model=model)
    provider = {"vllm": "vllm", "checkpoint": "vllm"}.get(kind, "forge_env")
    return Source(agent=agent, provider=provider, model=rest if provider == "vllm" else "")


def episode_spans(
    episode: Episode, source: Source, *, record_time: float, phase: str = "", messages: bool = False
) -> list[Span]:
    """Return the spans of an episode, its own first.

    Args:
        episode: the record of it.
        source: what acted.
        record_time: when it was recorded, seconds since 1970: its end, if the record does not say when it began.
        phase: of a training run.
        messages: whether to add the texts of messages, arguments and results.
    """
    work_seconds = sum(_seconds(turn.policy_seconds) + _seconds(turn.env_seconds) for turn in episode.turns)
    total = max(work_seconds, _seconds(episode.info.get("seconds")))
    began = episode.info.get("started")
    start = began if isinstance(began, float) and 0 < began <= record_time else record_time - total
    spans = [_episode(episode, source, start, total, phase)]
    at = start
    for number, turn in enumerate(episode.turns):
        spans.append(_turn(episode, number, turn, source, at, messages))
        at += _seconds(turn.policy_seconds)
        after = episode.turns[number + 1].observation if number + 1 < len(episode.turns) else episode.tail
        spans += _tools(episode, turn, at, after if messages else None)
        at += _seconds(turn.env_seconds)
    return spans


def _episode(episode: Episode, source: Source, start: float, seconds: float, phase: str) -> Span:
    counts = [_usage(episode, number) for number in range(len(episode.turns))]
    attributes = _common(episode, "invoke_agent", source) | {
        "gen_ai.agent.name": source.agent,
        "forge_env.env": episode.env,
        "forge_env.task.id": episode.task.id,
        "forge_env.task.kind": episode.task.kind,
        "forge_env.group.id": episode.group_id,
        "forge_env.seed": episode.seed,
        "forge_env.phase": phase,
        "forge_env.turns": len(episode.work),
        "forge_env.outcome": str(episode.outcome),
        "forge_env.ended_by": episode.ended_by,
        "forge_env.reward": episode.reward,
        "forge_env.success": episode.success,
        "gen_ai.usage.input_tokens": sum(each[0] for each in counts if each),
        "gen_ai.usage.output_tokens": sum(each[1] for each in counts if each),
    }
    error_type = "" if episode.outcome.is_valid else str(episode.outcome)
    scores = {"reward": episode.reward, **{f"reward/{name}": value for name, value in episode.rewards.items()}}
    return Span(
        name=portable(f"invoke_agent {source.agent}"),
        kind="internal",
        start=start,
        seconds=seconds,
        attributes=_attributes(attributes | ({"error.type": error_type} if error_type else {})),
        error=portable(episode.error or error_type) if error_type else "",
        events=[
            (
                "gen_ai.evaluation.result",
                _attributes({"gen_ai.evaluation.name": n, "gen_ai.evaluation.score.value": value}),
            )
            for n, value in scores.items()
            if value is not None
        ],
    )


def _turn(episode: Episode, number: int, turn: Turn, source: Source, start: float, messages: bool) -> Span:
    finish = _FINISH.get(turn.finish_reason, turn.finish_reason)
    attributes = _common(episode, "chat", source) | {
        "gen_ai.response.finish_reasons": [finish],
        "forge_env.turn": number,
        "forge_env.reward": turn.reward,
    }
    if counts := _usage(episode, number):
        attributes |= {"gen_ai.usage.input_tokens": counts[0], "gen_ai.usage.output_tokens": counts[1]}
    if versions := sorted({version for version, _ in turn.versions}):
        attributes["forge_env.weight_version"] = versions[-1]
    if messages:
        prompt = [_message(message) for message in turn.observation]
        answer = {**_message(turn.message), "finish_reason": finish}
        attributes |= {"gen_ai.input.messages": _json(prompt), "gen_ai.output.messages": _json([answer])}
    return Span(
        name=portable(f"chat {source.model}".strip()),
        kind="client",
        start=start,
        seconds=_seconds(turn.policy_seconds),
        attributes=_attributes(attributes),
    )


def _tools(episode: Episode, turn: Turn, start: float, after: Sequence[Message] | None) -> list[Span]:
    """The spans of a turn's calls; `after` has their results, if they are to be sent."""
    at_once = sum(_seconds(use.seconds) for use in turn.tool_uses) > _seconds(turn.env_seconds)
    calls = turn.tool_calls if len(turn.tool_calls) == len(turn.tool_uses) else ()
    results = {m["tool_call_id"]: m["content"] for m in after or () if m["role"] == "tool" and m.get("tool_call_id")}
    spans = []
    for number, use in enumerate(turn.tool_uses):
        name = use.name or "unknown"  # of a call that could not be read
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.conversation.id": episode.id,
        }
        if calls:
            call = calls[number]
            attributes["gen_ai.tool.call.id"] = call.id
            if after is not None:
                text = call.raw if call.arguments is None else _json(call.arguments)
                attributes["gen_ai.tool.call.arguments"] = text
                attributes["gen_ai.tool.call.result"] = results.get(call.id)
        if use.error:
            attributes["error.type"] = use.error
        seconds, span_name = _seconds(use.seconds), portable(f"execute_tool {name}")
        about = {"attributes": _attributes(attributes), "error": portable(use.error)}
        spans.append(Span(name=span_name, kind="internal", start=start, seconds=seconds, **about))
        start += 0.0 if at_once else seconds
    return spans


def _common(episode: Episode, operation: str, source: Source) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": source.provider,
        "gen_ai.request.model": source.model,
        "gen_ai.conversation.id": episode.id,
    }


def _usage(episode: Episode, number: int) -> tuple[int, int] | None:
    """Tokens that the model read and wrote in a turn; None if they were not counted."""
    turn = episode.turns[number]
    if turn.kind == "text":
        usage = turn.usage or {}
        if "prompt_tokens" not in usage or "completion_tokens" not in usage:
            return None
        return int(usage["prompt_tokens"]), int(usage["completion_tokens"])
    first = next(i for i in range(number, -1, -1) if episode.turns[i].starts_row)
    before = sum(len(t.prompt_ids) + len(t.token_ids) for t in episode.turns[first:number])
    return before + len(turn.prompt_ids), len(turn.token_ids)


def _message(message: Message) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if message["role"] == "tool":
        response = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": message["content"]}
        return {"role": "tool", "parts": [response]}
    if reasoning := message.get("reasoning_content"):
        parts.append({"type": "reasoning", "content": reasoning})
    if message["content"]:
        parts.append({"type": "text", "content": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call.get("function", {})
        head = {"id": call.get("id"), "name": function.get("name")}
        parts.append({"type": "tool_call", **head, "arguments": function.get("arguments")})
    return {"role": message["role"], "parts": parts}


def _json(value: Any) -> str:
    return json.dumps(portable(value), ensure_ascii=False)


def _attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes that a protocol of valid Unicode takes; those without a value are left out."""
    values = {name: portable(value) for name, value in attributes.items()}
    return {name: value for name, value in values.items() if value is not None and value != ""}


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) and value > 0 else 0.0
