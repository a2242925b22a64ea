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
    outcome, ids = Pruned(), _ids_to_remove(names)
    for image in stored_images():
        rest = [name for name in image.names if name not in ids] if image.id not in ids else []
        if rest and not everything:
            _forget(image.names, ids)
            continue
        text = ", ".join(map(short_name, image.names)) or image.id[:12]
        if remove(images_folder() / "images" / image.id):
            _forget(image.names, image.names)
            outcome.removed.append(text)
        else:
            outcome.in_use.append(text)
    for folder in sorted(images_folder().glob("host-*")) if everything else ():
        size = _size(folder)
        if remove(folder):
            outcome.removed.append(folder.name)
            outcome.bytes += size
        else:
            outcome.in_use.append(folder.name)
    layers = {layer for image in stored_images() for layer in image.layers}
    for folder in sorted((images_folder() / "layers").glob("[0-9a-f]*")):
        if folder.name not in layers and (size := _layer_size(folder)) >= 0 and remove(folder):
            outcome.bytes += size
    for place in ("", *PRIVATE):
        sweep(images_folder() / place)
    return outcome


def _ids_to_remove(names: Iterable[str]) -> set[str]:
    """Return whole names and ids. Raises UserError for one that there is not."""
    image_names, ids = named_images(), set()
    for name in names:
        if full_name(name) in image_names:
            ids.add(full_name(name))
        elif (image := find_named(name)) is not None:
            ids.add(image.root.parent.name)
        else:
            raise UserError(f"there is no image {name!r} in the cache. {nearest(name, map(short_name, image_names))}")
    return ids


def _forget(names: Iterable[str], ids: Iterable[str]) -> None:
    for name in set(names) & set(ids):
        forget_name(name)


def _layer_size(folder: Path) -> int:
    try:
        return int(json.loads((folder / "layer.json").read_text())["bytes"])
    except (OSError, ValueError, KeyError):
        return 0


def _size(folder: Path) -> int:
    return sum(os.lstat(os.path.join(base, name)).st_size for base, _, names in os.walk(folder) for name in names)
