"""Removes images from the cache that nobody uses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from contrib.workspaces.images.cache import PRIVATE, images_folder, remove, sweep
from contrib.workspaces.images.reference import full_name, short_name
from contrib.workspaces.images.store import find_named, forget_name, named_images, stored_images
from forge_env.core.errors import UserError, nearest


@dataclass(slots=True)
class Pruned:
    removed: list[str] = field(default_factory=list)
    """Names of images, or ids of those without a name."""
    in_use: list[str] = field(default_factory=list)
    """Images that were to go, and stay as long as a process uses them."""
    bytes: int = 0
    """Of the files that are gone; files of layers that other images have, too, stay."""


def prune(names: Iterable[str] = (), *, everything: bool = False) -> Pruned:
    """Remove images without a name, layers that no image has, and what killed processes have left.

    Args:
        names: further images that are to go, by name or id; one that has another name as well stays under that.
        everything: all images, with those made of this machine's programs.
    """
    pruned, unwanted = Pruned(), _unwanted(names)
    for stored in stored_images():
        left = [name for name in stored.names if name not in unwanted] if stored.id not in unwanted else []
        if left and not everything:
            _forget(stored.names, unwanted)
            continue
        shown = ", ".join(map(short_name, stored.names)) or stored.id[:12]
        if remove(images_folder() / "images" / stored.id):
            _forget(stored.names, stored.names)
            pruned.removed.append(shown)
        else:
            pruned.in_use.append(shown)
    for folder in sorted(images_folder().glob("host-*")) if everything else ():
        size = _size(folder)
        if remove(folder):
            pruned.removed.append(folder.name)
            pruned.bytes += size
        else:
            pruned.in_use.append(folder.name)
    needed = {layer for stored in stored_images() for layer in stored.layers}
    for folder in sorted((images_folder() / "layers").glob("[0-9a-f]*")):
        if folder.name not in needed and (size := _layer_size(folder)) >= 0 and remove(folder):
            pruned.bytes += size
    for place in ("", *PRIVATE):
        sweep(images_folder() / place)
    return pruned


def _unwanted(names: Iterable[str]) -> set[str]:
    """Return whole names and ids. Raises UserError for one that there is not."""
    known, unwanted = named_images(), set()
    for name in names:
        if full_name(name) in known:
            unwanted.add(full_name(name))
        elif (image := find_named(name)) is not None:
            unwanted.add(image.root.parent.name)
        else:
            raise UserError(f"there is no image {name!r} in the cache. {nearest(name, map(short_name, known))}")
    return unwanted


def _forget(names: Iterable[str], unwanted: Iterable[str]) -> None:
    for name in set(names) & set(unwanted):
        forget_name(name)


def _layer_size(folder: Path) -> int:
    try:
        return int(json.loads((folder / "layer.json").read_text())["bytes"])
    except (OSError, ValueError, KeyError):
        return 0


def _size(folder: Path) -> int:
    return sum(os.lstat(os.path.join(base, name)).st_size for base, _, names in os.walk(folder) for name in names)
