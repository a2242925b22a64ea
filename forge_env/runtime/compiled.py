"""Where what torch compiles is kept."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def keep_compiled() -> None:
    """Let the next run find what torch and triton compile in this process.

    By default it lies below TMPDIR, which for an actor is a folder that goes with its run. Without a home that can be
    written, or where the variable is set already, nothing is changed.
    """
    if VARIABLE in os.environ:
        return
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forge_env" / "torchinductor"
        cache.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: nobody knows this user's home
        return
    if os.access(cache, os.W_OK):
        os.environ[VARIABLE] = str(cache)
