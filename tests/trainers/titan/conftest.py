"""Trainers of the tests in this folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Makes trainers with the SETTINGS of the test's file, or of test_trainer.py, but for what is given."""
    from tests.trainers.titan import test_trainer
    from trainers.titan.trainer import TitanTrainer

    made: list[TitanTrainer] = []
    settings = getattr(request.module, "SETTINGS", test_trainer.SETTINGS)

    def make(folder: Path, **changes: Any) -> TitanTrainer:
        made.append(TitanTrainer(folder, dataclasses.replace(settings, **changes)))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()
