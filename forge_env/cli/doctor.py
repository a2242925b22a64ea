"""`forge-env doctor`: what this machine can run, what is missing, and what to install."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
from collections.abc import Iterator
from typing import Any

from forge_env.cli.output import Json, emit, show_table
from forge_env.cli.sandbox import measure
from forge_env.core.errors import ForgeError


def doctor(as_json: Json = False) -> int:
    """Say which sandboxes and images this machine can run, what is missing, and what to install.

    Each backend and the cache are tried. Exits with 1 when no sandbox, or no workspace, can run here.
    """
    measured = asyncio.run(measure())
    parts = [*_backends(measured), asyncio.run(_cache()), *_images()]
    runs = all(any("unavailable" not in one for one in backends.values()) for backends in measured.values())
    if as_json:
        emit({"ok": runs, "parts": parts})
    else:
        rows = [[part["part"], part["ready"], "\n".join(part["notes"])] for part in parts]
        show_table(("part", "ready", "what is missing, and what to do"), rows, whole=(0, 1))
    return 0 if runs else 1


def _part(name: str, ready: str, *notes: str) -> dict[str, Any]:
    return {"part": name, "ready": ready, "notes": [note for note in notes if note]}


def _backends(measured: dict[str, dict[str, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    for kind, backends in measured.items():
        for backend, found in backends.items():
            notes = [found["unavailable"]] if "unavailable" in found else found["missing"]
            ready = "no" if "unavailable" in found else "in part" if notes else "yes"
            yield _part(f"{kind}, {backend}", ready, *notes)


async def _cache() -> dict[str, Any]:
    """Start a workspace from an image of the cache, which must be writable and on a fit file system."""
    from forge_env.utils.targets import load

    name = "cache of images"
    try:
        async with load("sandboxes:open_workspace")(load("sandboxes.images.resolve:find_image")("host")):
            return _part(name, "yes")
    except ForgeError as error:
        return _part(name, "no", str(error))


def _images() -> Iterator[dict[str, Any]]:
    from forge_env.utils.targets import load

    for name, package in (("images of registries", "dxf"), ("layers in zstd", "zstandard")):
        is_here = importlib.util.find_spec(package) is not None
        lacking = f"the package {package} is not installed: pip install 'forge-env[images]'"
        yield _part(name, "yes" if is_here else "no", "" if is_here else lacking)
    whole = load("sandboxes.images.build:is_answering")("docker") or shutil.which("buildah")
    reader = (
        "only FROM, WORKDIR, COPY, ADD, RUN, ENV, ARG and USER, without a network: for others install buildah or Docker"
    )
    yield _part("Dockerfiles", "yes" if whole else "in part", "" if whole else reader)
