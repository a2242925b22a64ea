"""Monarch's child processes import the helpers of this folder and of the runtime's tests, and so do the tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDERS = [str(Path(__file__).parent), str(Path(__file__).parents[3] / "tests" / "forge_env" / "runtime")]
sys.path[:0] = FOLDERS


@pytest.fixture(scope="session", autouse=True)
def helpers_on_the_path() -> Iterator[None]:
    """Put these folders on the PYTHONPATH that the launcher hands on."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in FOLDERS:
            patch.setenv("PYTHONPATH", folder, prepend=os.pathsep)
        yield
