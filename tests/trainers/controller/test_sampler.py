"""The task of the next prompt: passes, chances that follow the rates, no task lost, the same draws after a stop."""

from __future__ import annotations

import json
import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from forge_env.core.types import Task
from trainers.controller.ledger import Ledger, Prompt
from trainers.controller.sampler import LEAST, TaskSampler

RATES = [0.0] * 12 + [0.5] * 5 + [1.0] * 8
"""Of the tasks of some tests: twelve are never solved, five now and then, eight always."""


def sampler(count: int = len(RATES), by: str = "uniform", seed: int = 0, **rates: list[float]) -> TaskSampler:
    tasks = [Task(prompt=(), target=number, id=str(number), kind="ab"[number % 2]) for number in range(count)]
    return TaskSampler(tasks=tasks, seed=seed, by=by, rates=rates)  # type: ignore[arg-type]


def drawn(by: TaskSampler, count: int) -> list[int]:
    return [by.draw() for _ in range(count)]


def taught(by: TaskSampler, count: int, rng: random.Random, size: int = 8) -> list[int]:
    """Draw tasks, each of which a group is then observed of."""
    indices = []
    for _ in range(count):
        indices.append(by.draw())
        by.observe(indices[-1], sum(rng.random() < RATES[indices[-1]] for _ in range(size)), size)
    return indices


@given(st.integers(1, 40), st.integers(0, 2**31))
def test_each_pass_of_uniform_has_every_task_once(count: int, seed: int) -> None:
    given = sampler(count, seed=seed)
    orders = [drawn(given, count) for _ in range(3)]
    assert orders[0] == list(range(count))
    for number, order in enumerate(orders):
        expected = list(range(count))
        if number:
            random.Random(f"{seed}/tasks/{number}").shuffle(expected)
        assert order == expected


def slow_chance(solved: float, episodes: float) -> float:
    """What the docstrings promise, written anew; the kinds have the rate 0.5."""
    rate = (solved + 0.5) / (episodes + 1)
    return max(0.02, 4 * rate * (1 - rate))


def test_tasks_are_drawn_as_often_as_their_rates_say() -> None:
    rates = {str(i): [rate * 8, 8.0] for i, rate in enumerate(RATES)} | {"24": [0.0, 0.0]}  # the last one is unseen
    given = sampler(by="window", **rates)
    sizes = Counter(map(given.pool, range(25)))
    assert sizes == {"hard": 12, "mixed": 5, "easy": 7, "unseen": 1}
    chances = [slow_chance(*rates[str(i)]) for i in range(25)]
    counts = Counter(drawn(given, 20_000))
    for index, chance in enumerate(chances):
        expected = 20_000 * chance / sum(chances)
        assert abs(counts[index] - expected) < 6 * expected**0.5


def test_an_unseen_task_has_the_rate_of_its_kind_and_old_visits_are_forgotten() -> None:
    given = sampler(by="window")
    for _ in range(50):
        given.observe(0, 0, 8)  # of kind a
        given.observe(1, 4, 8)
    assert given.chance(2) < 0.05 < 0.9 < given.chance(3)
    for _ in range(5):
        given.observe(1, 8, 8)
    assert given.pool(1) == "easy" and given.chance(1) < 0.2
    given.observe(2, 0, 0)  # a group of faults
    assert given.pool(2) == "unseen"


@settings(deadline=None, max_examples=4)  # each draws thousands of tasks
@given(seed=st.integers(0, 2**31), size=st.integers(1, 16))
def test_no_task_is_ever_lost(seed: int, size: int) -> None:
    given = sampler(by="window", seed=seed)
    taught(given, 200, random.Random(seed), size)
    assert all(LEAST <= given.chance(index) <= 1 for index in range(len(RATES)))
    last = Counter(taught(given, 4000, random.Random(seed), size))
    assert sorted(last) == list(range(len(RATES)))


@given(by=st.sampled_from(["uniform", "window"]), seed=st.integers(0, 2**31), before=st.integers(0, 80))
def test_draws_after_a_stop_are_those_of_a_sampler_without_one(by: str, seed: int, before: int) -> None:
    whole, stopped = sampler(by=by, seed=seed), sampler(by=by, seed=seed)
    rngs = [random.Random(seed), random.Random(seed)]
    assert taught(whole, before, rngs[0]) == taught(stopped, before, rngs[1])
    again = sampler(by=by, seed=seed)
    again.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert taught(whole, 60, rngs[0]) == taught(again, 60, rngs[1])
    assert again.state_dict() == whole.state_dict()


@given(seed=st.integers(0, 2**32), stops=st.integers(1, 4), by=st.sampled_from(["uniform", "window"]))
def test_a_prompt_that_begins_again_keeps_its_task(seed: int, stops: int, by: str) -> None:
    """Each prompt is settled once, with the task that it had when it was admitted."""
    rng, tasks, settled = random.Random(seed), dict[int, Prompt](), Counter[int]()
    ledger = Ledger(samplers={"": sampler(by=by)})
    for _ in range(stops + 1):
        saved = json.dumps(ledger.state_dict())
        ledger = Ledger(samplers={"": sampler(by=by)})
        ledger.load_state_dict(json.loads(saved))
        prompts, ready = ledger.prompts(), json.loads(saved)["ready"]
        for _ in range(rng.randrange(30)):
            number = next(prompts)
            assert tasks.setdefault(number, ledger.prompt(number)) == ledger.prompt(number)
            event = rng.choice(["run", "ready", "drop"])
            if event != "run":
                ledger.observe(number, rng.randrange(9), 8)
                settled[number] += event == "drop"
                ledger.drop(number, "no signal") if event == "drop" else ready.append(ledger.finish(number) or number)
            if ready and rng.random() < 0.5:
                settled[ready[0]] += 1
                ledger.train(ready.pop(0))
    counts = ledger.counts
    assert set(settled.values()) <= {0, 1} and sum(settled.values()) == ledger.trained + ledger.dropped.total()
    assert {*range(counts["begun"])} == {n for n, times in settled.items() if times} | {*ledger.state_dict()["open"]}
    assert sum(value for name, value in ledger.metrics.items() if name.startswith("visits/")) == counts["begun"]
