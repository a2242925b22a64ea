"""The protocol between an environment's server and its clients: JSON over HTTP, one POST for each call.

    GET  /forge-env                  what is served: `About`
    POST /forge-env/tasks            {"split", "count", "seed"} -> the tasks
    POST /forge-env/expert           {"messages"} -> the expert's next message
    POST /forge-env/cheats           {"task"} -> answers that must not score
    POST /forge-env/sessions/ID      {"number", "call", ...} -> the result of a call of one instance of the environment

The client makes up the ID of a session. Its calls are numbered from 1, which is a `reset`. A number that comes again
gets the answer of the first time, so a request may be repeated and no step is taken twice. Each request and each
response has the header x-forge-env-protocol with the version, and the body of a response is an `Answer`. While a call
runs, the response sends a space every few seconds, so that silence means a lost connection.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forge_env.core import errors
from forge_env.core.errors import EnvError, ForgeError, InfraError, UserError
from forge_env.core.protocols import NextTurn, RowBegan
from forge_env.core.types import Action, Task, ToolCall, ToolUse
from forge_env.rollout.env_calls import StepResult

PROTOCOL = 2
"""Raised with every change that a client or a server of another version would misread."""
HEADER = "x-forge-env-protocol"
PATH = "/forge-env"
BEAT_SECONDS = 5.0
"""Pause between two signs of life of a call that runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a server serves: the facts that the class of an environment declares."""

    name: str
    id: str
    """A digest of everything else. A session is refused where another id is served."""
    tools: list[dict[str, Any]]
    truncation_reward: float
    time_spent_by: str
    limits: dict[str, float]
    effects: str
    digests: dict[str, str]
    """Of its code and of the files that its options name, by name."""
    has_expert: bool
    has_cheats: bool
    has_success: bool
    """Whether it decides itself what a success is."""
    has_on_limit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The outcome of one call: a result, or a fault, or that its time was used up."""

    result: Any = None
    seconds: float = 0.0
    """What the call took of the time of the episode."""
    timed_out: bool = False
    fault: Mapping[str, str] | None = None
    """Of `fault_data`."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of the instance that have changed: "tools", "truncation_reward", "time_spent_by"."""
    model_calls: Mapping[str, Any] = field(default_factory=dict)
    """What models beside the policy have used in the episode so far, if the call changed it."""

    def dump(self) -> bytes:
        values = {name: value for name in self.__slots__ if (value := getattr(self, name))}
        if self.result is not None:
            values["result"] = self.result  # also an empty one
        return json.dumps(values, separators=(",", ":")).encode()  # ASCII: a text may hold lone surrogates

    @classmethod
    def load(cls, data: bytes) -> Answer:
        values = json.loads(data)
        if not isinstance(values, dict) or not values.keys() <= set(cls.__slots__):
            raise ValueError("it is no answer")
        return cls(**values)


def fault_data(error: ForgeError) -> dict[str, str]:
    """Return an exception as data, see `fault_error`."""
    kinds = {UserError: "user", EnvError: "env", InfraError: "infra"}
    kind = next((name for cls, name in kinds.items() if isinstance(error, cls)), "infra")
    if isinstance(error, InfraError):  # also a SandboxUnavailable, which is a UserError too
        data = {"kind": kind, "type": type(error).__name__, "text": str(error.args[0]) if error.args else ""}
        return data | ({"tool": error.tool} if error.tool else {})
    where = error.where if isinstance(error, EnvError) else ""
    return {"kind": kind, "type": type(error).__name__, "text": str(error)} | ({"where": where} if where else {})


def fault_error(data: Mapping[str, str]) -> ForgeError:
    """Return the exception that a server has reported: of the same name, so that the Episode reads the same."""
    kind, name, text = data["kind"], data["type"], data["text"]
    base: type[ForgeError] = {"user": UserError, "env": EnvError}.get(kind, InfraError)
    error_class = getattr(errors, name, None)
    error = (
        error_class if isinstance(error_class, type) and issubclass(error_class, base) else type(name, (base,), {})
    )(text)
    if isinstance(error, EnvError):
        error.where = data.get("where", "")
    if isinstance(error, InfraError):
        error.tool = data.get("tool", "")
    return error


def task_data(task: Task) -> dict[str, Any]:
    return {f.name: getattr(task, f.name) for f in dataclasses.fields(task)}


def task_from(data: Mapping[str, Any]) -> Task:
    return Task(**{**data, "prompt": tuple(data["prompt"])})


def action_data(action: Action) -> dict[str, Any]:
    calls = [{f: getattr(call, f) for f in ToolCall.__slots__} for call in action.tool_calls]  # type: ignore[attr-defined]
    data = {"message": action.message, "tool_calls": calls, "finish_reason": action.finish_reason}
    return data if action.usage is None else data | {"usage": dict(action.usage)}


def action_from(data: Mapping[str, Any]) -> Action:
    return Action(**{**data, "tool_calls": tuple(ToolCall(**call) for call in data["tool_calls"])})


def step_data(step: StepResult) -> dict[str, Any]:
    data: dict[str, Any] = {"messages": step.observation, "reward": step.reward}
    info = dict(step.info)
    if step.rewards:
        info["rewards"] = dict(step.rewards)
    if step.tool_uses:
        info["tools"] = [{f: getattr(use, f) for f in ToolUse.__slots__} for use in step.tool_uses]  # type: ignore[attr-defined]
    if step.outcome is not None:
        info["outcome"] = str(step.outcome)
    data |= {"info": _with_next(info, step.next_turn)}
    return data | {n: True for n in ("terminated", "truncated") if getattr(step, n)}


def step_from(data: Mapping[str, Any]) -> tuple[list[Any], float, bool, bool, dict[str, Any]]:
    info = _info_from(data["info"])
    if "tools" in info:
        info["tools"] = [ToolUse(**use) for use in info["tools"]]
    return data["messages"], data["reward"], data.get("terminated", False), data.get("truncated", False), info


def reset_data(messages: Any, info: Mapping[str, Any], next_turn: NextTurn | None) -> dict[str, Any]:
    return {"messages": messages, "info": _with_next(dict(info), next_turn)}


def reset_from(data: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    return data["messages"], _info_from(data["info"])


def _with_next(info: dict[str, Any], next_turn: NextTurn | None) -> dict[str, Any]:
    if next_turn is None:
        return info
    names = {f.name for f in dataclasses.fields(NextTurn)}  # a subclass asks for more, which is not to be had from here
    return info | {"next": {name: value for name, value in dataclasses.asdict(next_turn).items() if name in names}}


def _info_from(info: Mapping[str, Any]) -> dict[str, Any]:
    if "next" not in info:
        return dict(info)
    data = dict(info["next"])
    data["stop"] = tuple(data["stop"])
    if isinstance(data["prompt"], list):
        data["prompt"] = tuple(data["prompt"])
    if data["began"] is not None:
        data["began"] = RowBegan(*data["began"])
    return {**info, "next": NextTurn(**data)}
