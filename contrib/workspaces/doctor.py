"""What `forge-env doctor` says about images: the part, whether it is ready, and what to do about it."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator

from contrib.workspaces.images.build import is_answering
from contrib.workspaces.images.resolve import find_image
from contrib.workspaces.open import open_workspace
from forge_env.core.errors import ForgeError

Part = tuple[str, str, str]


async def parts() -> list[Part]:
    """Try the cache, and look for what pulls and builds images."""
    return [await _cache(), *_packages(), _dockerfiles()]


async def _cache() -> Part:
    """Start a workspace from an image of the cache, which must be writable and on a fit file system."""
    name = "cache of images"
    try:
        async with open_workspace(find_image("host")):
            return name, "yes", ""
    except ForgeError as error:
        return name, "no", str(error)


def _packages() -> Iterator[Part]:
    for name, package in (("images of registries", "dxf"), ("layers in zstd", "zstandard")):
        is_here = importlib.util.find_spec(package) is not None
        lacking = f"the package {package} is not installed: pip install 'forge-env[images]'"
        yield name, "yes" if is_here else "no", "" if is_here else lacking


def _dockerfiles() -> Part:
    whole = is_answering("docker") or shutil.which("buildah")
    reader = (
        "only FROM, WORKDIR, COPY, ADD, RUN, ENV, ARG and USER, without a network: for others install buildah or Docker"
    )
    return "Dockerfiles", "yes" if whole else "in part", "" if whole else reader
