"""The images of Harbor tasks: found by name, or built from a Dockerfile, and shared by the episodes that use them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from contrib.harbor.config import Environment, resolved
from contrib.workspaces.contract import Network, WorkspaceLimits
from contrib.workspaces.env.bases import Bases
from contrib.workspaces.images.dockerfile import BuiltImage, build, built_from, with_settings
from contrib.workspaces.images.resolve import find_image
from contrib.workspaces.open import open_workspaces
from forge_env.core.errors import UserError

_MB = 2**20
_OF_BUILDS: Mapping[str, Any] = {"disk_bytes": 10 * 2**30, "files": 1_000_000}
"""What a build may write: in Harbor it has the engine's disk, whatever the task asks for."""


class Images(Bases):
    """The images of tasks. From `open_images`."""

    def of(
        self, folder: Path, environment: Environment, digest: str, network: Network
    ) -> AbstractAsyncContextManager[BuiltImage]:
        """Give the image of a task or of its verifier during a block.

        Args:
            folder: with the Dockerfile.
            environment: its section.
            digest: of the task.
            network: of the build.
        """
        key = (digest, str(folder), environment.model_dump_json(), network)
        return self.lease(key, lambda: self._make(folder, environment, network))

    async def _make(self, folder: Path, environment: Environment, network: Network) -> BuiltImage:
        env = resolved(environment.env, where=f"[environment.env] of {folder.parent.name}")
        if environment.docker_image is not None:
            image = built_from(await asyncio.to_thread(find_image, environment.docker_image, pull=network.is_public))
        elif (folder / "Dockerfile").is_file():
            limits, seconds = replace(limits_of(environment), **_OF_BUILDS), environment.build_timeout_sec
            image = await build(self.workspaces, folder, limits=limits, timeout_s=seconds, network=network)
        else:
            raise UserError(f"{folder.parent} names no docker_image, and {folder} has no Dockerfile")
        return with_settings(image, env=env, workdir=environment.workdir)


@asynccontextmanager
async def open_images(backend: str = "auto") -> AsyncIterator[Images]:
    """Open a backend of workspaces and the images that are made with it.

    Args:
        backend: of `contrib.workspaces.open.open_workspaces`.
    """
    async with open_workspaces(backend) as workspaces:
        images = Images(workspaces)
        try:
            yield images
        finally:
            await images.close()


def limits_of(environment: Environment) -> WorkspaceLimits:
    """The limits that a task asks for; the defaults of workspaces if it asks for none."""
    default = WorkspaceLimits()
    return WorkspaceLimits(
        memory_bytes=environment.memory_mb * _MB if environment.memory_mb else default.memory_bytes,
        disk_bytes=environment.storage_mb * _MB if environment.storage_mb else default.disk_bytes,
        cpus=environment.cpus or default.cpus,
    )
