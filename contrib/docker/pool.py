"""The containers of one docker sandbox. A container serves one snippet or session at a time, and is reused."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from contrib.docker.container import Container
from contrib.docker.engine import Engine
from contrib.docker.recipe import Recipe, memory_needed
from forge_env.core.errors import SandboxError
from forge_env.core.sandbox import Capabilities, Limits

_MAX_USES = 1000
"""Requests after which a container is replaced, in case state has accumulated."""


class Pool:
    """Args: max_idle: idle containers to keep for later requests."""

    def __init__(self, engine: Engine, recipe: Recipe, *, max_idle: int) -> None:
        self._engine = engine
        self._recipe = recipe
        self._max_idle = max_idle
        # Without namespaces, only a new container keeps traces of one snippet from the next.
        self._max_uses = _MAX_USES if recipe.namespaces else 1
        self._idle: list[Container] = []
        self._in_use: set[Container] = set()
        self._starting: set[asyncio.Task[Container]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._failures: list[SandboxError] = []
        self._is_closed = False

    async def warm_up(self, limits: Limits) -> Capabilities:
        """Start the first container and return what it enforces. Raises as `take` does."""
        container = await self.take(limits)
        container.uses = 0
        self.give_back(container)
        self._recipe = replace(self._recipe, capabilities=container.capabilities)
        return container.capabilities

    async def take(self, limits: Limits) -> Container:
        """Return a container with the memory limit for `limits`. Always give it back."""
        container = self._take_idle(limits) or await self._start(limits)
        self._in_use.add(container)
        container.uses += 1
        if container.memory_bytes == memory_needed(limits):
            return container
        try:
            await container.set_memory(memory_needed(limits))
        except BaseException:
            container.kill("its memory limit could not be set")
            self.give_back(container)
            raise
        return container

    def give_back(self, container: Container) -> None:
        self._in_use.discard(container)
        reusable = container.alive and container.uses < self._max_uses
        if reusable and len(self._idle) < self._max_idle and not self._is_closed:
            self._idle.append(container)
        else:
            self._close_soon(container)

    async def close(self) -> None:
        """Remove every container, also those in use. Raises SandboxError if one could not be removed. Idempotent."""
        self._is_closed = True
        for container in (*self._idle, *self._in_use):
            self._close_soon(container)
        self._idle.clear()
        while pending := {*self._starting, *self._closing}:
            await asyncio.wait(pending)
        if self._failures:
            raise self._failures.pop()

    def _take_idle(self, limits: Limits) -> Container | None:
        """Prefer a container with this memory limit, since changing it takes a call of the engine; then the last
        used."""
        for container in tuple(self._idle):
            # Without namespaces, the snippet's files are in the container's /tmp, which has a fixed size.
            if not container.alive or not (self._recipe.namespaces or container.tmp_bytes == limits.tmp_bytes):
                self._idle.remove(container)
                self._close_soon(container)
        if not self._idle:
            return None
        best = max(reversed(self._idle), key=lambda container: container.memory_bytes == memory_needed(limits))
        self._idle.remove(best)
        return best

    async def _start(self, limits: Limits) -> Container:
        """Start a container in a task that `close` waits for; cancelling the caller cancels it."""
        starting = asyncio.create_task(self._start_one(limits))
        self._starting.add(starting)
        try:
            return await starting
        finally:
            self._starting.discard(starting)

    async def _start_one(self, limits: Limits) -> Container:
        if self._is_closed:
            raise SandboxError("the docker sandbox is closed")
        container = await Container.start(self._engine, self._recipe, limits)
        if self._is_closed:
            await container.close()
            raise SandboxError("the docker sandbox is closed")
        return container

    def _close_soon(self, container: Container) -> None:
        container.kill("the sandbox was closed")
        task = asyncio.create_task(self._close_one(container))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close_one(self, container: Container) -> None:
        try:
            await container.close()
        except SandboxError as error:
            self._failures.append(error)
