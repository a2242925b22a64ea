"""A disk that is full, as the kernel makes one."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: the kernel refuses the write, as it does on a full disk.

    No bytecode is written meanwhile: some versions of Python keep a file of it that was cut, and fail on it later.
    """
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_bytecode
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
