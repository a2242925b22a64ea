"""Folders of what the next run finds again."""

from __future__ import annotations

import os
from pathlib import Path

from forge_env.utils.owners import stat_problem


def cache_folder(name: str) -> Path | None:
    """A folder in the user's cache; None if there is no home that can be written and belongs to this user.

    What is in it is believed, or executed. So it must not be another user's, for example below a home that sudo kept.
    """
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forge_env" / name
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user's home is unknown
        return None
    return folder if os.access(folder, os.W_OK) and not stat_problem(folder.stat(), is_folder=True) else None
