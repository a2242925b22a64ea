"""`forge-env diff`: pairs are the same attempts at the same tasks; the statistics are those of the tasks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from forge_env.cli.main import main
from forge_env.core.episode import Episode, write_jsonl
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome, Task
from forge_env.evaluation.compare import compare
from forge_env.utils.statistics import share_difference


def episode(task: str, attempt: int, reward: float | None, *, seed: int = 0) -> Episode:
    outcome = Outcome.INFRA_FAULT if reward is None else Outcome.SCORED
    made = Task(prompt=(), id=task)
    return Episode(task=made, turns=(), outcome=outcome, reward=reward, id=f"{task}/{attempt}", seed=seed)


def write(path: Path, rewards: dict[str, list[float | None]], *, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_jsonl(path, [episode(t, i, r, seed=seed) for t, values in rewards.items() for i, r in enumerate(values)])
    return path


def test_only_what_both_did_is_compared(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", {"x": [1.0, 0.0], "y": [0.0, None], "z": [1.0, 1.0], "only": [1.0]})
    second = write(tmp_path / "b.jsonl", {"z": [1.0, 1.0], "y": [1.0, 1.0], "x": [1.0, 1.0]})
    success, reward = compare(first, second)
    assert (success.measure, reward.measure) == ("success", "reward")
    assert (success.tasks, success.episodes, success.unpaired) == (3, 5, (1, 1))
    assert (success.first, success.second) == (pytest.approx(1.5 / 3), 1.0)
    difference = share_difference([1.0, 1.0, 1.0], [0.5, 0.0, 1.0], (5, 5))
    assert success.paired.difference == replace(difference, low=min(difference.low, 0.0))
    assert (success.paired.wins, success.paired.losses, success.paired.ties) == (2, 0, 1)
    assert success.paired.p_value == 0.5


def test_a_time_out_is_an_attempt_that_failed_and_has_no_reward_to_compare(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    slow = replace(episode("x", 0, None), outcome=Outcome.TIMEOUT)
    write_jsonl(first, [episode("x", 0, 1.0), episode("y", 0, 0.0)])
    write_jsonl(second, [slow, episode("y", 0, 0.0)])
    success, reward = compare(first, second)
    assert (success.episodes, success.first, success.second) == (2, 0.5, 0.0)
    assert (reward.episodes, reward.first, reward.second) == (1, 0.0, 0.0)
    write_jsonl(tmp_path / "c.jsonl", [slow])
    assert [result.measure for result in compare(first, tmp_path / "c.jsonl")] == ["success"]


def test_training_runs_are_compared_phase_by_phase(tmp_path: Path) -> None:
    for run, after in (("a", 0.0), ("b", 1.0)):
        write(tmp_path / run / "episodes/before.jsonl", {"x": [0.0]})
        write(tmp_path / run / "episodes/after.jsonl", {"x": [after]})
    write(tmp_path / "b/episodes/extra.jsonl", {"x": [0.0]})
    results = {c.phase: c.paired.difference.value for c in compare(tmp_path / "a", tmp_path / "b")}
    assert results == {"after": 1.0, "before": 0.0}


def test_runs_without_a_common_task_are_refused(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.jsonl", {"x": [1.0]}), write(tmp_path / "b.jsonl", {"y": [1.0]})
    with pytest.raises(UserError, match="no attempt at a task in common"):
        compare(first, second)
    with pytest.raises(UserError, match="holds no episodes"):
        compare(tmp_path / "nowhere", first)


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = write(tmp_path / "a.jsonl", {"x": [1.0], "y": [0.0]}, seed=1)
    second = write(tmp_path / "b.jsonl", {"x": [1.0]}, seed=2)
    assert main(["diff", str(first), str(second), "--json"]) == 0
    success = json.loads(capfd.readouterr().out)["comparisons"][0]
    assert (success["other_seeds"], success["unpaired"]) == (1, [1, 0])
    difference = success["paired"]["difference"]
    assert (difference["value"], difference["tasks"]) == (0.0, 1) and -1 < difference["low"] < difference["high"] < 1
    assert main(["diff", str(first), str(second)]) == 0
    out, err = capfd.readouterr()
    assert "success" in out and "1 pairs have different seeds" in err and "1 and 0 episodes" in err


def test_other_tasks_of_the_same_id_are_refused(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", {"x": [1.0], "y": [0.0]})
    second = write(tmp_path / "b.jsonl", {"y": [0.0]})
    other = replace(episode("x", 0, 1.0), task=Task(prompt=(), target=4, id="x"), env="sql")
    write_jsonl(second, [other])
    with pytest.raises(
        UserError, match="1 of the 2 tasks with the same id .* are different, as 'x' of .* of sql: compare"
    ):
        compare(first, second)


def test_how_many_tasks_are_shared_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = write(tmp_path / "a.jsonl", {"x": [1.0], "y": [0.0], "z": [0.0]})
    second = write(tmp_path / "b.jsonl", {"x": [1.0], "v": [1.0]})
    assert compare(first, second)[0].all_tasks == (3, 2)
    assert main(["diff", str(first), str(second)]) == 0
    assert "note: the runs: 1 tasks are shared, of 3 and 2" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1),
        (0.3 - 0.1 - 0.2, 0.0),
        (1e6 + 0.1 + 0.2, 1e6 + 0.3),
        (sum([0.1] * 10), 1.0),
    ],
)
def test_rewards_that_differ_by_rounding_alone_are_a_tie(tmp_path: Path, first: float, second: float) -> None:
    """The order in which a program adds is no result; such a task was a loss, and eight of them a verdict."""
    assert first != second
    runs = [write(tmp_path / name, {f"t{i}": [r, r] for i in range(8)}) for name, r in (("a", first), ("b", second))]
    for comparison in compare(*runs):
        paired = comparison.paired
        assert (paired.wins, paired.losses, paired.ties) == (0, 0, 8) and not paired.is_different
        assert (paired.difference.value, paired.p_value) == (pytest.approx(0.0, abs=1e-9), 1.0)


def test_a_success_is_the_environments(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.jsonl", {"x": [0.8]}), tmp_path / "b.jsonl"
    write_jsonl(second, [replace(episode("x", 0, 0.8), success=True)])
    success, reward = compare(first, second)
    assert (success.first, success.second, reward.paired.difference.value) == (0.0, 1.0, 0.0)


def named(path: Path, rewards: dict[str, list[float]]) -> Path:
    """One attempt at each task; the tasks of a kind are called KIND/0, KIND/1 and so on."""
    write_jsonl(
        path,
        [
            replace(made, task=replace(made.task, kind=kind))
            for kind, values in rewards.items()
            for made in (episode(f"{kind}/{i}", 0, reward) for i, reward in enumerate(values))
        ],
    )
    return path


def test_kinds_of_task_are_compared_on_their_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # cells are folded in a narrow terminal
    first = named(tmp_path / "a.jsonl", {"cancel": [1.0, 1.0], "buy": [0.0] * 6})
    second = named(tmp_path / "b.jsonl", {"cancel": [1.0, 1.0], "buy": [1.0] * 6})
    results = compare(first, second)
    assert [(c.measure, c.kind) for c in results] == [
        ("success", ""), ("reward", ""), ("success", "buy"), ("success", "cancel"), ("reward", "buy"),
        ("reward", "cancel"),
    ]  # fmt: skip
    buy, cancel, reward_of_buy, _ = results[2:]
    assert reward_of_buy.paired == buy.paired, "the same numbers here"
    assert (buy.first, buy.second, buy.tasks, buy.paired.p_value) == (0.0, 1.0, 6, 4 / 64)
    assert (cancel.first, cancel.second, cancel.tasks, cancel.paired.p_value) == (1.0, 1.0, 2, 1.0)
    assert buy.paired.difference.low <= 0, "two kinds are two tests: the p-value of one alone is 2 / 64"
    assert main(["diff", str(first), str(second)]) == 0
    out, _ = capfd.readouterr()
    assert "success of buy" in out and "reward of cancel" in out


def test_eighty_columns_hold_a_comparison_without_a_broken_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    kinds = {"cancel_order_with_refund": [0.0] * 100, "look it up in a table": [1.0] * 100}
    runs = [tmp_path / name / "episodes" for name in ("a", "b")]
    for run, flip in zip(runs, (0.0, 1.0), strict=True):
        run.mkdir(parents=True)
        named(run / "before.jsonl", {kind: [abs(flip - reward) for reward in values] for kind, values in kinds.items()})
    assert main(["diff", *(str(run.parent) for run in runs)]) == 0
    out, err = capfd.readouterr()
    assert max(map(len, out.splitlines())) <= 80
    assert "before: 200 pairs of episodes at 200 tasks: second minus first, 95% interval" in out
    assert "cancel_order_with_refund" in out and "[-1.000, -0.9" in out and "0/100/0" in out
    assert "note: before: p and interval of each of the 2 kinds are corrected for their number, by Holm's method" in err
