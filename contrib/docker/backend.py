"""The "docker" sandbox: hardened containers of a Docker engine; an agent in them answers over standard streams.

A container serves one request or one session at a time. It has no network, a read-only root, no capabilities, no new
privileges, its own seccomp profile, and limits on memory, processes and CPU for everything in it. Inside, the agent
confines every snippet again, as the namespace backend does, so a container can be reused without traces. If the engine
forbids namespaces in its containers, `capabilities.pid_namespace` is false, and every request and every session gets a
new container, which is slow.

Not covered: vulnerabilities of the kernel, unless `runtime="runsc"` adds gVisor. Access to the engine is access to its
whole machine: give it to nobody else.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace

from contrib.docker import wire
from contrib.docker.engine import Engine
from contrib.docker.image import ensure_image
from contrib.docker.owner import reap
from contrib.docker.pool import Pool
from contrib.docker.recipe import Recipe
from contrib.docker.session import DockerSession, ask_for_result
from forge_env.core.errors import SandboxError, SandboxUnavailable, UserError
from forge_env.core.sandbox import DEFAULT_LIMITS, Capabilities, ExecRequest, ExecResult, ExecStatus, Limits
from forge_env.utils.deadlines import queued
from sandboxes.host.selftest import LIMITS as CANARY_LIMITS
from sandboxes.host.session import session_slot

_MAX_SLOTS, _MAX_SESSIONS = 128, 896


async def open_docker_sandbox(
    *,
    slots: int | None = None,
    max_sessions: int = 32,
    cpus: float = 1.0,
    base_image: str | None = None,
    runtime: str | None = None,
    pid_namespace: bool | None = None,
) -> DockerSandbox:
    """Open the sandbox: find the engine, remove containers of dead owners, build the image, test one container.

    Args:
        slots: concurrent requests, one container per request; the number of CPUs by default.
        max_sessions: open sessions, one container per session; a further one waits up to a minute.
        cpus: CPUs that one container may use.
        base_image: an image with python3 3.11 or newer. FORGE_ENV_SANDBOX_BASE_IMAGE, else python:3.12-slim.
        runtime: another runtime that the engine knows, for example "runsc".
        pid_namespace: True refuses an engine that forbids namespaces, False does without them; None uses them if
            possible, and `capabilities` reports the result.
    """
    slots = slots if slots is not None else os.cpu_count() or 1
    _check_range("slots", slots, _MAX_SLOTS)
    _check_range("max_sessions", max_sessions, _MAX_SESSIONS)
    if not 0.01 <= cpus <= 1024:
        raise UserError(f"cpus must be between 0.01 and 1024, not {cpus}.")
    engine = await Engine.connect()
    try:
        await reap(engine)
        recipe = Recipe(image=await ensure_image(engine, base_image), namespaces=True, cpus=cpus, runtime=runtime)
        pool, capabilities = await _open_pool(engine, recipe, slots, pid_namespace)
    except BaseException:
        engine.close()
        raise
    return DockerSandbox(engine, pool, capabilities, slots=slots, max_sessions=max_sessions)


class DockerSandbox:
    """A `Sandbox`. Created by `open_docker_sandbox`."""

    def __init__(
        self, engine: Engine, pool: Pool, capabilities: Capabilities, *, slots: int, max_sessions: int
    ) -> None:
        self.capabilities = capabilities
        self._engine = engine
        self._pool = pool
        self._slots = asyncio.Semaphore(slots)
        self._session_slots = asyncio.Semaphore(max_sessions)
        self._max_sessions = max_sessions
        self._sessions: set[DockerSession] = set()
        self._is_closed = False

    async def run(self, request: ExecRequest | str) -> ExecResult:
        """Run `request` in a fresh state; `wall_s` starts when a slot is free. Cancellation kills the snippet."""
        if isinstance(request, str):
            request = ExecRequest(code=request)
        message, files = wire.request_message(request)
        async with queued():
            await self._slots.acquire()
        try:
            self._require_open()
            container = await self._pool.take(request.limits)
            begin = time.monotonic()
            try:
                # If a zygote died before its snippet started, the agent retries the snippet.
                within_s = 2 * request.limits.wall_s
                result = await ask_for_result(container, message, request.limits, body=files, within_s=within_s)
            except SandboxError as error:
                result = ExecResult(status=ExecStatus.SANDBOX_ERROR, backend="docker", error=str(error))
            finally:
                self._pool.give_back(container)
            return replace(result, backend="docker", wall_s=min(result.wall_s, time.monotonic() - begin))
        finally:
            self._slots.release()

    async def open_session(
        self, *, setup: str = "", limits: Limits = DEFAULT_LIMITS, echo: bool = False
    ) -> DockerSession:
        """Open a session. Its directory is /tmp."""
        await self._take_session_slot()

        def free() -> None:
            self._sessions.discard(session)
            self._session_slots.release()

        session = DockerSession(self._pool, setup=setup, limits=limits, echo=echo, free=free)
        self._sessions.add(session)
        try:
            self._require_open()
            await session.reset()
        except BaseException:
            await session.close()
            raise
        return session

    async def close(self) -> None:
        self._is_closed = True
        try:
            await self._pool.close()
            for session in tuple(self._sessions):
                await session.close()
            await self._pool.close()
        finally:
            self._engine.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise SandboxError("the docker sandbox is closed")

    async def _take_session_slot(self) -> None:
        self._require_open()
        await session_slot(self._session_slots.acquire, self._max_sessions)


async def _open_pool(
    engine: Engine, recipe: Recipe, slots: int, pid_namespace: bool | None
) -> tuple[Pool, Capabilities]:
    """Return a pool that has passed the self-test, without namespaces if they are unavailable and not required."""
    why_none = "they are switched off (pid_namespace=False)"
    if pid_namespace is not False:
        try:
            return await _prove(Pool(engine, recipe, max_idle=slots))
        except SandboxUnavailable as error:
            if pid_namespace:
                raise
            why_none = str(error)
    return await _prove(Pool(engine, replace(recipe, namespaces=False, why_none=why_none), max_idle=slots))


async def _prove(pool: Pool) -> tuple[Pool, Capabilities]:
    try:
        return pool, await pool.warm_up(CANARY_LIMITS)
    except BaseException:
        await pool.close()
        raise


def _check_range(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise UserError(f"{name} must be between 1 and {most}, not {value}.")
