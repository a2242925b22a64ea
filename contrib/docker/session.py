"""A session of the docker sandbox: one container at a time. Its state lasts from cell to cell."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from contrib.docker import wire
from contrib.docker.container import Container
from contrib.docker.pool import Pool
from forge_env.core.errors import SandboxError
from forge_env.core.sandbox import ExecResult, ExecStatus, Limits, SessionFileError

_START_S = 30.0
_CLOSE_S = 1.0


class DockerSession:
    """A `Session`. Created by `DockerSandbox.open_session`.

    Args: free: called once, when the session is closed.
    """

    def __init__(self, pool: Pool, *, setup: str, limits: Limits, echo: bool, free: Callable[[], None]) -> None:
        self._pool = pool
        self._limits = limits
        self._opening = {"do": "open", "setup": setup, "limits": asdict(limits), "echo": echo}
        self._free = free
        self._turn = asyncio.Lock()
        self._container: Container | None = None
        self._has_lost_state = False  # state was lost, and no result has reported it yet
        self._closing: asyncio.Task[None] | None = None

    async def run(self, code: str, *, stdin: str = "") -> ExecResult:
        async with self._turn:
            self._require_open()
            begin = time.monotonic()
            try:
                container = await self._live()
                message = {"do": "cell", "code": code, "stdin": stdin}
                result = await ask_for_result(container, message, self._limits, within_s=self._start_s)
            except SandboxError as error:
                result = ExecResult(status=ExecStatus.SANDBOX_ERROR, backend="docker", error=str(error))
            wall_s = min(result.wall_s, time.monotonic() - begin)
            return self._tell_loss(replace(result, backend="docker", wall_s=wall_s))

    async def put(self, path: str, data: bytes) -> None:
        if len(data) > self._limits.file_bytes:
            raise SessionFileError(f"{path!r} has {len(data)} bytes; file_bytes is {self._limits.file_bytes}")
        async with self._turn:
            self._require_open()
            await self._ask(await self._live(), {"do": "put", "path": path}, data)

    async def get(self, path: str) -> bytes:
        async with self._turn:
            self._require_open()
            message = {"do": "get", "path": path}
            return await self._ask(await self._live(), message, max_body_bytes=self._limits.file_bytes)

    async def reset(self) -> None:
        async with self._turn:
            self._require_open()
            container = self._container
            if container is not None and container.alive and container.capabilities.pid_namespace:
                await self._ask(container, {"do": "reset"}, within_s=self._start_s)
            else:
                self._drop()
                await self._live()
            self._has_lost_state = False

    async def close(self) -> None:
        if self._closing is None:
            if self._turn.locked() and self._container is not None:
                self._container.kill("the session was closed")
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    @property
    def _start_s(self) -> float:
        return _START_S + self._limits.wall_s

    async def _close(self) -> None:
        try:
            async with self._turn:
                container = self._container
                if container is not None and container.alive:
                    await self._end_in(container)
        finally:
            self._drop()
            self._free()

    async def _end_in(self, container: Container) -> None:
        """Close the session inside, so that the container can be reused."""
        try:
            await self._ask(container, {"do": "close"}, within_s=_CLOSE_S)
        except (SandboxError, SessionFileError):
            container.kill("the session in it could not be closed")

    def _require_open(self) -> None:
        if self._closing is not None:
            raise SandboxError("the session is closed")

    async def _live(self) -> Container:
        if self._container is not None and self._container.alive:
            return self._container
        self._has_lost_state = self._has_lost_state or self._container is not None
        self._drop()
        container = self._container = await self._pool.take(self._limits)
        try:
            await self._ask(container, self._opening, within_s=self._start_s)
        except BaseException:
            container.kill("a session could not be opened in it")
            raise
        return container

    def _drop(self) -> None:
        container, self._container = self._container, None
        if container is not None:
            self._pool.give_back(container)

    async def _ask(
        self,
        container: Container,
        message: dict[str, Any],
        body: bytes = b"",
        *,
        within_s: float | None = None,
        max_body_bytes: int = 0,
    ) -> bytes:
        within_s = within_s if within_s is not None else self._start_s
        header, answer = await container.ask(message, body, within_s=within_s, max_body_bytes=max_body_bytes)
        if "file_error" in header:
            raise SessionFileError(str(header["file_error"]))
        if "sandbox_error" in header:
            raise SandboxError(str(header["sandbox_error"]))
        return answer

    def _tell_loss(self, result: ExecResult) -> ExecResult:
        if result.state_lost and self._container is not None and not self._container.capabilities.pid_namespace:
            self._container.kill("what the cell left in it can only be removed with it")
        has_ended = self._container is None or not self._container.alive
        is_lost, self._has_lost_state = self._has_lost_state or has_ended or result.state_lost, False
        if has_ended:
            self._drop()
        return replace(result, state_lost=is_lost)


async def ask_for_result(
    container: Container, message: dict[str, Any], limits: Limits, *, body: bytes = b"", within_s: float
) -> ExecResult:
    """Send a request and return its result. Raises SandboxError."""
    most = wire.max_result_bytes(limits)
    header, answer = await container.ask(message, body, within_s=within_s, max_body_bytes=most)
    if "sandbox_error" in header:
        raise SandboxError(str(header["sandbox_error"])[:4000])
    try:
        return wire.result_of(header, answer)
    except wire.BrokenFrame as error:
        container.kill(f"the agent in the container violated the protocol: {error}")
        raise SandboxError(container.failure) from error
