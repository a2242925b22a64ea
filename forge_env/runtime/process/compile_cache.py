"""The folder of torch's compiled code."""

from __future__ import annotations

import os

from forge_env.utils.cache_folder import cache_folder

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"


def keep_compiled() -> None:
    """Let the next run find what torch and triton compile in this process.

    By default it lies below TMPDIR, which for an actor is removed with its run. The folder is not changed if the
    variable is set already, or if there is no `cache_folder`.

    Torch always keeps precompiled headers below TMPDIR, and compiles them even if it finds the code that they are for.
    They are switched off: in each run they would take an engine on a CPU five seconds.
    """
    os.environ.setdefault(HEADERS, "0")
    if VARIABLE not in os.environ and (cache := cache_folder("torchinductor")) is not None:
        os.environ[VARIABLE] = str(cache)
