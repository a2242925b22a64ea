"""Builds images of Dockerfiles into the cache: by forge_env's own reader, or by Docker or buildah."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from hashlib import file_digest
from pathlib import Path

from contrib.workspaces.contract import UnpackedImage, WorkspaceLimits
from contrib.workspaces.images.cache import in_thread, work_folder
from contrib.workspaces.images.dockerfile import build, read_instructions
from contrib.workspaces.images.layout import Archive
from contrib.workspaces.images.manifest import MACHINE, Config, Descriptor
from contrib.workspaces.images.reference import parse_reference
from contrib.workspaces.images.resolve import is_path
from contrib.workspaces.images.store import add_image
from contrib.workspaces.machines.backend import Workspaces
from forge_env.core.errors import UserError

_MAX_BYTES = 32 * 2**30
_ASK_S = 15.0
_SHOWN = 400


class _Exported:
    """An image of one layer in a tar (`Source`)."""

    def __init__(self, name: str, tar: Path, config: Config) -> None:
        self.what = f"the image {name}"
        self.names: Sequence[str] = ()
        with tar.open("rb") as file:
            digest = f"sha256:{file_digest(file, 'sha256').hexdigest()}"
        self._tar = tar
        self.layers: Sequence[Descriptor] = (Descriptor(digest=digest, size=tar.stat().st_size),)
        config.rootfs.diff_ids[:] = [digest]
        self.config = config.model_dump_json(exclude_none=True).encode()

    def blob(self, layer: Descriptor) -> Iterator[bytes]:
        with self._tar.open("rb") as file:
            while block := file.read(2**18):
                yield block


def choose_builder(folder: Path) -> str:
    """Return the builder for the Dockerfile of a folder: an image of forge_env's own decides, else what is here."""
    first = next(read_instructions(folder / "Dockerfile"), None)
    base = first.rest.split()[0] if first is not None and first.name in ("FROM", "ARG") and first.rest else ""
    if base.partition(":")[0] == "host" or is_path(base):
        return "forge"
    if is_answering("docker"):
        return "docker"
    return "buildah" if shutil.which("buildah") else "forge"


async def build_with_forge(
    workspaces: Workspaces, folder: Path, name: str, *, limits: WorkspaceLimits, timeout_s: float
) -> UnpackedImage:
    """Build a Dockerfile in a workspace, and put the result into the cache as an image of one layer."""
    reference = str(parse_reference(name))
    image = await build(workspaces, folder, limits=limits, timeout_s=timeout_s)
    try:
        with work_folder() as work:
            workspace = await workspaces.open(image.files, limits=limits)
            try:
                await workspace.export(work / "layer.tar", max_bytes=_MAX_BYTES)
            finally:
                await workspace.close()
            run = {
                "Env": [f"{name}={value}" for name, value in image.env.items()],
                "WorkingDir": image.workdir,
                "User": image.user,
            }
            content = {"architecture": MACHINE, "os": "linux", "config": run, "rootfs": {"diff_ids": []}}
            source = await asyncio.to_thread(_Exported, reference, work / "layer.tar", Config.model_validate(content))
            return await in_thread(add_image, source, names=[reference])
    finally:
        await image.close()


def build_with_program(program: str, folder: Path, name: str, *, timeout_s: float) -> UnpackedImage:
    """Build a Dockerfile by docker or buildah, and unpack the result into the cache. The program keeps it as well."""
    reference = str(parse_reference(name))
    if not shutil.which(program) or (program == "docker" and not is_answering(program)):
        raise UserError(f"{program} is not installed, or its daemon does not answer: use --with forge")
    if not (folder / "Dockerfile").is_file():
        raise UserError(f"there is no Dockerfile in {folder}")
    with work_folder() as work:
        archive = work / "image.tar"
        if program == "docker":
            commands = [
                ["docker", "build", "-t", reference, str(folder)],
                ["docker", "save", "-o", str(archive), reference],
            ]
        else:
            commands = [
                ["buildah", "bud", "-t", reference, str(folder)],
                ["buildah", "push", reference, f"docker-archive:{archive}:{reference}"],
            ]
        for command in commands:
            _run(command, timeout_s)
        return add_image(Archive(archive), names=[reference])


def _run(command: list[str], timeout_s: float) -> None:
    """Run a program with all that it starts in a process group of its own. Raises UserError with its last words."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        words = " ".join(output.read().decode("utf-8", "replace").split())[-_SHOWN:]
    if code is None:
        raise UserError(f"`{' '.join(command[:2])}` did not end in {timeout_s:g} s, the limit: {words}")
    if code:
        raise UserError(f"`{' '.join(command[:2])}` failed with exit code {code}: {words}")


def is_answering(program: str) -> bool:
    if not shutil.which(program):
        return False
    try:
        return subprocess.run([program, "info"], capture_output=True, timeout=_ASK_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False
