"""Monarch's child processes import the helper modules of this folder, and so do the tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)


@pytest.fixture(scope="session", autouse=True)
def helpers_on_the_path() -> Iterator[None]:
    """Put this folder on the PYTHONPATH that the launcher hands on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", HERE, prepend=os.pathsep)
        yield


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken call is told at once: no process dies, so nobody needs to wait for the news of a death."""
    monkeypatch.setattr("forge_env.runtime.calls.answers.GRACE_S", 0.0)
