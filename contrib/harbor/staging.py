"""Prepares a workspace for a step of a Harbor task: its files, its set-up, and the wait until it is healthy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from contrib.harbor.config import Environment, HarborTask, Healthcheck, Step, resolved
from contrib.workspaces.contract import CommandResult, Network, WorkspaceLimits
from contrib.workspaces.images.cache import in_thread
from contrib.workspaces.images.dockerfile import BuiltImage, build, built_from, with_settings
from contrib.workspaces.images.resolve import find_image
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.machines.workspace import Workspace
from forge_env.core.errors import EnvError, UserError


def by_bash(*arguments: str) -> list[str]:
    """A call of bash, which runs all scripts in Harbor; of sh in an image without bash."""
    return ["sh", "-c", 'shell=$(command -v bash) || shell=sh; exec "$shell" "$@"', "sh", *arguments]


async def begin_step(
    workspace: Workspace, task: HarborTask, step: Step | None, image: BuiltImage, user: str | int | None
) -> None:
    """Stage the files of a step, and wait until the workspace is healthy."""
    if step is not None and (problem := await _set_up(workspace, task, step, image, user)):
        raise EnvError(f"setup.sh of the step {step.name} of {task.name} fails: {problem}")
    if step is task.steps[0] and (check := task.config.environment.healthcheck):
        await _wait_until_healthy(workspace, task, check, image, None)
    if step is not None and step.healthcheck:
        await _wait_until_healthy(workspace, task, step.healthcheck, image, user)


async def set_up_again(
    fork: Workspace, task: HarborTask, steps: Sequence[Step | None], image: BuiltImage, user: str | int | None
) -> None:
    """Let a fresh workspace begin as the agent's did: with the files of these steps, and what their setup.sh changes.

    One may fail here: in the agent's workspace it had what the agent had made before.
    """
    for step in steps:
        if step is not None:
            await _set_up(fork, task, step, image, user)
            await fork.end_processes()


async def _set_up(workspace: Workspace, task: HarborTask, step: Step, image: BuiltImage, user: str | int | None) -> str:
    """Put the files of a step into a workspace, and run its setup.sh; return the last words of one that fails."""
    folder, workdir = task.folder / "steps" / step.name / "workdir", image.workdir
    if folder.is_dir():
        await workspace.put_tree(folder, workdir, user=user)
    if not (folder / "setup.sh").is_file():
        return ""
    result = await workspace.exec(by_bash(f"{workdir}/setup.sh"), env=image.env, cwd=workdir, user=user)
    return "" if result.ok else _reason(result)


async def _wait_until_healthy(
    workspace: Workspace, task: HarborTask, check: Healthcheck, image: BuiltImage, user: str | int | None
) -> None:
    """Run a check until it succeeds; failures count after the start period, and `retries` of them are the end."""
    start, failures = time.monotonic(), 0
    while True:
        is_early = time.monotonic() - start < check.start_period_sec
        result = await workspace.exec(
            by_bash("-c", check.command),
            env=image.env,
            cwd=image.workdir,
            timeout_s=max(check.timeout_sec, 0.1),
            user=user,
        )
        if result.ok:
            return
        failures += not is_early
        if failures >= max(check.retries, 1):
            raise EnvError(f"the healthcheck of {task.name} fails: {check.command}: {_reason(result)}")
        await asyncio.sleep(max(check.start_interval_sec if is_early else check.interval_sec, 0.0))


def _reason(result: CommandResult) -> str:
    return (result.stderr or result.stdout).strip()[-300:] or f"{result.status.value} {result.exit_code or ''}".strip()


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
        image = built_from(await in_thread(find_image, environment.docker_image, pull=network.is_public))
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
