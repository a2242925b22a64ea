"""`forge_env.make("http://host:port")`: an environment that a server runs, on the contract of every environment.

The duration of a call is measured at the server, and spent from the limits of the episode here. The way there and back
is not: no limit of the episode runs during the wait for a connection, which has limits of its own.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from contrib.common.usage import set_usage
from contrib.serve.remote import wire
from contrib.serve.remote.server_address import ServerAddress, result_of
from contrib.serve.remote.wire import About, Answer
from forge_env.core.env import Env, StepResult, after_reset
from forge_env.core.errors import EnvError, ForgeError, InfraError
from forge_env.core.types import Action, EpisodeLimits, Task
from forge_env.utils.deadlines import queued, seconds_left, spend

if TYPE_CHECKING:
    from contrib.serve.remote.connection import Connection, Connections


def resolve_http(rest: str) -> type[RemoteEnv]:
    return remote_class(f"http:{rest}")


def resolve_https(rest: str) -> type[RemoteEnv]:
    return remote_class(f"https:{rest}")


def remote_class(name: str) -> type[RemoteEnv]:
    """Ask a server what it serves, and return the class of that environment."""
    server = ServerAddress.parse(name)
    about = server.about()
    members: dict[str, Any] = {
        "server": server,
        "about": about,
        "served_digests": about.digests,
        "tools": about.tools,
        "truncation_reward": about.truncation_reward,
        "time_spent_by": about.time_spent_by,
    }
    if about.has_expert:
        members["expert"] = staticmethod(lambda messages: server.ask("expert", messages=messages))
    if about.has_cheats:
        members["cheats"] = staticmethod(lambda task: server.ask("cheats", task=wire.task_data(task)))
    return type("RemoteEnv", (RemoteEnv,), {**members, "__module__": __name__})


class RemoteEnv(Env):
    """Base of the classes of `remote_class`; one instance is one session at a time."""

    shared: ClassVar = {"connections": "contrib.serve.remote.connection:open_connections"}
    server: ClassVar[ServerAddress]
    about: ClassVar[About]
    served_digests: ClassVar[Mapping[str, str]] = {}
    """Digests of the code that the server runs, for the records of an evaluation."""
    connections: Connections

    def __init__(self) -> None:
        self._session = ""
        self._number = 0
        self._connection: Connection | None = None
        self._turn_rewards: list[float] = []
        self._reward = 0.0
        """Reward that was given before the first step."""
        self._final_info: Mapping[str, Any] = {}
        self._verdicts: dict[float, Mapping[str, Any]] = {}
        self._close_error: InfraError | None = None
        """Why the session could not be closed in order."""

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        return [wire.task_from(task) for task in cls.server.ask("tasks", split=split, count=count, seed=seed)]

    @classmethod
    def limits(cls) -> Mapping[str, float]:
        return cls.about.limits

    @classmethod
    def effects(cls) -> str:
        """What the environment does, which runs on another machine."""
        return cls.about.effects

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """Start an episode, in a new session unless there is one."""
        self.seed(seed)
        task: Task | None = (options or {}).get("task")
        limits: EpisodeLimits | None = (options or {}).get("limits")
        self._turn_rewards, self._reward = [], 0.0
        if not self._session:
            self._session, self._number = uuid.uuid4().hex, 0
        result = await self._call(
            "reset",
            about=self.about.id,
            seed=seed,
            task=None if task is None else wire.task_data(task),
            limits=None if limits is None else asdict(limits),
        )
        return wire.reset_from(result)

    async def step(self, action: Action) -> StepResult:
        after_reset(self, self._session or None)
        step = wire.step_from(await self._call("step", action=wire.action_data(action)))
        self._turn_rewards.append(step[1])
        return step

    async def on_limit(self, limit: str, reason: str = "") -> StepResult | None:
        if not (self.about.has_on_limit and self._session):
            return None
        if (result := await self._call("on_limit", limit=limit, reason=reason)) is None:
            return None
        step = wire.step_from(result)
        if self._turn_rewards:
            self._turn_rewards[-1] += step[1]
        else:
            self._reward += step[1]
        return step

    async def close(self) -> None:
        """End the session. What may be asked after it is asked now: the final info, and whether this is a success."""
        if not self._session:
            return
        reward = sum(self._turn_rewards) + self._reward
        rewards = [reward, reward + self.truncation_reward] if self.about.has_success else []
        try:
            result = await self._call("close", rewards=rewards)
        except InfraError as error:
            self._close_error = error
            raise
        finally:
            self._session = ""
            if self._connection is not None:
                self.connections.give_back(self._connection)
                self._connection = None
        self._final_info = result.get("final_info", {})
        self._verdicts = dict(zip(rewards, result.get("success", []), strict=True)) if result else {}

    def final_info(self) -> Mapping[str, Any]:
        return _value(self._final_info) if self._final_info else {}

    def success(self, reward: float) -> bool:
        """Whether this reward is a success: the default here, or what the environment has said as it was closed."""
        if not self.about.has_success:
            return super().success(reward)
        for other, verdict in self._verdicts.items():
            if math.isclose(other, reward, rel_tol=1e-9, abs_tol=1e-12):  # the order of a sum may differ
                return bool(_value(verdict))
        if self._close_error is not None:
            raise self._close_error
        raise EnvError(f"whether the reward {reward:g} is a success is known once its episode has been closed")

    async def _call(self, call: str, **request: Any) -> Any:
        """Make a call on the server, within the time that is left here, and return its result."""
        seconds = seconds_left()
        connection = self._open_connection()
        self._number += 1
        message = {"number": self._number, "call": call, "seconds": None if seconds == math.inf else seconds, **request}
        async with queued():
            answer = await connection.call(self._session, message)
        self._take(answer)
        if answer.timed_out:
            await asyncio.sleep(0)
            await asyncio.sleep(0.1)  # a deadline that encloses this call cancels it now
            raise TimeoutError(f"{call} took longer than {answer.seconds:g} s")
        return result_of(answer)

    def _open_connection(self) -> Connection:
        """Return the connection of this session, which is taken at its first call."""
        if self._connection is None:
            if not hasattr(self, "connections"):
                raise EnvError(
                    f"the connections to {self.server.url} are not open: use the factory in "
                    "`async with forge_env.make(...)`"
                )
            self._connection = self.connections.take(self.server)
        return self._connection

    def _take(self, answer: Answer) -> None:
        """Spend the time that a call took, and take over what it changed."""
        spend(answer.seconds)
        for name, value in answer.state.items():
            setattr(self, name, value)
        if answer.model_calls:
            set_usage(answer.model_calls)


def _value(answer: Mapping[str, Any]) -> Any:
    if "fault" in answer:
        error: ForgeError = wire.fault_error(answer["fault"])
        raise error
    return answer["value"]
