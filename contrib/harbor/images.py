"""The images of Harbor tasks: found by name, or built from a Dockerfile."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from contrib.harbor.config import Environment, resolved
from contrib.workspaces.contract import Network, WorkspaceLimits
from contrib.workspaces.images.dockerfile import BuiltImage, build, built_from, with_settings
from contrib.workspaces.images.resolve import find_image
from contrib.workspaces.machines.backend import Workspaces
from forge_env.core.errors import UserError

_MB = 2**20
_OF_BUILDS: Mapping[str, Any] = {"disk_bytes": 10 * 2**30, "files": 1_000_000}
"""What a build may write: in Harbor it has the engine's disk, whatever the task asks for."""


async def make_image(workspaces: Workspaces, folder: Path, environment: Environment, network: Network) -> BuiltImage:
    """Find or build the image of a task or of its verifier.

    Args:
        folder: with the Dockerfile.
        environment: its section.
        network: of the build.
    """
    env = resolved(environment.env, where=f"[environment.env] of {folder.parent.name}")
    if environment.docker_image is not None:
        image = built_from(await asyncio.to_thread(find_image, environment.docker_image, pull=network.is_public))
    elif (folder / "Dockerfile").is_file():
        limits, seconds = replace(limits_of(environment), **_OF_BUILDS), environment.build_timeout_sec
        image = await build(workspaces, folder, limits=limits, timeout_s=seconds, network=network)
    else:
        raise UserError(f"{folder.parent} names no docker_image, and {folder} has no Dockerfile")
    return with_settings(image, env=env, workdir=environment.workdir)


def limits_of(environment: Environment) -> WorkspaceLimits:
    """The limits that a task asks for; the defaults of workspaces if it asks for none."""
    default = WorkspaceLimits()
    return WorkspaceLimits(
        memory_bytes=environment.memory_mb * _MB if environment.memory_mb else default.memory_bytes,
        disk_bytes=environment.storage_mb * _MB if environment.storage_mb else default.disk_bytes,
        cpus=environment.cpus or default.cpus,
    )
