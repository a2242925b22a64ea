"""A cache of images for each test."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a new cache of images."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FORGE_ENV_IMAGES", str(folder))
    return folder
