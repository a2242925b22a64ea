"""Reads the bodies that agents send to take and to finish a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from contrib.common.http_server import RequestRefused
from contrib.external.requests import whole_number
from contrib.external.scoring import MAX_RESULT, Scorer
from contrib.external.served.visit import Work
from forge_env.core.errors import nearest
from forge_env.core.plain_value import json_problem, messages_problem
from forge_env.core.reward_value import is_within
from forge_env.core.types import EpisodeLimits, Message

WAIT_SECONDS = 30.0
MAX_WAIT_SECONDS = 60.0
MAX_ID = 200
_TASK_KEYS = ("prompt", "target", "metadata", "id", "task_id", "seed", "limits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What an agent asks for when it takes a session of a server without a run."""

    prompt: tuple[Message, ...] | None
    target: Any
    metadata: Mapping[str, Any]
    id: str
    task_id: str
    seed: int | None
    limits: EpisodeLimits

    @property
    def has_task(self) -> bool:
        """Whether the agent brings a task of its own."""
        return self.prompt is not None or self.target is not None or bool(self.metadata) or bool(self.id)


def read_wait(body: Mapping[str, Any]) -> float:
    """Return how many seconds an agent waits for the next session of a run."""
    _check_keys(body, ("wait_seconds",), "a run hands out its own tasks, with its own seeds and limits")
    return _wait(body)


def read_wish(body: Mapping[str, Any], limits: EpisodeLimits) -> Wish:
    """Return what an agent asks for.

    Args:
        body: of the request.
        limits: of the server, which an agent may only lower.
    """
    _check_keys(body, (*_TASK_KEYS, "wait_seconds"), "")
    _wait(body)
    prompt, metadata = body.get("prompt"), body.get("metadata") or {}
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if prompt is not None and (problem := messages_problem(prompt)):
        raise _refusal("prompt", f"prompt is neither a text nor a list of messages: {problem}")
    if not isinstance(metadata, dict):
        raise _refusal("metadata", f"metadata is a {type(metadata).__name__}; it is an object")
    for name in ("target", "metadata"):  # Python's parser takes NaN, which a record cannot hold
        if problem := json_problem(body.get(name)):
            raise _refusal(name, f"{name} {problem}")
    names = {name: body.get(name, "") for name in ("id", "task_id")}
    for name, value in names.items():
        if not isinstance(value, str) or len(value) > MAX_ID or not (value.isprintable() or not value):
            raise _refusal(name, f"{name} is {value!r:.80}; it is a text of at most {MAX_ID} printable characters")
    seed = whole_number(body.get("seed"))
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**31):
        raise _refusal("seed", f"seed is {seed!r:.80}; it is a whole number from 0 to 2147483647")
    return Wish(
        prompt=None if prompt is None else tuple(prompt),
        target=body.get("target"),
        metadata=metadata,
        seed=seed,
        limits=_lower(limits, body.get("limits") or {}),
        **names,
    )


def read_finish(body: Mapping[str, Any], scorer: Scorer) -> Work | str:
    """Return the work of an agent, or in its own words why there is none. Nothing is lost by a refusal."""
    _check_keys(body, ("answer", "reward", "error"), "")
    error, answer, reward = body.get("error"), body.get("answer"), body.get("reward")
    if error is not None:
        if not isinstance(error, str) or not error.strip() or answer is not None or reward is not None:
            raise _refusal("error", "error is a text, and stands alone: it says why there is no work to score")
        return " ".join(error.split())[:1000]
    if answer is not None and not isinstance(answer, str):
        raise _refusal("answer", f"answer is a {type(answer).__name__}; it is a text")
    if len(answer or "") > MAX_RESULT:
        raise RequestRefused(413, f"answer has {len(answer or '')} characters; it has at most {MAX_RESULT}")
    if scorer.name:
        if reward is not None:
            raise _refusal("reward", f"{scorer.name} scores the answer here: leave reward out")
        return Work(answer, None)
    low, high = scorer.reward_range
    if reward is None:
        raise _refusal(
            "reward",
            f'nothing says what the session is worth: send {{"reward": X}} with X from {low:g} to {high:g}, or '
            '{"error": "why"} where there is nothing to score',
        )
    if isinstance(reward, bool):
        reward = float(reward)
    if not isinstance(reward, (int, float)) or not is_within(reward, low, high):  # nan is not
        raise _refusal(
            "reward",
            f"reward is {reward!r:.40}; it is a number from {low:g} to {high:g}, which reward_range of the server "
            "sets: the session is still open, finish it with such a number",
        )
    return Work(answer, min(max(float(reward), low), high))


def _wait(body: Mapping[str, Any]) -> float:
    seconds = body.get("wait_seconds", WAIT_SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise _refusal(
            "wait_seconds", f"wait_seconds is {seconds!r:.40}; it is a number from 0 to {MAX_WAIT_SECONDS:g}"
        )
    return float(seconds)


def _lower(limits: EpisodeLimits, values: Any) -> EpisodeLimits:
    if not isinstance(values, dict):
        raise _refusal("limits", f'limits is a {type(values).__name__}; it is an object like {{"max_turns": 4}}')
    types = {field.name: type(getattr(limits, field.name)) for field in fields(EpisodeLimits)}
    for name, value in values.items():
        if name not in types:
            raise _refusal(f"limits.{name}", f"there is no limit {name!r:.80}. {nearest(name, types)}")
        most, value = getattr(limits, name), whole_number(value)
        is_number = not isinstance(value, bool) and isinstance(value, (int, types[name]))
        if not is_number or not 0 < value <= most:
            raise _refusal(
                f"limits.{name}", f"{name} is {value!r:.40}; it is above 0 and at most {most:g}, the server's limit"
            )
    return replace(limits, **{name: types[name](value) for name, value in values.items()})


def _check_keys(body: Mapping[str, Any], keys: tuple[str, ...], why: str) -> None:
    for name in body:
        if name not in keys:
            raise _refusal(name, f"{why or f'there is no {name!r:.80}'}: a body has {', '.join(keys)}")


def _refusal(param: str, message: str) -> RequestRefused:
    return RequestRefused(400, message, code="invalid_request", param=param)
