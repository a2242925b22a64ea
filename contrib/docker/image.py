"""The image of the docker sandbox: built from `Dockerfile.sandbox` if no image with the same content exists."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from pathlib import Path

from contrib.docker.engine import Engine
from forge_env.core.errors import SandboxError, SandboxUnavailable
from sandboxes.host.controlled import GUEST

DEFAULT_BASE_IMAGE = "python:3.12-slim"
BASE_IMAGE_VARIABLE = "FORGE_ENV_SANDBOX_BASE_IMAGE"
_PACKAGES = Path(__file__).parents[__name__.count(".")]  # an installed wheel has this package below forge_env
_OURS = ("contrib", "forge_env", "sandboxes")
_ENTRY = "contrib.docker.agent"
_DOCKERFILE = "Dockerfile.sandbox"
_IMPORT = re.compile(rf"^\s*(?:from|import) ((?:{'|'.join(_OURS)})\b[\w.]*)(?: import (.+))?$", re.MULTILINE)


async def ensure_image(engine: Engine, base_image: str | None = None) -> str:
    """Build the image if it is missing, and return its name.

    Args: base_image: by default FORGE_ENV_SANDBOX_BASE_IMAGE if it is set, else python:3.12-slim.
    """
    base = base_image or os.environ.get(BASE_IMAGE_VARIABLE) or DEFAULT_BASE_IMAGE
    base_id = await _base_image_id(engine, base)
    context = build_context()
    tag = f"forge-env-sandbox:{hashlib.sha256(base_id.encode() + context).hexdigest()[:16]}"
    try:
        await engine.call(engine.client.images.get, tag)
    except SandboxError as error:
        if not engine.is_missing(error):
            raise
        await _build(engine, base, context, tag)
    return tag


def build_context() -> bytes:
    """Return the build context as a tar archive; equal files give equal bytes."""
    # The real package files import modules that do not run inside; empty ones replace them.
    packages = {f"agent/{name}/__init__.py": b"" for name in _OURS}
    contents = {_DOCKERFILE: _dockerfile().read_bytes(), **packages}
    for path in agent_files():
        contents[f"agent/{path.relative_to(_PACKAGES).as_posix()}"] = path.read_bytes()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(contents):
            entry = tarfile.TarInfo(name)
            entry.size = len(contents[name])
            entry.mode = 0o644
            tar.addfile(entry, io.BytesIO(contents[name]))
    return archive.getvalue()


def agent_files() -> list[Path]:
    """Return the files that run inside: the agent, its imports from this project, and the guest, which runs by path."""
    files = {*GUEST.glob("guest*.py"), Path(__file__).with_name("guest_plain.py")}
    modules = [_ENTRY]
    while modules:
        path = _PACKAGES.joinpath(*modules.pop().split(".")).with_suffix(".py")
        if path.is_file() and path not in files:
            files.add(path)
            modules += _our_imports(path.read_text(encoding="utf-8"))
    return sorted(files)


def _our_imports(source: str) -> list[str]:
    names: list[str] = []
    for module, members in _IMPORT.findall(source):
        names += [module, *(f"{module}.{member}" for member in re.findall(r"\w+", members))]
    return names


def _dockerfile() -> Path:
    """Return its path: the top level of a checkout, or beside this file in an installed wheel."""
    beside = Path(__file__).with_name(_DOCKERFILE)
    return beside if beside.exists() else _PACKAGES / _DOCKERFILE


async def _base_image_id(engine: Engine, base: str) -> str:
    images = engine.client.images
    try:
        return str((await engine.call(images.get, base)).id)
    except SandboxError as error:
        if not engine.is_missing(error):
            raise
    name, colon, tag = base.rpartition(":")
    if not colon or "/" in tag:
        name, tag = base, "latest"
    try:
        return str((await engine.call(images.pull, name, tag=tag)).id)
    except SandboxError as error:
        raise SandboxUnavailable(
            f"docker sandbox: the engine has no image {base!r} and could not pull it ({error.__cause__}); import an "
            f"image with python3 3.11 or newer and name it with {BASE_IMAGE_VARIABLE}."
        ) from error


async def _build(engine: Engine, base: str, context: bytes, tag: str) -> None:
    try:
        await engine.call(
            engine.client.images.build,
            fileobj=io.BytesIO(context),
            custom_context=True,
            dockerfile=_DOCKERFILE,
            buildargs={"BASE_IMAGE": base},
            tag=tag,
            network_mode="none",
            rm=True,
            forcerm=True,
        )
    except SandboxError as error:
        raise SandboxUnavailable(
            f"docker sandbox: the image could not be built from {base!r}: {error.__cause__}"
        ) from error
