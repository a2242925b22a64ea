"""The folder for temporary files of this process and its children."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def temporary_files_in(folder: str) -> Iterator[None]:
    """Let this process, and every process that it starts meanwhile, keep temporary files in an existing folder."""
    tempdir, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    try:
        yield
    finally:
        tempfile.tempdir = tempdir
        if variable is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = variable
