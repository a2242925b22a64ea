"""Reads trajectories in ATIF, the Agent Trajectory Interchange Format, of all versions up to 1.8.

What `contrib.records.exports.atif` has written comes back as it was. Tokens come in where every answer has the ids of
its prompt and its own. A row begins where a prompt does not go on from the tokens before it. The weight version is 0
where the file names none. A step that was copied from an earlier trajectory is history that the model was shown: it
did not write it here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from contrib.records.exports.conversation import OURS
from contrib.records.imports.build import BadRecord, Log, Rows, bare_fields, check_ids, check_logprobs, kept_of, mapping
from contrib.records.imports.openai import text_of
from forge_env.core.types import Message

_VERSION = re.compile(r"ATIF-v1\.(\d+)")
NEWEST = 8
_TOKENS = ("prompt_token_ids", "completion_token_ids", "logprobs")
_OWN = ("role", "content", "reasoning_content", "tool_calls")
"""Keys of a message that have fields of their own in ATIF."""


def is_trajectory(record: Mapping[str, Any]) -> bool:
    return str(record.get("schema_version", "")).startswith("ATIF-")


def read_trajectory(record: Mapping[str, Any]) -> Log:
    version = record.get("schema_version")
    match = _VERSION.fullmatch(version) if isinstance(version, str) else None
    if match is None or int(match[1]) > NEWEST:
        raise BadRecord(f"its schema_version is {version!r}; forge_env reads ATIF-v1.0 to ATIF-v1.{NEWEST}")
    steps = record.get("steps")
    if not isinstance(steps, list) or not steps or not all(isinstance(step, Mapping) for step in steps):
        raise BadRecord("it has no list of steps")
    log = Log(source=str(version))
    if record.get("subagent_trajectories"):
        log.missing.add("trajectories of sub-agents")
    if record.get("continued_trajectory_ref"):
        log.missing.add("the trajectory that continues it")
    agent = mapping(record.get("agent"))
    log.model = agent["model_name"] if isinstance(agent.get("model_name"), str) else ""
    tools = agent.get("tool_definitions")
    log.tools = [dict(tool) for tool in tools if isinstance(tool, Mapping)] if isinstance(tools, list) else []
    rows = Rows()
    for number, step in enumerate(steps, 1):
        try:
            _read_step(log, step, rows)
        except BadRecord as error:
            raise BadRecord(f"step {number}: {error}") from None
    count = sum("tokens" in turn for turn in log.turns)
    if 0 < count < len(log.turns):
        log.missing.add("token ids, as some steps have none")
        log.unversioned = False
    left_out = "usage" if count == len(log.turns) else "tokens"
    log.turns = [{name: fact for name, fact in turn.items() if name != left_out} for turn in log.turns]
    log.about = _about(record)
    return log


def _about(record: Mapping[str, Any]) -> Mapping[str, Any]:
    if about := _ours(record):
        return about
    extra, totals = mapping(record.get("extra")), mapping(mapping(record.get("final_metrics")).get("extra"))
    rewards = [value for place in (extra, totals) if (value := place.get("reward")) is not None]
    name = record.get("trajectory_id") or record.get("session_id")
    return {**({"reward": rewards[0]} if rewards else {}), **({"id": name} if isinstance(name, str) else {})}


def _read_step(log: Log, step: Mapping[str, Any], rows: Rows) -> None:
    source, text, own = step.get("source"), text_of(step.get("message")), _ours(step)
    others = {key: value for key, value in mapping(own.get("message")).items() if key not in _OWN}
    if source not in ("system", "user", "agent"):
        raise BadRecord(f"its source is {source!r}, one of system, user, agent")
    if source == "agent":
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if isinstance(reasoning := step.get("reasoning_content"), str):
            message["reasoning_content"] = reasoning
        calls = step.get("tool_calls") or []
        if not isinstance(calls, list):
            raise BadRecord("its tool_calls are no list")
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        # No call of a model: the agent's program decided this step by itself.
        is_written = not step.get("is_copied_context") and step.get("llm_call_count") != 0
        message.update(others)
        log.messages.append((message, is_written))  # type: ignore[arg-type]
        if is_written:
            log.turns.append({**own, **_facts(log, mapping(step.get("metrics")), rows)})
    elif text or not step.get("observation"):
        prompt_message: dict[str, Any] = {"role": source, "content": text, **others}
        log.messages.append((prompt_message, False))  # type: ignore[arg-type]
    log.messages += [(message, False) for message in _results(log, step)]


def _results(log: Log, step: Mapping[str, Any]) -> Iterator[Message]:
    observation = step.get("observation")
    if observation is None:
        return
    results = mapping(observation).get("results")
    if not isinstance(results, list) or not all(isinstance(result, Mapping) for result in results):
        raise BadRecord("its observation has no list of results")
    for result in results:
        if result.get("subagent_trajectory_ref"):
            log.missing.add("trajectories of sub-agents")
        content, own = text_of(result.get("content")), _ours(result)
        call_id = own.get("tool_call_id", result.get("source_call_id"))
        if call_id is None and not own:  # an agent without tools of its own: what it is shown is a message of the user
            yield {"role": "user", "content": content}
            continue
        others = {key: value for key, value in own.items() if key not in (*_OWN, "tool_call_id")}
        yield {"role": "tool", "content": content, "tool_call_id": str(call_id or ""), **others}  # type: ignore[typeddict-item]


def _call(call: Any) -> dict[str, Any]:
    if not isinstance(call, Mapping) or not isinstance(call.get("function_name"), str):
        raise BadRecord("a tool call has no function_name")
    arguments = call.get("arguments", {})
    if not isinstance(arguments, Mapping):
        raise BadRecord(f"the arguments of the call of {call['function_name']} are no object")
    own = _ours(call)
    text = own.get("arguments", json.dumps(arguments))
    function = {"name": call["function_name"], "arguments": text if isinstance(text, str) else json.dumps(text)}
    return {"id": str(own.get("tool_call_id", call.get("tool_call_id", ""))), "type": "function", "function": function}


def _facts(log: Log, metrics: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
    """Return the usage of a step, and its tokens if it has the ids of its prompt and of its answer."""
    if metrics.get("cost_usd"):
        log.missing.add("costs")
    names = ("prompt_tokens", "completion_tokens")
    usage = {name: metrics[name] for name in names if isinstance(metrics.get(name), int)}
    prompt, tokens, logprobs = (metrics.get(name) or [] for name in _TOKENS)
    if not all(isinstance(values, list) for values in (prompt, tokens, logprobs)):
        raise BadRecord(f"its {', '.join(_TOKENS)} are not lists")
    if not (prompt and tokens):
        log.missing.update(name for name, values in (("token ids", tokens), ("logprobs", logprobs)) if values)
        return {"usage": usage}
    check_ids(prompt, tokens)
    own = _ours(metrics)
    place = rows.place(prompt, tokens, own.get("starts_row"))
    if not logprobs:  # as in an expert's answers
        fields = {"kind": "tokens", **({"tool_calls": kept_of(own)["tool_calls"]} if own else {})}
    else:
        check_logprobs(logprobs, tokens)
        log.unversioned |= not own
        fields = kept_of(own) if own else bare_fields(prompt, tokens)
        fields["logprobs"] = tuple(map(float, logprobs))
    return {"usage": usage, "tokens": {**fields, **place}}


def _ours(place: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(mapping(place.get("extra")).get(OURS))
