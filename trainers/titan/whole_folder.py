"""Folders that all ranks write together, and that appear complete or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from forge_env.utils.atomic import flush


@contextmanager
def replacement(folder: Path) -> Iterator[Path]:
    """Give every rank the same empty folder, which replaces `folder` when the block ends.

    The first rank must be the last to write. If its block raises, `folder` stays as it was.
    """
    partial = begin_folder(folder)
    try:
        yield partial
        if is_first():
            take_place(partial, folder)
    except BaseException:
        if is_first():
            shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        barrier()


def partial_of(folder: Path) -> Path:
    """The folder in which `folder` is written before it takes its place."""
    return folder.with_name(f".{folder.name}.partial")


def begin_folder(folder: Path) -> Path:
    """Make the empty folder that will take the place of `folder`. Every rank calls it."""
    partial = partial_of(folder)
    if is_first():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    barrier()
    return partial


def take_place(partial: Path, folder: Path) -> None:
    """Rename `partial` to `folder`, and flush the rename to the disk."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():  # a folder cannot be renamed over a full one, so the old one is moved away first
        folder.rename(old)
    partial.rename(folder)
    flush(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def is_first() -> bool:
    """Whether this is the first rank."""
    return dist.get_rank() == 0


def barrier() -> None:
    """Wait for the other ranks."""
    if dist.get_world_size() > 1:
        dist.barrier()


def write_texts(folder: Path, texts: Mapping[str, str] | None) -> None:
    """Write files of text into a folder, by name."""
    for name, text in (texts or {}).items():
        (folder / name).write_text(text, encoding="utf-8")
