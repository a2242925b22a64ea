"""Which tasks the warm-up shows, which are left for reinforcement learning, and when it stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import SimpleNamespace
from typing import Literal, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.episode import Episode
from forge_env.core.errors import NothingTrained, UserError
from forge_env.core.turn import Turn
from forge_env.core.types import EpisodeLimits, Outcome, Task
from forge_env.evaluation.evaluate import Evaluation
from forge_env.evaluation.kinds import Kinds
from trainers.batching.batch import Sample
from trainers.run.run import Run
from trainers.run.training_run import TrainingRun
from trainers.run.warmup import (
    batches,
    faults_of,
    first_part,
    kinds_left_out,
    learned_enough,
    overshoot,
    tasks_after_warmup,
    tasks_to_demonstrate,
    tasks_to_probe,
    warm_up,
    within_limits,
)
from trainers.settings.tasks import WarmupConfig

TASKS = [Task(prompt=(), id=str(number)) for number in range(10)]


def test_demonstrated_tasks_come_last() -> None:
    warmup = WarmupConfig(demonstrations=4, probe_tasks=2)
    assert [task.id for task in tasks_after_warmup(warmup, TASKS)] == list("4567890123")


def test_if_all_other_tasks_are_shown_the_probes_tasks_come_first() -> None:
    warmup = WarmupConfig(demonstrations=100, probe_tasks=2)
    assert [task.id for task in tasks_after_warmup(warmup, TASKS)] == list("8901234567")


@given(st.integers(1, 10), st.integers(1, 12), st.integers(1, 12))
def test_no_task_is_lost(tasks: int, probes: int, demonstrations: int) -> None:
    warmup = replace(WarmupConfig(), demonstrations=demonstrations, probe_tasks=probes)
    given, shown = TASKS[:tasks], tasks_to_demonstrate(TASKS[:tasks], warmup)
    measured = tasks_to_probe(given, warmup)
    assert measured == given[-len(measured) :] and (tasks == 1 or not set(map(id, shown)) & set(map(id, measured)))
    assert len(measured) <= max(1, tasks // 2) and len(shown) >= min(tasks // 2, demonstrations)
    ordered = tasks_after_warmup(warmup, given)
    assert sorted(ordered, key=lambda task: task.id) == given
    assert ordered[len(ordered) - len(shown) :] == list(shown) and shown


def test_a_warm_up_that_never_stops_early_shows_the_tasks_of_the_probe_too() -> None:
    warmup = WarmupConfig(until_success=1.0, demonstrations=100, probe_tasks=2)
    assert tasks_to_demonstrate(TASKS, warmup) == TASKS and not tasks_to_probe(TASKS, warmup)


def test_a_run_goes_through_them_in_this_order_after_a_warm_up_only() -> None:
    warmup = WarmupConfig(demonstrations=4, probe_tasks=2, steps=5)
    assert tasks_after_warmup(replace(warmup, steps=0), TASKS) == TASKS


def test_kinds_that_the_warm_up_uses_up_are_named() -> None:
    tasks = [Task(prompt=(), kind="rare" if number in (0, 2, 50) else "common") for number in range(100)]
    warmup = WarmupConfig(demonstrations=20, probe_tasks=2, steps=5)
    assert kinds_left_out(warmup, tasks, 60) == [], "one is left"
    tasks[50] = tasks[51]
    assert kinds_left_out(warmup, tasks, 60) == ["rare"]
    assert kinds_left_out(warmup, tasks, 40) == [], "as fewer than five were to be expected"
    assert kinds_left_out(warmup, tasks, 1000) == [], "as the pass reaches the demonstrated tasks"


def _probe(solved: Mapping[str, str]) -> Evaluation:
    """An evaluation of tasks by kind; "+" is a solved task, "-" one that is not."""
    results = [(kind, mark) for kind, marks in solved.items() for mark in marks]
    episodes = [
        Episode(task=Task(prompt=(), id=str(number), kind=kind), turns=(), reward=float(mark == "+"))
        for number, (kind, mark) in enumerate(results)
    ]
    return Evaluation(episodes=tuple(episodes))


@pytest.mark.parametrize(
    ("solved", "of_all", "of_each_kind", "enough"),
    [
        ({"buy": "+-", "refund": "--"}, 0.25, 0.0, True),
        ({"buy": "+-", "refund": "--"}, 0.25, 0.1, False),
        ({"buy": "++", "refund": "+-"}, 0.75, 0.5, True),
        ({"buy": "+---", "refund": "+---"}, 0.5, 0.25, False),
        ({"buy": "+-"}, 0.25, 0.1, True),  # a kind without a probe task says nothing
    ],
)
def test_the_warm_up_stops_when_a_probe_reaches_both_shares(
    solved: Mapping[str, str], of_all: float, of_each_kind: float, enough: bool
) -> None:
    warmup = WarmupConfig(until_success=of_all, until_each_kind=of_each_kind)
    assert learned_enough(warmup, _probe(solved), Kinds(names=("buy", "refund"))) is enough


@dataclass
class Warming:
    """A run of which only the probes matter; `solves` says how many of the first `tasks` are solved at a step."""

    solves: Callable[[int, int], int]
    warmup: WarmupConfig
    probes: list[tuple[int, int]] = field(default_factory=list)
    """Step and number of tasks."""
    said: list[str] = field(default_factory=list)
    step: int = 0
    skipped: int = 0
    """The first steps that are skipped."""

    async def train(self, samples: Sequence[Sample], loss: object) -> dict[str, float]:
        self.step += 1
        return {"loss": 1.0, "skipped": float(self.step <= self.skipped), "tokens": 9.0}

    async def measure(self, specs: Sequence[int]) -> Evaluation:
        self.probes.append((self.step, len(specs)))
        solved = self.solves(self.step, 1 + specs[-1])
        return Evaluation(
            episodes=tuple(Episode(task=Task(prompt=(), id=str(i)), turns=(), reward=float(i < solved)) for i in specs)
        )

    async def run(self, steps: int) -> int:
        async def nothing(*_: object, **__: object) -> None:
            pass

        tasks = [Task(prompt=(), id=str(number)) for number in range(400)]
        config = SimpleNamespace(warmup=self.warmup, training=SimpleNamespace(seed=0, signal_error=5))
        record = SimpleNamespace(
            follow=lambda *_, **__: None, metrics=lambda *_: None, say=self.said.append, warn=self.said.append
        )
        run = SimpleNamespace(
            plan=SimpleNamespace(config=config, environments=[SimpleNamespace(label="", weight=1.0, config=config)]),
            record=record,
            caller=TrainingRun(),
            demonstrations=_demonstrations({10: 4}),
            trainer=SimpleNamespace(step=self.train),
            weights=SimpleNamespace(sync=nothing),
            rollouts=SimpleNamespace(spec=lambda phase, i, task, **_: i, measure=self.measure),
            kinds=Kinds(),
            train_tasks={"": tasks},
        )
        return await warm_up(cast(Run, run), steps)


async def test_the_warm_up_probes_from_its_first_interval_on_and_a_hopeless_probe_is_short() -> None:
    warmup = WarmupConfig(until_success=0.22, probe_every=2, probe_tasks=96, learning_rate_warmup=50)
    part = first_part(0.22)
    assert part == 19 and 0.78**part < 0.01 < 0.78 ** (part - 1)
    warming = Warming(lambda step, tasks: 0 if step < 6 else 25, warmup)
    assert await warming.run(200) == 6, "long before the learning rate has risen"
    assert warming.probes == [(2, 19), (4, 19), (6, 19), (6, 77)]
    assert len(warming.said) == 1 and "success on probe tasks 0.260" in warming.said[0], "0.26 may be 0.22 by chance"


@pytest.mark.parametrize(("skipped", "steps", "trained"), [(4, 9, 9), (5, 9, 5), (3, 3, 3)])
async def test_a_warm_up_of_which_no_step_is_taken_ends_the_run(skipped: int, steps: int, trained: int) -> None:
    warming = Warming(lambda step, tasks: 0, WarmupConfig(until_success=1.0), skipped=skipped)
    if skipped < min(5, steps):
        assert await warming.run(steps) == trained
        return
    with pytest.raises(
        NothingTrained, match=f"warm-up trained nothing: none of its {trained} steps was taken, as loss"
    ):
        await warming.run(steps)
    assert warming.step == trained


async def test_a_warm_up_that_overshot_says_by_how_much() -> None:
    warmup = WarmupConfig(until_success=0.22, probe_every=4, learning_rate=1e-3)
    warming = Warming(lambda step, tasks: tasks, warmup)
    assert await warming.run(200) == 4
    assert (
        "overshot its goal: success on probe tasks is 1.000, 0.780 above --warmup.until_success 0.22" in warming.said[1]
    )
    assert "--warmup.probe_every 1" in warming.said[1]
    assert overshoot(warmup, _probe({"buy": "+" * 27 + "-" * 69})) == "", "0.28125 may be 0.22 by chance"
    assert "0.155 above" in overshoot(warmup, _probe({"buy": "+" * 36 + "-" * 60}))
    assert overshoot(replace(warmup, until_each_kind=0.1), _probe({"buy": "+" * 96})) == "", (
        "one kind waited for another"
    )


async def test_a_warm_up_without_probes_speaks_of_none() -> None:
    warming = Warming(lambda step, tasks: tasks, WarmupConfig(until_success=1.0))
    assert await warming.run(3) == 3 and not warming.probes
    assert warming.said == ["warm-up of 3 steps: loss 1.000"]


def _demonstrations(counts: Mapping[int, int]) -> list[Episode]:
    """So many demonstrations of each length in tokens."""
    lengths = [length for length, count in counts.items() for _ in range(count)]
    return [Episode(prompt_ids=[1] * (length - 2), response_ids=[1, 2], reward=1.0) for length in lengths]


def _shown(
    episodes: list[Episode], *, balance: Literal["none", "length", "answer"], size: int = 8, steps: int = 100
) -> Counter:
    """How often each episode is shown, by its position."""
    steps_of = islice(batches(episodes, size, seed=0, balance=balance), steps)
    places = {id(episode): place for place, episode in enumerate(episodes)}
    return Counter(places[id(episode)] for batch in steps_of for episode in batch)


def test_common_lengths_are_shown_equally_often() -> None:
    shown = _shown(_demonstrations({10: 180, 12: 20}), balance="length")
    assert sum(shown.values()) == 800
    assert sum(shown[place] for place in range(180)) == pytest.approx(400, abs=80)


def test_balanced_answers_are_those_of_the_last_turn() -> None:
    def turn(length: int, *, starts: bool) -> Turn:
        message = {"role": "assistant", "content": ""}
        return Turn(kind="tokens", observation=(), message=message, token_ids=[1] * length, starts_row=starts)

    episodes = [
        Episode(
            task=TASKS[0], turns=(turn(1 + n % 7, starts=True), turn(2 if n < 180 else 3, starts=False)), reward=1.0
        )
        for n in range(200)
    ]
    shown = _shown(episodes, balance="answer")
    assert sum(shown[place] for place in range(180)) == pytest.approx(400, abs=80)


def test_a_length_of_one_demonstration_is_shown_as_rarely_as_one_of_a_whole_batch() -> None:
    shown = _shown(_demonstrations({10: 160, 12: 1}), balance="length")
    assert 50 < shown[160] < 140  # 1 draw in 9 of 800, where an equal share of the lengths would be 400


def test_if_all_lengths_differ_all_are_shown_equally_often() -> None:
    shown = _shown(_demonstrations(dict.fromkeys(range(10, 60), 1)), balance="length")
    assert set(shown) == set(range(50)) and max(shown.values()) < 40  # 16 in the mean


def test_without_balance_every_pass_shows_everything_once() -> None:
    shown = _shown(_demonstrations({10: 36, 12: 4}), balance="none", steps=10)
    assert shown == dict.fromkeys(range(40), 2)


def test_the_order_is_the_seed_s() -> None:
    episodes = _demonstrations({10: 30, 12: 10})
    first, again, other = (next(batches(episodes, 8, seed=seed, balance="length")) for seed in (3, 3, 4))
    assert first == again and first != other


def test_demonstrations_that_no_policy_could_play_are_left_out_or_refused() -> None:
    def turn(size: int, *, starts_row: bool = False) -> Turn:
        return Turn(
            kind="tokens", observation=(), message={"role": "assistant", "content": ""}, prompt_ids=(1, 2) * starts_row,
            token_ids=tuple(range(size)), starts_row=starts_row,
        )  # fmt: skip

    turns = [(turn(3, starts_row=True), turn(size)) for size in (2, 7)]
    short, long = (Episode(task=TASKS[0], turns=pair, outcome=Outcome.SCORED, reward=1.0) for pair in turns)
    limits = EpisodeLimits(max_turn_tokens=7, max_tokens=12)
    assert within_limits("sums", [short, long], limits) == [short, long]
    assert within_limits("sums", [short, long], replace(limits, max_turn_tokens=6)) == [short]
    assert within_limits("sums", [short, long], replace(limits, max_tokens=11)) == [short]
    with pytest.raises(UserError, match=r"sums needs 3 to 7 tokens in a turn, and --env\.max_turn_tokens is 2: set"):
        within_limits("sums", [short, long], replace(limits, max_turn_tokens=2))
    with pytest.raises(UserError, match=r"7 to 12 tokens in an episode, and --env\.max_tokens is 6: set it to 12"):
        within_limits("sums", [short, long], replace(limits, max_tokens=6))


def test_faults_of_demonstrations_are_one_warning() -> None:
    solved = Episode(task=TASKS[0], turns=(), outcome=Outcome.SCORED, reward=1.0)
    gone, other = (
        Episode(task=TASKS[1], turns=(), outcome=Outcome.ENV_FAULT, reward=None, error=error) for error in ("gone", "x")
    )
    begin = "warning: faults ended 3 of 4 demonstrations, and the warm-up does not have them; "
    assert faults_of(Evaluation(episodes=(solved, gone, gone, gone))) == f"{begin}all of them: gone"
    assert faults_of(Evaluation(episodes=(solved, gone, other, gone))) == f"{begin}2 of them: gone"
