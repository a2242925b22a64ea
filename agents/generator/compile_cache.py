"""A stable path of the model, so that vLLM finds its compiled graphs again in the next run."""

from __future__ import annotations

import fcntl
import os

_FIRST_DESCRIPTOR = 512  # lower descriptors are left to the rest of the process


def stable_path(folder: str) -> str:
    """Return a path of `folder` that does not contain its name; it is valid in this process only.

    vLLM's compile cache has the model's path in its key, beside the config. A model that every run writes to a new
    folder would be compiled again in every run. The first folder of every process gets the same path. A name that is
    no folder is returned unchanged.
    """
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return folder
    try:
        return f"/proc/self/fd/{fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)}"
    except OSError:  # the limit on descriptors is too low
        return folder
    finally:
        os.close(descriptor)
