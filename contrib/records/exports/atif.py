"""Episodes as trajectories in ATIF, the Agent Trajectory Interchange Format, as Harbor publishes it.

A message of the system or the user is a step, and so is an answer of the model with its calls; the results that follow
it are its observation. What ATIF has no field for is under `extra.forge_env` of the trajectory and of its steps.
Source: RFC 0001 of Harbor, and the pydantic models in harbor 0.25.0, `harbor.models.trajectories`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from contrib.records.exports.conversation import OURS, Said, conversations, outcome_of, token_facts
from contrib.records.exports.select import Selected
from forge_env.core.turn import Turn

SCHEMA = "ATIF-v1.8"


def trajectory(
    selected: Selected, *, agent: str, model: str | None, tools: Sequence[Any], tokens: bool
) -> dict[str, Any] | None:
    """Return an episode as an ATIF trajectory; None if it has no message at all. The tools are in OpenAI's shape.

    Token ids are written if `tokens` says so. The prompt of each turn is whole, so they grow with the square of the
    number of turns.
    """
    episode = selected.episode
    steps: list[dict[str, Any]] = []
    context: list[int] = []
    """The tokens of the row so far."""
    for part in conversations(episode):
        for each in part:
            if each.turn is not None and each.turn.starts_row:
                context = []
            _add(steps, each, context, tokens)
    if not steps:
        return None
    for number, step in enumerate(steps, 1):
        step["step_id"] = number
    _make_unique(steps)
    all_metrics = [step["metrics"] for step in steps if "metrics" in step]
    totals = {
        f"total_{name}": sum(metrics[name] for metrics in all_metrics)
        for name in ("prompt_tokens", "completion_tokens")
        if all_metrics and all(name in metrics for metrics in all_metrics)
    }
    return {
        "schema_version": SCHEMA,
        "session_id": episode.id or None,
        "trajectory_id": episode.id or None,
        "agent": {
            "name": agent,
            "version": _version(),
            **({"model_name": model} if model else {}),
            **({"tool_definitions": list(tools)} if tools else {}),
        },
        "steps": [{"step_id": step.pop("step_id"), **step} for step in steps],
        "final_metrics": {**totals, "total_steps": len(steps)},
        "extra": {OURS: {**outcome_of(episode), "phase": selected.phase, "step": selected.step}},
    }


def _make_unique(steps: Sequence[dict[str, Any]]) -> None:
    """Give calls ids that no earlier step has: ATIF needs them within a step, and its readers look through all steps.

    The id of the record is under `extra`.
    """
    earlier: set[str] = set()
    for step in steps:
        calls, results = step.get("tool_calls", ()), step.get("observation", {}).get("results", ())
        for entry, key in (*((c, "tool_call_id") for c in calls), *((r, "source_call_id") for r in results)):
            if (call_id := entry.get(key)) in earlier:
                entry[key] = f"{call_id}_{step['step_id']}"
                entry.setdefault("extra", {}).setdefault(OURS, {})["tool_call_id"] = call_id
        earlier |= {call["tool_call_id"] for call in calls}


def _add(steps: list[dict[str, Any]], part: Said, context: list[int], tokens: bool) -> None:
    message = part.message
    match message["role"]:
        case "assistant":
            steps.append(_answer(message, part.turn, context, tokens))
        case "tool":
            _add_result(steps, message)
        case role:
            extra = {key: value for key, value in message.items() if key not in ("role", "content")}
            steps.append({"source": role, "message": message["content"], **_extra({"message": extra} if extra else {})})


def _add_result(steps: list[dict[str, Any]], message: Mapping[str, Any]) -> None:
    step: dict[str, Any] = steps[-1] if steps else {"source": ""}
    has_only_results = step["source"] == "system" and not step["message"] and "observation" in step
    if step["source"] != "agent" and not has_only_results:  # results that no call asked for
        step = {"source": "system", "message": ""}
        steps.append(step)
    result: dict[str, Any] = {"content": message["content"]}
    extra = {key: value for key, value in message.items() if key not in ("role", "content", "tool_call_id")}
    if (call_id := message.get("tool_call_id")) in {call["tool_call_id"] for call in step.get("tool_calls", ())}:
        result = {"source_call_id": call_id, **result}
    elif call_id is not None:
        extra["tool_call_id"] = call_id
    step.setdefault("observation", {"results": []})["results"].append({**result, **_extra(extra)})


def _answer(message: Mapping[str, Any], turn: Turn | None, context: list[int], tokens: bool) -> dict[str, Any]:
    step: dict[str, Any] = {"source": "agent", "message": message["content"]}
    if isinstance(reasoning := message.get("reasoning_content"), str):
        step["reasoning_content"] = reasoning
    if calls := message.get("tool_calls"):
        step["tool_calls"] = [_call(call) for call in calls]
    own_keys = ("role", "content", "reasoning_content", "tool_calls")
    extra = {key: value for key, value in message.items() if key not in own_keys}
    facts: dict[str, Any] = {"message": extra} if extra else {}
    if turn is None:
        return {**step, "is_copied_context": True, **_extra(facts)}
    facts |= {"reward": turn.reward, "finish_reason": turn.finish_reason}
    facts |= {"policy_seconds": turn.policy_seconds, "env_seconds": turn.env_seconds}
    facts |= {name: value for name in ("auxiliary", "is_summary") if (value := getattr(turn, name))}
    if turn.tool_uses:
        facts["tool_uses"] = [{"name": use.name, "seconds": use.seconds, "error": use.error} for use in turn.tool_uses]
    step["llm_call_count"] = 1
    if metrics := _metrics(turn, context, tokens):
        step["metrics"] = metrics
    return {**step, **_extra(facts)}


def _metrics(turn: Turn, context: list[int], tokens: bool) -> dict[str, Any]:
    if turn.kind == "text":
        counts = {name: turn.usage.get(name) for name in ("prompt_tokens", "completion_tokens")} if turn.usage else {}
        return {name: int(count) for name, count in counts.items() if count is not None}
    context += turn.prompt_ids.tolist()
    metrics: dict[str, Any] = {"prompt_tokens": len(context), "completion_tokens": len(turn.token_ids)}
    if tokens:
        metrics |= {"prompt_token_ids": list(context), "completion_token_ids": turn.token_ids.tolist()}
        if turn.kind == "sampled":
            metrics["logprobs"] = turn.logprobs.tolist()
        metrics |= _extra(token_facts(turn))
    context += turn.token_ids.tolist()
    return metrics


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    text = function["arguments"]
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        arguments = None
    is_object = isinstance(arguments, dict)
    is_same = is_object and json.dumps(arguments) == text
    return {
        "tool_call_id": call["id"],
        "function_name": function["name"],
        "arguments": arguments if is_object else {},
        **_extra({} if is_same else {"arguments": text}),
    }


def _extra(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {"extra": {OURS: dict(facts)}} if facts else {}


@functools.cache
def _version() -> str:
    try:
        return version("forge-env")
    except PackageNotFoundError:
        return "0"
