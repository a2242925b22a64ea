"""The figures of the benchmark of samplers: areas and episodes to a goal, from the files of runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.task_sampling import MixedTasks, area, episodes_to, figures


def run_of(folder: Path, curve: list[tuple[int, float]], *, groups: int = 4) -> Path:
    """A run with an evaluation at each step of the curve, and with so many groups of two episodes in a step."""
    folder.mkdir()
    steps = [{"phase": "train", "step": n + 1, "signal/groups": groups} for n in range(curve[-1][0])]
    records = [*steps, *({"phase": "evaluation", "step": step, "success": value} for step, value in curve)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "config.yaml").write_text("grpo: {n_samples: 2}\n")
    (folder / "summary.json").write_text('{"algorithm": "grpo", "success_after": 1.0, "signal_share": 0.5}')
    return folder


def test_areas_and_episodes_to_a_goal() -> None:
    curve = [(0.0, 0.0), (10.0, 0.5), (20.0, 1.0), (40.0, 1.0)]
    assert (area(curve, 40), area(curve, 10), area(curve, 15)) == pytest.approx((0.75, 0.25, 0.375))
    assert [episodes_to(curve, goal) for goal in (0.0, 0.75, 1.0, 1.1)] == [0.0, 15.0, 20.0, None]


def test_a_sampler_is_compared_with_uniform_by_seed(tmp_path: Path) -> None:
    slow, fast = [(0, 0.0), (20, 1.0)], [(0, 0.0), (10, 1.0), (20, 1.0)]
    runs = {("uniform", seed): run_of(tmp_path / f"uniform-{seed}", slow) for seed in (0, 1)}
    runs |= {("pools", seed): run_of(tmp_path / f"pools-{seed}", fast) for seed in (0, 1)}
    found = figures(runs, ["uniform", "pools"], 0.7)
    assert found["uniform"]["episodes_to_goal"] == pytest.approx([112.0] * 2)  # 8 episodes a step
    assert found["pools"]["episodes_ratio"] == pytest.approx(0.5) and found["pools"]["holds"]
    assert found["pools"]["area_gain"] == pytest.approx(0.25)
    (tmp_path / "never").mkdir()
    runs["pools", 1] = run_of(tmp_path / "never" / "run", [(0, 0.0), (20, 0.5)])
    assert not figures(runs, ["uniform", "pools"], 0.7)["pools"]["holds"]


def test_only_training_tasks_are_wrong_or_hard() -> None:
    right, mixed = (MixedTasks.tasks("train", count=60, seed=1, wrong=w, hard=w) for w in (0.0, 0.4))
    kept = sum(a.id == b.id for a, b in zip(right, mixed, strict=True))
    wrong = [b for a, b in zip(right, mixed, strict=True) if a.prompt == b.prompt and a.target != b.target]
    assert 0 < kept < 30 and 10 < len(wrong) < 40 and len({task.id for task in mixed}) == 60
    assert all("level" not in task.metadata for task in MixedTasks.tasks("test", count=30))
