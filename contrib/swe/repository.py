"""Prepares the repository of a task in a workspace: the files at the base commit, and nothing that came after it.

The snapshot is untrusted, so that git and tar read it only inside of a workspace. The result has one branch; commits
that are not ancestors of the base commit, among them the solution, are not in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from contrib.swe.rows import Instance
from contrib.workspaces.contract import WorkspaceFileError, WorkspaceLimits
from contrib.workspaces.env.cheats import read_scripts
from contrib.workspaces.env.output import shorten
from contrib.workspaces.images.dockerfile import BuiltImage
from contrib.workspaces.machines.workspace import Workspace
from forge_env.core.errors import UserError

_MB = 2**20
_SECONDS = 600.0
_STAGED = "/tmp/forge_env_snapshot"
GIT_ENV = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "task",
    "GIT_AUTHOR_EMAIL": "task@localhost",
    "GIT_COMMITTER_NAME": "task",
    "GIT_COMMITTER_EMAIL": "task@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
}
_SCRIPTS = read_scripts(Path(__file__).with_name("repository.sh"))
BASE = "refs/forge-env/base"


def by_script(name: str, *arguments: str) -> list[str]:
    return ["sh", "-c", _SCRIPTS[name], "sh", *arguments]


async def prepare_repository(workspace: Workspace, base: BuiltImage, instance: Instance) -> None:
    """Put the files into a workspace that agent and verdict of a task begin with."""
    try:
        await _place(workspace, instance)
        if instance.setup:
            await _run(workspace, instance, instance.setup, "its setup", env=base.env)
        await _run(workspace, instance, by_script("base", instance.workdir), "git")
    except WorkspaceFileError as error:
        raise UserError(f"the snapshot of {instance.instance_id} cannot be copied: {error}") from error


async def _place(workspace: Workspace, instance: Instance) -> None:
    source, target, commit = Path(instance.snapshot), instance.workdir, instance.base_commit
    if not instance.snapshot:
        await _check_out(workspace, instance)
        return
    if source.is_dir():
        is_git = await asyncio.to_thread(_has_history, source)
        await workspace.put_tree(source, _STAGED if is_git else target)
    else:
        data = await asyncio.to_thread(source.read_bytes)
        await workspace.put(_STAGED, data)
        is_git = data.startswith(b"# v") and b"git bundle" in data[:32]
        if not is_git:
            await _run(workspace, instance, by_script("unpack", _STAGED, target), "tar")
            is_git = (await workspace.exec(["test", "-d", f"{target}/.git"], user="0", cwd="/")).ok
            if is_git:
                await _run(workspace, instance, ["mv", target, _STAGED], "mv")
    if is_git:
        await _run(workspace, instance, by_script("from git", _STAGED, commit or "HEAD", target), "git")
    elif commit:
        raise UserError(f"{instance.instance_id} names the commit {commit}, but its snapshot {source} has no history")


async def _check_out(workspace: Workspace, instance: Instance) -> None:
    """Bring the repository that the image has to the base commit."""
    target, commit = instance.workdir, instance.base_commit or "HEAD"
    if not (await workspace.exec(["test", "-d", target], user="0", cwd="/")).ok:
        raise UserError(f"{instance.instance_id} names no snapshot, and its image has no folder {target}")
    if (await workspace.exec(["test", "-d", f"{target}/.git"], user="0", cwd="/")).ok:
        await _run(workspace, instance, by_script("in an image", target, commit), "git")


def _has_history(folder: Path) -> bool:
    """Whether a folder is a git repository. Raises UserError if its history is elsewhere."""
    if (folder / ".git").is_file():
        raise UserError(f"the history of {folder} is in another folder: name that repository, or a git bundle of it")
    return (folder / ".git").is_dir() or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())


async def _run(
    workspace: Workspace, instance: Instance, command: str | list[str], what: str, *, env: Mapping[str, str] = {}
) -> None:
    cwd = instance.workdir if isinstance(command, str) else "/"
    result = await workspace.exec(command, user="0", cwd=cwd, env={**GIT_ENV, **env}, timeout_s=_SECONDS)
    if not result.ok:
        output = shorten((result.stderr or result.stdout).strip(), 300) or result.status.value
        raise UserError(f"the repository of {instance.instance_id} cannot be prepared, {what} fails: {output}")


def limits_of(instance: Instance) -> WorkspaceLimits:
    return WorkspaceLimits(
        memory_bytes=instance.memory_mb * _MB, disk_bytes=instance.disk_mb * _MB, cpus=instance.cpus, wall_s=_SECONDS
    )
