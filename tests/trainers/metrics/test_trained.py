"""trained.jsonl: the advantages that a step really trained with, turn by turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trainers.episodes import episode, group, turn
from trainers.losses import SFTLoss
from trainers.metrics.report import Trained
from trainers.objective.advantages import centred
from trainers.objective.objective import Objective


@pytest.mark.parametrize(
    ("credit", "expected"),
    [
        ("episode", {"0": [0.5, 0.5], "1": [-0.5]}),
        # Turn 1: returns 2 and 1; turn 2 has no sibling to compare with.
        ("turn", {"0": [0.5, 0.0], "1": [-0.5]}),
    ],
)
def test_advantages_are_recorded_as_in_the_samples(
    tmp_path: Path, credit: str, expected: dict[str, list[float]]
) -> None:
    made = group(episode(turn(5, 6, reward=0.5), turn(7, 8, 9), reward=2.0), episode(turn(5, 6), reward=1.0))
    objective = Objective(loss=SFTLoss(), advantages=centred, group_size=2, credit=credit)  # type: ignore[arg-type]
    samples = objective.samples([made])
    trained = Trained(tmp_path / "trained.jsonl")
    trained.write(3, zip(made.valid, (sample.advantage for sample in samples), strict=True))
    assert trained.size() == (tmp_path / "trained.jsonl").stat().st_size
    trained.close()
    lines = [json.loads(line) for line in (tmp_path / "trained.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3, 3]
    assert {line["episode"]: line["advantages"] for line in lines} == expected


def test_a_turn_without_a_target_has_the_advantage_zero(tmp_path: Path) -> None:
    """A single sampled token that nothing precedes cannot be trained on."""
    from trainers.objective.credit import per_target, turn_values

    one = episode(turn(5, prompt=0), turn(6, 7))
    assert turn_values(per_target([9.0, 2.0], one), one) == [0.0, 2.0]
    assert turn_values(1.5, one) == [1.5, 1.5]
