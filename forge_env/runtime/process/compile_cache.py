"""Where what torch compiles is kept."""

from __future__ import annotations

import os
from pathlib import Path

from forge_env.utils.owners import stat_problem

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def keep_compiled() -> None:
    """Let the next run find what torch and triton compile in this process.

    By default it lies below TMPDIR, which for an actor is a folder that goes with its run. Without a home that can be
    written and is this user's, or where the variable is set already, nothing is changed.
    """
    if VARIABLE in os.environ:
        return
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forge_env" / "torchinductor"
        cache.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user's home is unknown
        return
    # torch executes the files in it, so it must not be another user's folder, as below a home that sudo has kept.
    if os.access(cache, os.W_OK) and not stat_problem(cache.stat(), is_folder=True):
        os.environ[VARIABLE] = str(cache)
