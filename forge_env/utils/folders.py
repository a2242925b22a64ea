"""Folders that a command makes for its result, and takes away again when there is none."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def make_folders(path: Path) -> list[Path]:
    """Make a folder with its parents; returns those that were not there before, the innermost first."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    return missing


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders from the innermost on, until one is not empty."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return
