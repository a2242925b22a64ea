"""Tests of this folder need a GPU and the stack of the gpu extra: pytest -m gpu tests/gpu."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def ends_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the session as Ctrl-C does, so that the run that a test has started ends too."""
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.exit("SIGTERM", returncode=128 + signal.SIGTERM))
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def qwen3(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in the shape of Qwen3-0.6B, with random weights."""
    from benchmarks.gpu.models import make_random_model

    folder = tmp_path_factory.mktemp("models") / "qwen3"
    make_random_model("0.6B", tiny_model, folder)
    return folder
