"""Prepares the repository of a task in a workspace: the files at the base commit, and nothing that came after it.

The snapshot is untrusted, so that git and tar read it only inside of a workspace. The result has one branch; commits
that are no ancestors of the base commit, among them the solution, are not in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from contrib.swe.rows import Instance
from contrib.workspaces.contract import CommandResult, Workspace, WorkspaceFileError, WorkspaceLimits
from contrib.workspaces.env.output import shorten
from contrib.workspaces.images.dockerfile import BuiltImage
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
# Images may lack the program git-upload-pack, which is a command of git as well.
# A clone that only serves to fetch the ancestors of one commit; then the rest of it is gone.
_FROM_GIT = """set -e
git init -q --template= --bare "$1.git"
git -C "$1.git" fetch -q --upload-pack "git upload-pack" "$1" "+refs/*:refs/*"
git -C "$1.git" fetch -q --upload-pack "git upload-pack" "$1" +HEAD:refs/heads/forge-env-head 2>/dev/null || true
[ "$2" != HEAD ] || set -- "$1" refs/heads/forge-env-head "$3"
commit=$(git -C "$1.git" rev-parse --verify --quiet "$2^{commit}") || {
    echo "there is no commit $2 in it" >&2
    exit 3
}
git -C "$1.git" update-ref refs/heads/forge-env-base "$commit"
mkdir -p "$3" && cd "$3"
git init -q --template=
git fetch -q --no-tags --upload-pack "git upload-pack" "$1.git" refs/heads/forge-env-base
git checkout -q -B main FETCH_HEAD
rm -rf "$1" "$1.git" .git/FETCH_HEAD .git/hooks
"""
# The files that an image has beside the tracked ones stay: they may have been built. Later commits are pruned.
_IN_IMAGE = """set -e
cd "$1"
git checkout -q -f --detach "$2"
git for-each-ref --format="delete %(refname)" | git update-ref --stdin
git checkout -q -B main
git reflog expire --expire=now --all
rm -rf .git/FETCH_HEAD .git/ORIG_HEAD .git/hooks
git gc -q --prune=now
"""
# If an archive has one folder at its top, as archives of code hosts do, this folder is taken.
_UNPACK = """set -e
mkdir "$1.d"
tar -xf "$1" -C "$1.d" --no-same-owner
root=$1.d
if [ "$(ls -A "$root" | wc -l)" = 1 ] && [ "$(ls -A "$root")" != .git ] && [ -d "$root/$(ls -A "$root")" ]; then
    root=$root/$(ls -A "$root")
fi
rm -rf "$2"
mkdir -p "$(dirname "$2")"
mv "$root" "$2"
rm -rf "$1" "$1.d"
"""
# What has no history gets one commit, so that agent and verdict can tell what has changed.
_FROM_FILES = """set -e
cd "$1"
if [ ! -e .git ]; then
    git init -q --template= -b main
    git add -A -f
    git commit -q --allow-empty -m base
    rm -rf .git/hooks
fi
git update-ref refs/forge-env/base HEAD
"""
BASE = "refs/forge-env/base"


async def prepare_repository(workspace: Workspace, base: BuiltImage, instance: Instance) -> None:
    """Put the files into a workspace that agent and verdict of a task begin with."""
    try:
        await _place(workspace, instance)
        if instance.setup:
            await _run(workspace, instance, instance.setup, "its setup", env=base.env)
        await _run(workspace, instance, ["sh", "-c", _FROM_FILES, "sh", instance.workdir], "git")
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
            await _run(workspace, instance, ["sh", "-c", _UNPACK, "sh", _STAGED, target], "tar")
            is_git = (await workspace.exec(["test", "-d", f"{target}/.git"], user="0", cwd="/")).ok
            if is_git:
                await _run(workspace, instance, ["mv", target, _STAGED], "mv")
    if is_git:
        await _run(workspace, instance, ["sh", "-c", _FROM_GIT, "sh", _STAGED, commit or "HEAD", target], "git")
    elif commit:
        raise UserError(f"{instance.instance_id} names the commit {commit}, but its snapshot {source} has no history")


async def _check_out(workspace: Workspace, instance: Instance) -> None:
    """Bring the repository that the image has to the base commit."""
    target, commit = instance.workdir, instance.base_commit or "HEAD"
    if not (await workspace.exec(["test", "-d", target], user="0", cwd="/")).ok:
        raise UserError(f"{instance.instance_id} names no snapshot, and its image has no folder {target}")
    if (await workspace.exec(["test", "-d", f"{target}/.git"], user="0", cwd="/")).ok:
        await _run(workspace, instance, ["sh", "-c", _IN_IMAGE, "sh", target, commit], "git")


def _has_history(folder: Path) -> bool:
    """Whether a folder is a git repository. Raises UserError if its history is elsewhere."""
    if (folder / ".git").is_file():
        raise UserError(f"the history of {folder} is in another folder: name that repository, or a git bundle of it")
    return (folder / ".git").is_dir() or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())


async def _run(
    workspace: Workspace,
    instance: Instance,
    command: str | list[str],
    what: str,
    *,
    env: Mapping[str, str] | None = None,
) -> CommandResult:
    cwd = instance.workdir if isinstance(command, str) else "/"
    variables = {**GIT_ENV, **(env or {})}
    result = await workspace.exec(command, user="0", cwd=cwd, env=variables, timeout_s=_SECONDS)
    if not result.ok:
        output = shorten((result.stderr or result.stdout).strip(), 300) or result.status.value
        raise UserError(f"the repository of {instance.instance_id} cannot be prepared, {what} fails: {output}")
    return result


def limits_of(instance: Instance) -> WorkspaceLimits:
    return WorkspaceLimits(
        memory_bytes=instance.memory_mb * _MB, disk_bytes=instance.disk_mb * _MB, cpus=instance.cpus, wall_s=_SECONDS
    )
