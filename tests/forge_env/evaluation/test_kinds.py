"""Figures by kind of task: which kinds have them, what they are, and what is said of the others."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.episode import Episode
from forge_env.core.types import Outcome, Task
from forge_env.evaluation.evaluate import Evaluation
from forge_env.evaluation.kinds import MAX_KINDS, NO_KIND, OTHER_KINDS, Kinds, verdict_note


def task(number: int, kind: str = "") -> Task:
    return Task(prompt=(), id=str(number), kind=kind)


def episode(number: int, reward: float | None, kind: str = "", attempt: int = 0) -> Episode:
    outcome = Outcome.INFRA_FAULT if reward is None else Outcome.SCORED
    return Episode(task=task(number, kind), outcome=outcome, reward=reward, id=f"{number}/{attempt}")


def measured(rewards: Sequence[float | None], kind: str = "buy", first: int = 0) -> Evaluation:
    """One attempt at each task, with these rewards."""
    return Evaluation(episodes=tuple(episode(first + i, reward, kind) for i, reward in enumerate(rewards)))


def test_a_kind_is_recorded_with_the_episode_and_is_no_part_of_the_id() -> None:
    named, plain = Task(prompt=(), target="4", kind="sum"), Task(prompt=(), target="4")
    assert named.id == plain.id and plain.kind == ""
    played = Episode(task=named, reward=1.0)
    assert Episode.from_json(played.to_json()).task.kind == "sum"
    assert pickle.loads(pickle.dumps(played)).task.kind == "sum"


def test_tasks_without_kinds_have_no_figures_by_kind() -> None:
    kinds, evaluation = Kinds.of({"": [task(1), task(2)]}), measured([1.0, 0.0], kind="")
    assert kinds == Kinds() and kinds.note == ""
    assert kinds.training_metrics(evaluation.episodes) == kinds.evaluation_metrics(evaluation) == {}
    assert kinds.text(evaluation) == "" and kinds.changes(evaluation, evaluation) == {}


def test_success_reward_and_count_of_a_step() -> None:
    kinds = Kinds.of({"": [task(1, "cancel"), task(2, "buy"), task(3, "buy"), task(4), task(5, "move")]})
    assert kinds.names == ("buy", "cancel", "move")
    episodes = [
        *(episode(1, 1.0, "cancel", i) for i in range(2)),
        *(episode(2, float(i == 0), "buy", i) for i in range(4)),
        episode(3, None, "buy"),  # a fault counts nowhere
        episode(5, None, "move"),
        replace(episode(4, 0.5), rewards={"form": 0.5}),
        episode(4, 0.5, attempt=1),  # the part is missing
    ]
    assert kinds.training_metrics(episodes) == {
        "success/buy": 0.25,
        "reward/buy": 0.25,
        "episodes/buy": 4.0,
        "success/cancel": 1.0,
        "reward/cancel": 1.0,
        "episodes/cancel": 2.0,
        f"success/{NO_KIND}": 0.0,
        f"reward/{NO_KIND}": 0.5,
        f"episodes/{NO_KIND}": 2.0,
        f"reward/form/mean/{NO_KIND}": 0.5,
    }
    assert list(kinds.training_metrics(episodes[:2])) == ["success/cancel", "reward/cancel", "episodes/cancel"]


def test_an_evaluation_has_the_interval_of_each_kind() -> None:
    evaluation = Evaluation(
        episodes=(*measured([1.0, 0.0], "buy").episodes, *measured([1.0, 1.0, 1.0], "cancel", first=2).episodes)
    )
    kinds = Kinds.of({"": [episode.task for episode in evaluation.episodes]})
    metrics, buy = kinds.evaluation_metrics(evaluation), measured([1.0, 0.0]).interval
    assert (metrics["success/buy"], metrics["success_low/buy"], metrics["success_high/buy"]) == (0.5, *buy)
    assert (metrics["success/cancel"], metrics["reward/cancel"], metrics["episodes/cancel"]) == (1.0, 1.0, 3.0)
    assert kinds.text(evaluation) == "buy 0.500, cancel 1.000"


def test_a_kind_that_could_not_be_measured_has_no_rate() -> None:
    evaluation = measured([None, None])
    kinds = Kinds.of({"": [task(1, "buy")]})
    assert kinds.evaluation_metrics(evaluation) == {"episodes/buy": 0.0} and kinds.text(evaluation) == ""
    [change] = kinds.changes(evaluation, evaluation).values()
    assert change.verdict == "" and change.summary()["success_after"] is None


def test_of_many_kinds_those_with_the_most_tasks_keep_their_names() -> None:
    rare = [task(i, f"rare {i:02}") for i in range(40)]
    frequent = [task(100 + i, f"frequent {i // 2:02}") for i in range(40)]
    kinds = Kinds.of({"": [*rare, *frequent]})
    assert len(kinds.names) == MAX_KINDS and kinds.left_out == 60 - MAX_KINDS
    assert {f"frequent {i:02}" for i in range(20)} < set(kinds.names) and "rare 11" in kinds.names
    assert "rare 12" not in kinds.names and list(kinds.names) == sorted(kinds.names)
    assert kinds.note == (
        f"the tasks have 60 kinds: the 32 with the most tasks have figures of their own, the other 28 are counted "
        f"together as {OTHER_KINDS}"
    )
    metrics = kinds.training_metrics([episode(i, float(i < 20), f"rare {i:02}") for i in range(40)])
    assert len(metrics) == 3 * 13 and metrics[f"episodes/{OTHER_KINDS}"] == 28.0
    assert metrics[f"success/{OTHER_KINDS}"] == pytest.approx(8 / 28)
    assert Kinds.of({"": frequent[:20]}).note == ""


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([0.0] * 10, [1.0] * 8 + [0.0] * 2, "better"),
        ([1.0] * 8 + [0.0] * 2, [0.0] * 10, "worse"),
        ([1.0] * 10, [1.0] * 10, "solved before training"),
        ([1.0] * 10, [1.0] * 9 + [0.0], "solved before training"),
        ([0.0] * 10, [0.0] * 10, "never solved"),
        ([1.0] * 3 + [0.0] * 7, [1.0] * 4 + [0.0] * 6, "no change shown"),
        ([0.0] * 3, [1.0] * 3, "no change shown"),  # three tasks are too few to tell it from chance
        ([1.0], [], ""),
    ],
)
def test_what_became_of_a_kind(before: list[float], after: list[float], verdict: str) -> None:
    [change] = Kinds(names=("buy",)).changes(measured(before), measured(after)).values()
    assert change.verdict == verdict
    assert (verdict or "to -") in str(change)


def test_kinds_are_judged_together() -> None:
    """Six of six tasks are p = 0.03: shown for one kind, and no more than one of nine may have by chance."""
    before, after = measured([0.0] * 6, "kind 0"), measured([1.0] * 6, "kind 0")
    [alone] = Kinds(names=("kind 0",)).changes(before, after).values()
    assert alone.paired is not None and (alone.verdict, alone.paired.p_value) == ("better", 2 / 64)
    others = tuple(e for i in range(1, 9) for e in measured([0.0, 1.0], f"kind {i}", first=10 * i).episodes)
    before, after = (Evaluation(episodes=(*run.episodes, *others)) for run in (before, after))
    changes = Kinds(names=tuple(f"kind {i}" for i in range(9))).changes(before, after)
    of_kind = changes["kind 0"]
    assert of_kind.paired is not None and (of_kind.verdict, of_kind.paired.p_value) == ("no change shown", 9 * 2 / 64)
    rates = "no change shown (0.000 to 1.000, interval of the difference [+0.000, +1.000])"
    assert str(of_kind) == f"{rates}; mean reward 0.000 to 1.000"
    note = verdict_note(changes)
    assert "p < 0.05 of the sign-flip test" in note and note.endswith("corrected for 9 kinds by Holm's method")


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30), min_size=1, max_size=6)
)
def test_no_verdict_stands_beside_an_interval_that_contradicts_it(kinds: list[list[tuple[int, int]]]) -> None:
    runs = []
    for run in (0, 1):
        episodes = [
            episode(100 * k + i, float(attempt < pair[run]), f"kind {k}", attempt)
            for k, pairs in enumerate(kinds)
            for i, pair in enumerate(pairs)
            for attempt in range(2)
        ]
        runs.append(Evaluation(episodes=tuple(episodes)))
    for change in Kinds(names=tuple(f"kind {k}" for k in range(len(kinds)))).changes(*runs).values():
        assert change.paired is not None
        low, high = change.paired.difference.interval
        verdict = "better" if low > 0 else "worse" if high < 0 else ""
        assert change.verdict == verdict or (not verdict and change.verdict not in ("better", "worse"))
        assert not verdict or change.paired.p_value < 0.05


def test_the_changes_name_every_kind_of_both_evaluations() -> None:
    before, after = measured([0.0] * 8, "buy"), measured([1.0] * 8, "cancel", first=8)
    changes = Kinds(names=("buy", "cancel", "move")).changes(before, after)
    assert {name: str(change) for name, change in changes.items()} == {
        "buy": "0.000 to -; mean reward 0.000 to -",
        "cancel": "- to 1.000; mean reward - to 1.000",
    }
    summary = changes["buy"].summary()
    assert (summary["tasks"], summary["verdict"], summary["rewards_before"]) == (8, "", {})
    assert summary["success_before"] == summary["reward_before"] == summary["success_before_without_timeouts"] == 0.0
    assert summary["success_before_ci95"] == before.interval
    none = [name for name in summary if name.endswith("_after") or "difference" in name or name == "p_value"]
    assert {name: summary[name] for name in none} == dict.fromkeys(none) | {"rewards_after": {}} and len(none) == 6


def test_each_of_several_environments_has_figures_and_its_kinds_have_its_name() -> None:
    kinds = Kinds.of({"shop": [task(1, "buy"), task(2, "move")], "maze": [task(1, "move")], "plain": [task(9)]})
    assert kinds.environments == ("shop", "maze", "plain")
    assert kinds.names == ("maze/move", "shop/buy", "shop/move")
    played = [replace(episode(1, 1.0, "buy"), env="shop"), replace(episode(2, 0.0, "move"), env="shop")]
    played += [replace(episode(1, 1.0, "move"), env="maze"), replace(episode(9, 0.0), env="plain")]
    evaluation = Evaluation(episodes=tuple(played))
    rates = {name: part.success_rate for name, part in kinds.split(evaluation.episodes).items()}
    assert rates == {"shop": 0.5, "maze": 1.0, "plain": 0.0, "maze/move": 1.0, "shop/buy": 1.0, "shop/move": 0.0}
    metrics = kinds.evaluation_metrics(evaluation)
    assert (metrics["success/shop"], metrics["episodes/shop/buy"]) == (0.5, 1.0)
    changes = kinds.changes(evaluation, evaluation)
    assert list(changes) == list(rates)
    assert "corrected for 3 environments and 3 kinds by Holm" in verdict_note(changes, kinds.environments)
