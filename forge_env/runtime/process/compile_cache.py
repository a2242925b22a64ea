"""The folder of torch's compiled code."""

from __future__ import annotations

import os
from pathlib import Path

from forge_env.utils.owners import stat_problem

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"


def keep_compiled() -> None:
    """Let the next run find what torch and triton compile in this process.

    By default it lies below TMPDIR, which for an actor is removed with its run. The folder is not changed if the
    variable is set already, or if there is no home that can be written and belongs to this user.

    Torch always keeps precompiled headers below TMPDIR, and compiles them even if it finds the code that they are for.
    They are switched off: in each run they would take an engine on a CPU five seconds.
    """
    os.environ.setdefault(HEADERS, "0")
    if VARIABLE in os.environ:
        return
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forge_env" / "torchinductor"
        cache.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user's home is unknown
        return
    # torch executes the files in it. So it must not be another user's folder, for example below a home that sudo kept.
    if os.access(cache, os.W_OK) and not stat_problem(cache.stat(), is_folder=True):
        os.environ[VARIABLE] = str(cache)
