"""Finds an image by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from contrib.workspaces.contract import UnpackedImage
from contrib.workspaces.images.host_image import host_image
from contrib.workspaces.images.layout import Archive, Layout, is_layout
from contrib.workspaces.images.manifest import Source
from contrib.workspaces.images.reference import parse_reference
from contrib.workspaces.images.store import add_image, find_named
from forge_env.core.errors import UserError


def find_image(name: str, *, pull: bool = False) -> UnpackedImage:
    """Return the image of a name; may take seconds the first time.

    Args:
        name: "host" is this machine's own programs and Python, "host:pytest,numpy" with installed packages. A path
            with a "/" at its beginning or after dots is a folder with a root file system, a folder in the OCI layout,
            or an archive of `docker save`; "PATH:TAG" is one of several images there. Anything else is the name or the
            id of an image that was pulled or built.
        pull: get it from its registry if it is not on this machine; otherwise no network is used.
    """
    kind, _, rest = name.partition(":")
    if kind == "host":
        return host_image(tuple(part for part in rest.split(",") if part and part != "latest"))
    if is_path(name):
        path, tag = split_path(name)
        if path.is_dir() and not is_layout(path) and not tag:
            return UnpackedImage(root=path)
        return add_image(source_at(name))
    image = find_named(name)
    if image is None and pull:
        return pull_image(name)
    if image is None:
        raise UserError(
            f"there is no image {name!r} on this machine: pull it (forge-env image pull {name}), or name host, "
            "host:PACKAGES, the folder of a root file system or an OCI layout, or an archive of `docker save`"
        )
    return image


def pull_image(image: str, *, name: str = "", progress: Callable[[str], None] = lambda line: None) -> UnpackedImage:
    """Unpack an image into the cache, and give it its name: from its registry, or from a path.

    Args:
        image: the name of an image of a registry; a path of an OCI layout or an archive of `docker save`.
        name: a further name; an image at a path has those that it has there.
    """
    names = [str(parse_reference(name))] if name else []
    if is_path(image):
        source = source_at(image)
        return add_image(source, names=[*names, *source.names], progress=progress)
    reference = parse_reference(image)
    from contrib.workspaces.images.registry import registry_image  # its packages are an extra

    with registry_image(reference) as source:
        return add_image(source, names=[*names, *source.names], progress=progress)


def source_at(name: str) -> Source:
    """Return the image at a path, to be unpacked."""
    path, tag = split_path(name)
    if is_layout(path):
        return Layout(path, tag)
    if path.is_dir():
        raise UserError(
            f"{path} is no OCI layout (it has no index.json): a root file system needs no pull, name its path"
        )
    return Archive(path, tag)


def is_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~"))


def split_path(name: str) -> tuple[Path, str]:
    """Return the path and the tag of "PATH" or "PATH:TAG"."""
    whole = Path(name).expanduser().absolute()
    if whole.exists():
        return whole, ""
    at = name.find(":")
    while at > 0:
        if (path := Path(name[:at]).expanduser().absolute()).exists():
            return path, name[at + 1 :]
        at = name.find(":", at + 1)
    raise UserError(f"there is no folder {whole} with the root file system of an image, and no image in a file there")
