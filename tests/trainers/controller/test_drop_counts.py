"""DropCounts: rows end as they should, and a checkpoint restores every count."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from forge_env.core.errors import ServiceError
from forge_env.core.types import Outcome
from tests.trainers.controller.test_loop import group
from trainers.controller.drop_counts import MAX_FAULTS_IN_A_ROW, DropCounts


def test_a_checkpoint_restores_every_count() -> None:
    drops = DropCounts()
    drops.add_outcomes(group(0, [Outcome.TIMEOUT, Outcome.ENV_FAULT, Outcome.TIMEOUT]))
    drops.drop_flat(0.5, most=0)
    drops.drop_faulty("gone")
    restored = DropCounts(**json.loads(json.dumps(asdict(drops))))
    assert restored == drops and restored.outcomes == {"timeout": 2, "env_fault": 1}
    assert restored.metrics == {"episodes_timed_out": 2, "groups_dropped": 1, "groups_without_signal": 1}


def test_a_flat_group_ends_a_row_of_faulty_ones_and_not_the_other_way_round() -> None:
    drops = DropCounts()
    for _ in range(MAX_FAULTS_IN_A_ROW - 1):
        drops.drop_faulty("gone")
    drops.drop_flat(0.0, most=2)
    drops.drop_faulty("gone")
    assert (drops.faulty_in_a_row, drops.flat_in_a_row) == (1, 1)
    with pytest.raises(ServiceError, match="2 groups in a row were dropped"):
        drops.drop_flat(0.0, most=2)
    drops.keep()
    assert (drops.faulty_in_a_row, drops.flat_in_a_row) == (0, 0)
