"""What vLLM's cache of compiled graphs is keyed by, where runs would differ in it for no reason."""

from __future__ import annotations

import fcntl
import os

_FIRST = 512  # descriptors below are for everybody else


def same_name(folder: str) -> str:
    """Another name of a folder, which is the same for the first folder in every process; it holds in this one only.

    A model's name is in the key, beside its config: one that is made anew in each run's folder, with the same config,
    would be compiled anew in each run. What cannot be opened as a folder keeps its name.
    """
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return folder
    try:
        return f"/proc/self/fd/{fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST)}"
    except OSError:  # as many descriptors are not allowed
        return folder
    finally:
        os.close(descriptor)
