"""One episode on a server: an instance of the environment. Its numbered calls run one after another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from contrib.common.http_server import RequestRefused
from contrib.serve.remote import wire
from contrib.serve.remote.wire import Answer
from forge_env.core.env import Env
from forge_env.core.errors import EnvError, InfraError, UserError
from forge_env.core.types import EpisodeLimits
from forge_env.core.usage import INFO_KEY, recording
from forge_env.core.user_code import fault
from forge_env.rollout.env_calls import (
    close_instance,
    final_info_of,
    is_timeout,
    read_on_limit,
    read_reset,
    read_step,
    success_of,
)
from forge_env.rollout.factory import EnvFactory
from forge_env.utils.deadlines import Deadline
from forge_env.utils.gates import gate_of
from forge_env.utils.threads import call_on

STATE = ("tools", "truncation_reward", "time_spent_by")
"""Attributes of an instance that a rollout reads."""


class Session:
    """One instance of an environment.

    Args:
        factory: of the environment, open.
        max_seconds: time limit of a call if the client sets none.
    """

    def __init__(self, factory: EnvFactory, *, max_seconds: float) -> None:
        self._factory = factory
        self._max_seconds = max_seconds
        self._env: Env | None = None
        self._number = 0
        self._running: asyncio.Task[bytes] | None = None
        self._info: dict[str, Any] = {}
        self._client_state: dict[str, Any] = {name: getattr(factory.env_class, name) for name in STATE}
        """What the client knows of the instance; first what the class declares."""
        self.waiting = 0
        """Requests that wait for an answer."""
        self.last_use = time.monotonic()
        self.is_closed = False

    def call(self, request: Mapping[str, Any]) -> asyncio.Task[bytes]:
        """Begin a call, or return the one that a repeated request is for; the task returns the body of the response."""
        number, name = request.get("number"), str(request.get("call"))
        if number == self._number and self._running is not None:
            return self._running
        if number != self._number + 1 or self.is_closed or (self._number == 0 and name != "reset"):
            raise RequestRefused(409, f"the call {number!r:.20} of this session came after the call {self._number}")
        if name not in _CALLS:
            raise RequestRefused(400, f"there is no call {name!r:.40}")
        previous, self._number = self._running, self._number + 1
        self._running = asyncio.create_task(self._run(_CALLS[name], request, previous))
        return self._running

    async def end(self, seconds: float) -> None:
        """Stop the call that runs, and close the instance. What the environment raises is nobody's concern any more."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        if self._env is not None and not self.is_closed:
            self.is_closed = True
            await self._answer("close", seconds, lambda result: None, close_instance, self._env)

    async def _run(self, call: _Call, request: Mapping[str, Any], previous: asyncio.Task[bytes] | None) -> bytes:
        if previous is not None and not previous.done():
            previous.cancel()  # a client that goes on has given up waiting for it
            await asyncio.wait({previous})
        before = repr(self._info)
        token = recording.set(self._info)
        try:
            answer = await call(self, request)
        finally:
            recording.reset(token)
        model_calls = self._info.get(INFO_KEY, {}) if repr(self._info) != before else {}
        try:
            return replace(answer, state=self._changes(), model_calls=model_calls).dump()
        except (TypeError, ValueError, RecursionError) as error:
            return replace(
                answer, result=None, fault=_fault(f"{request['call']} returned what is no JSON", error)
            ).dump()

    def _changes(self) -> dict[str, Any]:
        """Return what has changed of the instance since the client was told."""
        changes: dict[str, Any] = {}
        for name in STATE if self._env is not None else ():
            value = getattr(self._env, name)
            if value is not self._client_state[name] and value != self._client_state[name]:
                changes[name] = list(value) if name == "tools" else value
            self._client_state[name] = value
        return changes

    async def _reset(self, request: Mapping[str, Any]) -> Answer:
        options: dict[str, Any] = {}
        if request.get("task") is not None:
            options["task"] = wire.task_from(request["task"])
        if request.get("limits") is not None:
            options["limits"] = EpisodeLimits(**request["limits"])
        if self._env is None:
            try:
                self._env = await self._factory.construct(seconds=self._seconds(request))
            except (EnvError, InfraError, UserError) as error:
                return Answer(fault=wire.fault_data(error))

        def read(result: Any) -> Any:
            reset_result = read_reset(result)
            return wire.reset_data(reset_result.observation, reset_result.info, reset_result.next_turn)

        seconds, seed = self._seconds(request), request.get("seed")
        return await self._answer("reset", seconds, read, self._env.reset, seed=seed, options=options)

    async def _step(self, request: Mapping[str, Any]) -> Answer:
        action = wire.action_from(request["action"])

        def read(result: Any) -> Any:
            return wire.step_data(read_step(result))

        return await self._answer("step", self._seconds(request), read, self._reset_env().step, action)

    async def _on_limit(self, request: Mapping[str, Any]) -> Answer:
        limit, reason = request["limit"], request.get("reason", "")
        env = self._reset_env()

        def read(result: Any) -> Any:
            step = read_on_limit(result) if limit == "max_tokens" else None  # otherwise the episode has ended
            return None if step is None else wire.step_data(step)

        arguments = (limit, reason) if reason else (limit,)
        return await self._answer("on_limit", self._seconds(request), read, env.on_limit, *arguments)

    async def _close(self, request: Mapping[str, Any]) -> Answer:
        """Close the instance, and tell the rest: its final info, and whether the rewards in question are successes."""
        self.is_closed = True
        if self._env is None:
            return Answer(result={})
        answer = await self._answer("close", self._seconds(request), lambda result: None, close_instance, self._env)
        env, rewards = self._env, request.get("rewards", [])
        seconds = self._seconds(request)
        verdicts = [await _value(success_of(env, reward, seconds)) for reward in rewards]
        final = await _value(final_info_of(env, seconds))
        if (running := gate_of(env).running) and "value" in final:
            final["value"] |= {"unstopped": running}
        self._env = None  # the answer may be kept for long
        return replace(answer, result={"final_info": final, "success": verdicts})

    def _seconds(self, request: Mapping[str, Any]) -> float:
        seconds = request.get("seconds")
        return self._max_seconds if seconds is None else float(seconds)

    def _reset_env(self) -> Env:
        assert self._env is not None, "the first call of a session is a reset"
        return self._env

    async def _answer(
        self,
        part: str,
        seconds: float,
        read: Callable[[Any], Any],
        method: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Answer:
        """Call the environment within a time limit, and read what it returns; all of it is an `Answer`."""
        deadline = Deadline(seconds)
        try:
            with deadline:
                result = await call_on(self._reset_env(), method, *args, **kwargs)
        except BaseException as error:
            if is_timeout(error, deadline):
                return Answer(timed_out=True, seconds=deadline.seconds_used)
            return Answer(seconds=deadline.seconds_used, fault=_fault(part, error))
        try:
            return Answer(result=read(result), seconds=deadline.seconds_used)
        except BaseException as error:
            return Answer(seconds=deadline.seconds_used, fault=_fault(f"{part} returned what cannot be read", error))


_Call = Callable[[Session, Mapping[str, Any]], Awaitable[Answer]]
_CALLS: Mapping[str, _Call] = {
    "reset": Session._reset,
    "step": Session._step,
    "on_limit": Session._on_limit,
    "close": Session._close,
}


async def _value(call: Awaitable[Any]) -> dict[str, Any]:
    """Return what a call returns, as {"value": ...} or {"fault": ...}."""
    try:
        return {"value": await call}
    except (EnvError, InfraError, UserError) as error:
        return {"fault": wire.fault_data(error)}


def _fault(part: str, error: BaseException) -> dict[str, str]:
    """Return an exception of the environment as data. The frames of this file are not a place in the environment."""
    while (trace := error.__traceback__) is not None and trace.tb_frame.f_code.co_filename == __file__:
        error = error.with_traceback(trace.tb_next)
    client_error = fault(part, error) or error
    if isinstance(client_error, (EnvError, InfraError, UserError)):
        return wire.fault_data(client_error)
    raise error
