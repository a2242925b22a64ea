"""What several tests share: a tiny model folder, made once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Qwen3 whose tokenizer knows the text of the math environment."""
    from forge_env.factory import make
    from forge_env.types import EpisodeLimits
    from trainers.models import make_model

    folder = tmp_path_factory.mktemp("models") / "tiny"
    asyncio.run(make_model(folder, make("math"), seed=0, limits=EpisodeLimits()))
    return folder
