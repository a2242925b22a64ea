"""The simulator against closed forms, the bound on staleness, and numbers that a seed repeats."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.controller import BATCH, STALENESS, measure
from benchmarks.simulate import Setup, balanced, draw, needs, shown, simulate
from benchmarks.simulated_cluster import Engine, Router, Speeds
from benchmarks.simulated_time import World
from benchmarks.simulated_workload import Turn, Workload, constant, lognormal, of_run, record, recorded
from forge_env.core.episode import Episode, write_jsonl
from forge_env.core.episode import Turn as RealTurn
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome, Task

SPEEDS = Speeds(slots=16)


def setup(workload: Workload, **settings: Any) -> Setup:
    sizes = {"engines": 4, "trainers": 1, "groups_per_step": 8, "measured": 6, "staleness": 0}
    return Setup(workload=workload, **{**sizes, **settings})


# ---- an engine ----


def finishes(requests: list[tuple[float, int]], speeds: Speeds, swap: tuple[float, float] | None = None) -> list[float]:
    """When each request (when it comes, tokens) of one engine is done."""
    world, done = World(), [math.nan] * len(requests)
    engine = Engine(world, speeds)
    for i, (when, tokens) in enumerate(requests):

        def end(i: int = i) -> None:
            done[i] = world.now

        world.after(when, lambda tokens=tokens, end=end: engine.generate(tokens, end))
    if swap:
        world.after(swap[0], lambda: engine.swap(swap[1]))
    world.pass_until(1e6)
    tokens, busy = engine.used()
    assert tokens == pytest.approx(sum(tokens for _, tokens in requests))
    assert busy <= max(done) - min(when for when, _ in requests) + 1e-9
    return done


@pytest.mark.parametrize("requests", [1, 7, 16])
def test_requests_that_run_together_take_a_step_for_each_token(requests: int) -> None:
    done = finishes([(1.0, 500)] * requests, SPEEDS)
    assert done == pytest.approx([1.0 + 500 * SPEEDS.step(requests)] * requests)


def test_requests_beyond_the_slots_wait_for_their_turn() -> None:
    done = finishes([(0.0, 500)] * 24, SPEEDS)
    first = 500 * SPEEDS.step(16)
    assert done == pytest.approx([first] * 16 + [first + 500 * SPEEDS.step(8)] * 8)


def test_a_request_that_joins_slows_the_other_down() -> None:
    alone, together = SPEEDS.step(1), SPEEDS.step(2)
    first, second = finishes([(0.0, 100), (40 * alone, 100)], SPEEDS)
    assert first == pytest.approx(40 * alone + 60 * together)
    assert second == pytest.approx(first + 40 * alone)


def test_new_weights_stop_an_engine_and_lose_nothing() -> None:
    plain = finishes([(0.0, 300)] * 3, SPEEDS)
    assert finishes([(0.0, 300)] * 3, SPEEDS, swap=(0.1, 2.0)) == pytest.approx([seconds + 2.0 for seconds in plain])


def test_the_router_takes_the_engine_with_the_fewest_episodes() -> None:
    router = Router([Engine(World(), SPEEDS) for _ in range(3)])
    assert [router.enter() for _ in range(5)] == [0, 1, 2, 0, 1]
    router.leave(0)
    router.leave(0)
    assert [router.enter() for _ in range(3)] == [0, 0, 2]
    for _ in range(10_000):  # entries that are out of date are cleared away
        router.leave(router.enter())
    assert len(router._heap) < 2_000


# ---- whole runs ----


@pytest.mark.parametrize("turns", [1, 3])
def test_a_synchronous_step_takes_as_long_as_its_parts(turns: int) -> None:
    """64 episodes on 4 engines: 16 requests run in each, all the time, but for what the environment takes."""
    workload = constant(tokens=1000, turns=turns, env_seconds=3.0)
    figures = simulate(setup(workload))
    speeds, tokens = Speeds(), 64 * 1000 * turns
    rollout = turns * (1000 * speeds.step(16) + 3.0)
    train = speeds.train_overhead + tokens / speeds.train_tokens + speeds.publish
    seconds = rollout + train + speeds.fetch + speeds.swap
    assert figures.seconds_per_step == pytest.approx(seconds)
    assert figures.tokens_per_second == pytest.approx(tokens / seconds)
    assert figures.groups_per_second == pytest.approx(8 / seconds)
    assert figures.trainer_idle == pytest.approx(1 - train / seconds)
    assert figures.engines_idle == pytest.approx(1 - turns * 1000 * speeds.step(16) / seconds)
    assert figures.staleness_mean == figures.staleness_max == 0


def test_with_enough_engines_the_trainer_is_never_idle() -> None:
    speeds = Speeds(fetch=0.0, swap=0.0, train_tokens=1000.0)
    figures = simulate(setup(constant(tokens=1000), staleness=2, speeds=speeds))
    assert figures.seconds_per_step == pytest.approx(64 + speeds.train_overhead + speeds.publish)
    assert figures.trainer_idle == pytest.approx(0, abs=1e-9)


def test_with_a_quick_trainer_the_engines_are_never_idle() -> None:
    speeds = Speeds(train_tokens=1e12, train_overhead=0.0, publish=0.0, fetch=0.0, swap=0.0, slots=16)
    figures = simulate(setup(lognormal(0.5, env_median=1e-6), staleness=4, speeds=speeds))
    assert figures.engines_idle == pytest.approx(0, abs=0.01)
    assert figures.engines_fill == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("sigma", [0.3, 1.5])
def test_staleness_stays_within_its_bound(staleness: int, sigma: float) -> None:
    figures = simulate(setup(lognormal(sigma), staleness=staleness, groups_per_step=4, measured=20))
    assert figures.staleness_max == staleness
    assert 0 < figures.staleness_mean <= staleness or staleness == 0


def test_hours_are_simulated_and_a_seed_repeats_them() -> None:
    slow = Speeds(train_overhead=600.0)
    runs = [simulate(setup(lognormal(1.0), staleness=1, speeds=slow, seed=seed)) for seed in (0, 0, 1)]
    assert runs[0].simulated_seconds >= 3600

    def simulated(i: int) -> dict[str, Any]:
        return {name: value for name, value in asdict(runs[i]).items() if not name.startswith("controller")}

    assert simulated(0) == simulated(1) != simulated(2)
    assert all(run.controller_load > 0 for run in runs)


def test_asynchrony_hides_the_tail() -> None:
    synchronous, asynchronous = (simulate(balanced(4, lognormal(1.0), 64, staleness=s, measured=5)) for s in (0, 4))
    assert asynchronous.groups_per_second > 1.8 * synchronous.groups_per_second
    assert asynchronous.trainer_idle < synchronous.trainer_idle


def test_what_is_simulated_can_be_drawn(tmp_path: Path) -> None:
    results = [simulate(setup(constant(tokens=100), staleness=s, trainers=t)) for s in (0, 1) for t in (1, 2)]
    draw(results, [replace(figures, gpus=50) for figures in results], "a title", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert all("staleness" in shown(figures) for figures in results)


def test_a_balanced_cluster_has_no_better_split() -> None:
    middle = balanced(32, lognormal(0.8), 128, staleness=1)
    assert middle.engines + middle.trainers == 32
    faster, slower = sorted(needs(middle))
    assert slower < 1.1 * faster
    for more in (-1, 1):
        other = replace(middle, engines=middle.engines - more, trainers=middle.trainers + more)
        assert max(needs(other)) / min(needs(other)) > slower / faster


# ---- workloads ----


def test_a_run_can_be_simulated_from_its_episodes(tmp_path: Path) -> None:
    real = RealTurn(
        kind="sampled",
        observation=(),
        message={"role": "assistant", "content": ""},
        prompt_ids=(1, 2, 3),
        token_ids=(4, 5),
        logprobs=(-0.1, -0.2),
        versions=((0, 2),),
        starts_row=True,
        env_seconds=0.25,
    )
    more = replace(real, prompt_ids=(6,), token_ids=(7,), logprobs=(-0.1,), versions=((0, 1),), starts_row=False)
    task = Task(prompt=(), target=1)
    episodes = [
        Episode(task=task, turns=turns, outcome=Outcome.SCORED, reward=1.0, id=f"{i}", group_id=f"train/{i // 2}")
        for i, turns in enumerate([(real, more), (real,), (real,)])
    ]
    fault = Episode(task=task, turns=(), outcome=Outcome.ENV_FAULT, reward=None, id="3", group_id="train/1")
    (tmp_path / "episodes").mkdir()
    write_jsonl(tmp_path / "episodes" / "train.jsonl", [*episodes, fault])
    result = of_run(tmp_path)
    first = Turn(3, 2, 0.25)
    assert result.groups == (((first, Turn(1, 1, 0.25)), (first,)), ((first,),))
    assert (result.sampled, result.trained) == (7 / 3, 17 / 3)
    record(result, tmp_path / "turns.json")
    assert recorded(tmp_path / "turns.json") == result
    with pytest.raises(UserError, match="is no folder of a run"):
        of_run(tmp_path / "episodes")


def test_the_recorded_turns_are_those_of_a_real_run() -> None:
    workload = recorded()
    assert workload.episodes_per_group == 8 and len(workload.groups) >= 16
    assert all(turn.tokens >= 1 and turn.env_seconds > 0 for episode in workload.episodes for turn in episode)
    long = workload.stretched(2000)
    assert long.sampled == pytest.approx(2000, rel=0.01)
    assert (
        long.env_seconds == workload.env_seconds and long.trained - long.sampled == workload.trained - workload.sampled
    )


@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_lognormal_turns_have_the_tail_that_they_are_asked_for(sigma: float) -> None:
    workload = lognormal(sigma, turns=(1, 1))
    assert workload.quantile(0.5) == pytest.approx(400, rel=0.1)
    assert workload.quantile(0.99) / workload.quantile(0.5) == pytest.approx(math.exp(2.326 * sigma), rel=0.2)
    capped = lognormal(2.0, most_tokens=1000)
    assert capped.quantile(1.0) == 1000
    assert all(turn.tokens > 0 for episode in capped.episodes for turn in episode)
    json.dumps(capped.groups)


def test_a_prompt_has_the_same_group_in_every_run() -> None:
    workload = lognormal(1.0)
    assert [workload.group(3, n) for n in range(50)] == [workload.group(3, n) for n in range(50)]
    assert len({workload.group(3, n) for n in range(50)}) > 30


# ---- the controller alone ----


@pytest.mark.parametrize("way", ["at once", "with drops"])
async def test_every_transition_of_the_controller_is_counted(way: str) -> None:
    result = await measure(way, steps=2)
    assert result["most_open"] == (STALENESS + 1) * BATCH
    trained = 3 * 2 * BATCH
    assert result["transitions"] == trained if way == "at once" else result["transitions"] > trained
