"""What is left of an agent's workspace for its verdict: copies of files, in a temporary folder of this machine."""

from __future__ import annotations

import asyncio
import errno
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contrib.workspaces.contract import CommandResult, WorkspaceFileError
from contrib.workspaces.machines.workspace import Workspace
from forge_env.core.errors import EnvError


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A file or folder to copy."""

    path: str
    """Absolute, in the workspace."""
    exclude: Sequence[str] = ()
    """Of a folder; as for `Workspace.get_tree`."""


@dataclass(slots=True, kw_only=True)
class Copies:
    """Files and folders that were copied out of a workspace."""

    by_path: Mapping[str, Path] = field(default_factory=dict)
    """Path in the workspace -> the copy, all in one temporary folder."""
    left_out: tuple[str, ...] = ()
    """Links and special files that were not copied."""
    problem: str = ""
    """Why nothing was copied: a link, a special file, or too much."""

    async def close(self) -> None:
        for copy in list(self.by_path.values())[:1]:
            await asyncio.to_thread(shutil.rmtree, copy.parent, ignore_errors=True)


async def copy_out(workspace: Workspace, places: Sequence[Wanted], *, skip: bool = False) -> Copies:
    """Copy files and folders out of a workspace after its processes have ended; what is not there is left out.

    Args:
        skip: leave out links and special files; otherwise they are a problem.
    """
    folder = Path(tempfile.mkdtemp(prefix="forge-env-copies."))
    by_path: dict[str, Path] = {}
    left_out: list[str] = []
    try:
        for number, one in enumerate(places):
            left_out += await _copy(workspace, one, folder / str(number), by_path, skip=skip)
    except WorkspaceFileError as error:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return Copies(problem=f"{one.path} cannot be copied: {error}")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if not by_path:
        folder.rmdir()
    return Copies(by_path=by_path, left_out=tuple(left_out))


async def _copy(
    workspace: Workspace, place: Wanted, target: Path, by_path: dict[str, Path], *, skip: bool
) -> list[str]:
    """Copy one; return what was left out of it."""
    try:
        target.write_bytes(await workspace.get(place.path))
    except WorkspaceFileError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return []  # there is nothing, which the verifier has to judge
        if error.errno == errno.EISDIR:
            omissions = await workspace.get_tree(place.path, target, skip=skip, exclude=place.exclude)
            by_path[place.path] = target
            return [f"{place.path.rstrip('/')}/{path}" for path in omissions]
        if skip and error.errno in (errno.ELOOP, errno.EINVAL, errno.ENXIO):
            return [place.path]
        raise
    by_path[place.path] = target
    return []


async def run_program(workspace: Workspace, command: Sequence[str]) -> CommandResult:
    """Run a program of the image as root. Raises EnvError if it does not start."""
    result = await workspace.exec(command, user="0", cwd="/")
    if not result.started:
        raise EnvError(f"a program that every image needs did not start: {result.stderr.strip()[-200:]}")
    return result


async def put_texts(workspace: Workspace, files: Mapping[str, str], *, user: str | int | None = None) -> None:
    """Write texts to absolute paths in a workspace, all of them in one step. Raises as `Workspace.put`."""
    if len(files) == 1:
        [(path, text)] = files.items()
        await workspace.put(path, text.encode("utf-8", "replace"), user=user)
    elif files:
        with tempfile.TemporaryDirectory(prefix="forge-env-texts.") as folder:
            try:
                for path, text in files.items():
                    target = Path(folder, path.lstrip("/"))
                    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                    target.write_bytes(text.encode("utf-8", "replace"))
                    target.chmod(0o644)
            except OSError as error:
                raise WorkspaceFileError(f"{path!r:.200} cannot be written: {error.strerror}") from error
            await workspace.put_tree(Path(folder), "/", user=user)


async def copy_in(workspace: Workspace, copies: Copies) -> None:
    """Put copies back to their places, in another workspace; other files there stay."""
    for path, copy in copies.by_path.items():
        if copy.is_dir():
            await workspace.put_tree(copy, path)
        else:
            await workspace.put(path, copy.read_bytes())
