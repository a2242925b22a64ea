"""The owner of a container: labels that outlive the owner, and the reaper of containers of dead owners.

A container ends when its owner is gone, because its standard input ends. The reaper removes containers that a killed
owner had created but not started, and containers of engines that were killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Coroutine
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from contrib.docker.engine import Engine
from forge_env.core.errors import SandboxError

LABEL = "forge-env.sandbox"
_MACHINE, _PID, _START = f"{LABEL}.machine", f"{LABEL}.pid", f"{LABEL}.start-time"
_STALE_S = 600.0
"""Age after which a container that does not run is abandoned: its owner starts it within seconds."""
_TRIES, _AGAIN_S, _GONE_S = 100, 0.02, 30.0  # to remove a container that ends by itself meanwhile
_IMAGE_TRIES, _IMAGE_AGAIN_S = 50, 0.1  # to remove an image while one of its containers ends


def labels() -> dict[str, str]:
    pid = os.getpid()
    return {LABEL: "1", _MACHINE: _machine(), _PID: str(pid), _START: _start_time(pid)}


async def reap(engine: Engine) -> int:
    """Remove the containers of dead owners, and return their number. Raises SandboxError."""
    containers = await engine.call(engine.client.api.containers, all=True, filters={"label": LABEL})
    orphans = [container["Id"] for container in containers if _is_orphan(container)]
    for container in orphans:
        await remove(engine, container)
    return len(orphans)


async def reap_images(engine: Engine) -> None:
    """Remove the images that dead owners on this machine have made. Raises SandboxError."""
    images = await engine.call(engine.client.api.images, all=True, filters={"label": LABEL})
    orphans = [image for image in images if _has_dead_owner(image.get("Labels") or {})]
    await remove_images(engine, [image["Id"] for image in sorted(orphans, key=_creation_time, reverse=True)])


async def remove_images(engine: Engine, images: list[str]) -> None:
    """Remove images, and not those that they are based on. What something still needs after seconds is left.

    The engine refuses to remove an image while one of its containers is being removed, or if another image is based on
    it. Such images are tried again after the others. Raises SandboxError.
    """
    for _ in range(_IMAGE_TRIES):
        in_use = []
        for image in images:
            try:
                await engine.call(engine.client.api.remove_image, image, noprune=True)
            except SandboxError as error:
                if engine.is_not_there(error):
                    continue
                if not engine.is_missing(error):  # and no conflict
                    raise
                in_use.append(image)
        images = in_use
        if not images:
            return
        await asyncio.sleep(_IMAGE_AGAIN_S)


async def finish_creation(engine: Engine, creation: Coroutine[Any, Any, str]) -> str:
    """Return the container that is created. It is removed if the caller is cancelled meanwhile."""
    creating = asyncio.create_task(creation)
    try:
        return await asyncio.shield(creating)
    except asyncio.CancelledError:
        with contextlib.suppress(SandboxError):
            await remove(engine, await creating)  # bounded: calls of the engine have a deadline
        raise


async def remove(engine: Engine, container: str) -> None:
    """Remove a container, running or not, with everything in it. Raises SandboxError."""
    for tries_left in reversed(range(_TRIES)):
        try:
            await engine.call(engine.client.api.remove_container, container, force=True, v=True)
            return
        except SandboxError as error:
            if engine.is_missing(error):
                return
            if not (tries_left and engine.has_just_ended(error)):
                raise
            await asyncio.sleep(_AGAIN_S)


async def remove_whole(engine: Engine, container: str) -> None:
    """`remove`, and wait until the container is gone: the engine may be removing it already. Raises SandboxError."""
    await remove(engine, container)
    try:
        async with asyncio.timeout(_GONE_S):
            while await is_there(engine, container):
                await asyncio.sleep(_AGAIN_S)
    except TimeoutError:
        raise SandboxError(f"docker sandbox: the engine did not remove container {container[:12]}") from None


async def is_there(engine: Engine, container: str) -> bool:
    try:
        await engine.call(engine.client.api.inspect_container, container)
    except SandboxError as error:
        if engine.is_not_there(error):
            return False
        raise
    return True


def _is_orphan(container: dict[str, Any]) -> bool:
    owner = container.get("Labels") or {}
    if owner.get(_MACHINE) == _machine() != "":
        return _has_dead_owner(owner)
    # The owner is on another machine, or from before a reboot: it cannot be looked up.
    return container.get("State") != "running" and time.time() - _creation_time(container) > _STALE_S


def _has_dead_owner(owner: dict[str, str]) -> bool:
    return owner.get(_MACHINE) == _machine() != "" and _start_time(owner.get(_PID, "")) != owner.get(_START)


def _creation_time(container: dict[str, Any]) -> float:
    time_value = container.get("Created", 0)
    return datetime.fromisoformat(time_value).timestamp() if isinstance(time_value, str) else float(time_value)


@cache
def _machine() -> str:
    """Return an id of this boot and pid namespace; "" without /proc."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
    return ""


def _start_time(pid: int | str) -> str:
    """Return the start time of a process, in kernel ticks; "" if there is no such process."""
    try:
        return Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, ValueError):
        return ""
