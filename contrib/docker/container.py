"""One hardened container, and the protocol with the agent in it (`agent.py`)."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, replace
from typing import Any

from contrib.docker import owner, wire
from contrib.docker.engine import Engine
from contrib.docker.recipe import Recipe, create, memory_needed
from forge_env.core.errors import SandboxError, SandboxUnavailable
from forge_env.core.sandbox import Capabilities, Limits

_START_S = 60.0
_GRACE_S = 25.0
"""Seconds that an answer may take beyond the time of an honest agent; then the container is killed."""
_CANCEL_S = 15.0
_ENGINE_FRAME = 8
"""The header that the engine puts before every chunk of output: the stream, three zeros, the length."""
_STDERR = 2
_KEPT_ERRORS = 4000
_CHUNK = 64 * 2**10
_NO_NAMESPACES = (
    "no pid namespace per snippet, so every request and every session gets a new container, which takes much longer"
)


@dataclass(slots=True)
class _Pending:
    answer: asyncio.Future[tuple[dict[str, Any], bytes]]
    max_body_bytes: int


class Container:
    """A running container. Create one with `await Container.start(...)`; end it with `await container.close()`."""

    def __init__(self, engine: Engine, identity: str, *, memory_bytes: int, tmp_bytes: int) -> None:
        self.alive = True
        self.failure = ""
        """Why it ended; "" while it is alive."""
        self.uses = 0
        self.memory_bytes = memory_bytes
        self.tmp_bytes = tmp_bytes
        self.capabilities: Capabilities
        self._engine = engine
        self._identity = identity
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._bytes_left = 0  # bytes left of the engine's current chunk
        self._errors = bytearray()
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    @classmethod
    async def start(cls, engine: Engine, recipe: Recipe, limits: Limits) -> Container:
        identity = await owner.finish_creation(engine, create(engine, recipe, limits))
        container = cls(engine, identity, memory_bytes=memory_needed(limits), tmp_bytes=limits.tmp_bytes)
        try:
            await container._begin(recipe)
        except BaseException:
            await container.close()
            raise
        return container

    async def ask(
        self, message: dict[str, Any], body: bytes = b"", *, within_s: float, max_body_bytes: int = 0
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request and return the answer. Cancelling ends the request, or else the container.

        Args:
            within_s: the longest time of an honest agent, in seconds; a grace period is added.
            max_body_bytes: the largest size of an honest answer.
        """
        number = next(self._numbers)
        frame = wire.frame(number, message, body)
        answer = self._expect(number, max_body_bytes)
        try:
            if self._writer is None or not self.alive:
                raise SandboxError(self.failure or "the container is not running")
            self._writer.write(frame)
            async with asyncio.timeout(within_s + _GRACE_S):
                await self._drain()
                return await asyncio.shield(answer)
        except TimeoutError:
            self.kill("the agent in the container did not answer in time")
            raise SandboxError(self.failure) from None
        except asyncio.CancelledError:
            await self._cancel(number, answer)
            raise
        finally:
            self._pending.pop(number, None)

    async def set_memory(self, memory_bytes: int) -> None:
        api = self._engine.client.api
        await self._engine.call(
            api.update_container, self._identity, mem_limit=memory_bytes, memswap_limit=memory_bytes
        )
        self.memory_bytes = memory_bytes

    def kill(self, reason: str) -> None:
        """Close the connection, so that its agent ends. `close` removes the container."""
        if self.alive:
            self.alive = False
            self.failure = reason
        if self._writer is not None:
            self._writer.transport.abort()
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(SandboxError(self.failure))
        self._pending.clear()

    async def close(self) -> None:
        """End every process in it and remove it. Idempotent. Raises SandboxError if the engine fails."""
        self.kill("the sandbox was closed")
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        removing = asyncio.create_task(owner.remove_whole(self._engine, self._identity))
        try:
            await asyncio.shield(removing)
        except asyncio.CancelledError:
            await asyncio.wait([removing])
            raise

    async def _begin(self, recipe: Recipe) -> None:
        connection = await self._engine.call(self._engine.attach, self._identity)
        try:
            reader, self._writer = await asyncio.open_connection(sock=connection)
        except BaseException:
            connection.close()
            raise
        ready = self._expect(0, 0)
        self._reading = asyncio.create_task(self._read(reader))
        await self._engine.call(self._engine.client.api.start, self._identity)
        try:
            async with asyncio.timeout(_START_S):
                header, _ = await ready
        except TimeoutError:
            raise SandboxError(
                f"docker sandbox: the agent did not start in {_START_S:g} s{self._last_error_line()}"
            ) from None
        finally:
            self._pending.pop(0, None)
        self.capabilities = _capabilities(header, self.memory_bytes, recipe)
        self._writer.write(wire.frame(0, {"do": "greet"}))

    def _expect(self, number: int, max_body_bytes: int) -> asyncio.Future[tuple[dict[str, Any], bytes]]:
        answer: asyncio.Future[tuple[dict[str, Any], bytes]] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # the caller may have been cancelled
        self._pending[number] = _Pending(answer, max_body_bytes)
        return answer

    async def _drain(self) -> None:
        assert self._writer is not None
        try:
            await self._writer.drain()
        except OSError:
            self.kill("the container ended")

    async def _cancel(self, number: int, answer: asyncio.Future[Any]) -> None:
        try:
            if self.alive and self._writer is not None and not answer.done():
                self._writer.write(wire.frame(number, {"do": "cancel"}))
                await asyncio.wait([answer], timeout=_CANCEL_S)
        finally:
            if not answer.done():
                self.kill("the agent in the container did not end a request that was cancelled")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Resolve the pending answers, until the container ends or violates the protocol."""
        try:
            while True:
                number, header_bytes, body_bytes = wire.PREFIX.unpack(await self._output(reader, wire.PREFIX.size))
                pending = self._pending.get(number)
                if pending is None or pending.answer.done():
                    raise wire.BrokenFrame("an answer without a request")
                if header_bytes > wire.MAX_HEADER_BYTES or body_bytes > pending.max_body_bytes:
                    raise wire.BrokenFrame("an answer that is too large")
                header = wire.parse_header(await self._output(reader, header_bytes))
                body = await self._output(reader, body_bytes)
                if not pending.answer.done():
                    pending.answer.set_result((header, body))
        except wire.BrokenFrame as error:
            self.kill(f"the agent in the container violated the protocol: {error}")
        except (asyncio.IncompleteReadError, OSError):
            self.kill(f"the container ended{self._last_error_line()}")

    async def _output(self, reader: asyncio.StreamReader, count: int) -> bytes:
        """Return the next `count` bytes of standard output; standard error is kept separately, capped."""
        data = bytearray()
        while len(data) < count:
            if not self._bytes_left:
                await self._next_piece(reader)
                continue
            piece = await reader.read(min(self._bytes_left, count - len(data), _CHUNK))
            if not piece:
                raise asyncio.IncompleteReadError(b"", count)
            self._bytes_left -= len(piece)
            data += piece
        return bytes(data)

    async def _next_piece(self, reader: asyncio.StreamReader) -> None:
        head = await reader.readexactly(_ENGINE_FRAME)
        length = int.from_bytes(head[4:], "big")
        if head[0] != _STDERR:
            self._bytes_left = length
            return
        while length:
            piece = await reader.read(min(length, _CHUNK))
            if not piece:
                raise asyncio.IncompleteReadError(b"", length)
            length -= len(piece)
            self._errors = (self._errors + piece)[-_KEPT_ERRORS:]

    def _last_error_line(self) -> str:
        lines = self._errors.decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1][:500]}" if lines else ""


def _capabilities(header: dict[str, Any], memory_bytes: int, recipe: Recipe) -> Capabilities:
    """Return the agent's report. It is trusted: no untrusted code has run in the container yet."""
    if "failed" in header:
        raise SandboxUnavailable(f"docker sandbox: in its container, {header['failed']}")
    if recipe.capabilities is not None:
        return recipe.capabilities
    try:
        report = wire.capabilities_of(header.get("capabilities"))
    except wire.BrokenFrame as error:
        raise SandboxError(f"docker sandbox: the agent violated the protocol: {error}") from error
    if header.get("memory_bytes") != memory_bytes:
        raise SandboxUnavailable(
            "docker sandbox: the engine does not limit the memory of its containers; its machine needs the memory "
            "controller of control groups."
        )
    # The agent limits processes, the engine the CPU.
    limits = {"process_limit": "rlimit", "cpu_share": recipe.cpus <= 1}
    missing = (*report.missing, *(() if recipe.namespaces else (f"{_NO_NAMESPACES}: {recipe.why_none}",)))
    return replace(report, backend="docker", missing=missing, **limits)  # type: ignore[arg-type]
