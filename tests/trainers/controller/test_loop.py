"""The loop with plain functions in place of actors: staleness, exactly-once, faults, deadlines, nothing left behind."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from forge_env.core.episode import Episode, Group
from forge_env.core.errors import NothingTrained, ReplicaDied, ServiceError, UserError
from forge_env.core.faults import MAX_FAULTS_IN_A_ROW, SHRINK
from forge_env.core.types import Outcome, Task
from forge_env.rollout.rollout import GroupSpec
from tests.trainers.episodes import turn
from trainers.controller.drop_counts import MOSTLY, DropCounts, fate_of
from trainers.controller.ledger import Ledger, Prompt
from trainers.controller.loop import Loop
from trainers.controller.loop_state import LoopSettings, LoopState, ReadyGroup
from trainers.controller.mixture import Mixture
from trainers.controller.sampler import TaskSampler
from trainers.objective.advantages import group_relative, has_signal
from trainers.objective.objective import Objective
from trainers.objective.reward import TrainingReward

TASKS = [Task(prompt=(), target=i) for i in range(5)]
ENVIRONMENTS = ("even", "odd")
"""Of a loop with two: each has groups with every second number."""


def episode(index: int, sibling: int, outcome: Outcome = Outcome.SCORED, error: str = "") -> Episode:
    """An episode whose only sampled token is the number of its group."""
    return Episode(
        task=TASKS[index % len(TASKS)],
        turns=(turn(index, starts_row=True),),
        outcome=outcome,
        reward=float(sibling % 2) if outcome.is_valid else None,
        id=f"{index}/{sibling}",
        error=error,
    )


def group(index: int, outcomes: Sequence[Outcome] = (Outcome.SCORED,) * 2, error: str = "") -> Group:
    members = tuple(episode(index, i, outcome, error) for i, outcome in enumerate(outcomes))
    return Group(task=TASKS[index % len(TASKS)], episodes=members, id=str(index))


async def ticks(count: int) -> None:
    """Give way to the others `count` times: a latency without a clock."""
    for _ in range(count):
        await asyncio.sleep(0)


def rollout(
    make: Callable[[int], Group] = group, latency: Callable[[int], int] = lambda index: 0
) -> Callable[[Task, int], Awaitable[Group]]:
    """A rollout whose groups are made from their numbers, after so many ticks."""

    async def run_group(task: Task, index: int) -> Group:
        await ticks(latency(index))
        return make(index)

    return run_group


STATE = [setting.name for setting in fields(LoopState)]
SETTINGS = [setting.name for setting in fields(LoopSettings)]


@dataclass
class Weights:
    """The weights of a loop, whose methods are those of a `Record`."""

    record: Record

    @property
    def engine_steps(self) -> int:
        return self.record.version

    async def publish(self, step: int) -> dict[str, float]:
        return await self.record.publish_weights(step)

    async def pull(self) -> dict[str, float]:
        return await self.record.pull_weights(self.record.published)

    async def prove(self) -> dict[str, float]:
        return await self.record.prove_weights(self.record.version)


@dataclass
class Record:
    """The rollouts and the learner of a loop; it writes down what happened when."""

    rollout: Callable[[Task, int], Awaitable[Group]]
    train_ticks: int = 2
    pull_ticks: int = 1
    published: int = 0
    """Version that the trainer published last."""
    version: int = 0
    """Weight version that every engine has."""
    admitted: dict[int, int] = field(default_factory=dict)
    """Group -> version at its admission."""
    trained: list[list[int]] = field(default_factory=list)
    """Groups of each optimizer step."""
    most_open: int = 0
    steps: list[int] = field(default_factory=list)

    instead: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """What a test does in the place of a method, by its name."""

    def spec(self, prompt: Prompt) -> GroupSpec:
        env, number, _ = prompt
        number = 2 * number + ENVIRONMENTS.index(env) if env else number
        return GroupSpec(env=env, task=TASKS[number % len(TASKS)], count=2, seed=0, group_id=str(number))

    async def run_group(self, spec: GroupSpec) -> Group:
        number = int(spec.group_id)
        place = number // 2 if spec.env else number
        assert spec == self.spec(Prompt(spec.env, place, place))
        self.admitted[number] = self.version
        done = self.version * len(self.trained[0]) if self.trained else 0
        self.most_open = max(self.most_open, len(self.admitted) - done)
        return await self.rollout(spec.task, number)

    async def run_wave(self, specs: Sequence[GroupSpec]) -> Sequence[Group]:
        groups: Sequence[Group] = await self.instead["run_wave"](specs)
        return groups

    async def train_step(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        return await self._do("train_step", self.train, groups)

    async def train(self, groups: Sequence[Group]) -> dict[str, float]:
        self.trained.append([int(group.id) for group in groups])
        await ticks(self.train_ticks)
        signal = [group.id for group in groups if has_signal([episode.reward or 0.0 for episode in group.valid])]
        counts = {f"signal/{fate}": 0.0 for fate in ("failed", "solved", "same")}
        for flat in groups:
            if flat.id not in signal:
                counts[f"signal/{fate_of(flat)}"] += 1
        return {
            "loss": 0.5,
            "grad_norm": float(len(signal)),
            "skipped": 0.0,
            "tokens": 9.0,
            "training_reward": groups[0].valid[0].reward or 0.0,
            **counts,
        }

    def has_gradient(self, metrics: Mapping[str, float]) -> bool:
        return metrics.get("grad_norm", 1.0) > 0

    def keeps(self, group: Group) -> bool:
        return SHRINK.keeps(group)

    async def publish_weights(self, step: int) -> dict[str, float]:
        return await self._do("publish_weights", self.publish, step)

    async def publish(self, step: int) -> dict[str, float]:
        assert self.published == self.version, "a version was published while the engines took another one over"
        self.published = step
        return {"published": float(step)}

    async def pull_weights(self, step: int) -> dict[str, float]:
        metrics = await self._do("pull_weights", self.pull, step)
        self.version = step
        return metrics

    async def pull(self, step: int) -> dict[str, float]:
        await ticks(self.pull_ticks)
        assert self.published == step, "another version was published meanwhile"
        return {"pulled": float(step)}

    def record_step(self, step: int, groups: Sequence[Group], metrics: dict[str, float]) -> None:
        if "record_step" in self.instead:
            self.instead["record_step"](step, groups, metrics)
            return
        assert {int(g.id) for g in groups} == set(self.trained[step - 1])
        assert metrics["loss"] == 0.5 and metrics["published"] == step
        self.steps.append(step)

    def is_evaluated(self, step: int) -> bool:
        return bool(self.instead.get("is_evaluated", lambda step: False)(step))

    def left_out(self, error: str) -> None:
        assert "returned None" in error

    def note_drop(self, group: Group, rewards: Sequence[float]) -> None:
        self.instead.get("dropped", lambda group, rewards: None)(group, rewards)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        """What a loop calls and this record does not write down."""
        if name not in ("begin_window", "prove_weights", "evaluate", "end_at", "after_step", "progress"):
            raise AttributeError(name)
        return partial(self._do, name, _nothing)

    async def _do(self, name: str, default: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        return await self.instead.get(name, default)(*arguments)

    def loop(self, **given: Any) -> Loop:
        """A loop over this record; `given` are settings, a state, and what is done in the place of a method."""
        self.objective = make_objective(**given.pop("objective", {}))
        state = LoopState(**{name: given.pop(name) for name in STATE if name in given})
        settings = {"steps": 4, "batch_size": 2, "patience": 20.0}
        settings |= {name: given.pop(name) for name in SETTINGS if name in given}
        self.instead |= given
        whole = {"in_waves": "run_wave" in given, "in_windows": "begin_window" in given}
        return Loop(self, self, Weights(self), LoopSettings(**{**whole, **settings}), state)  # type: ignore[arg-type]


async def _nothing(*_: Any) -> dict[str, float]:
    return {}


def make_objective(**parts: Any) -> Objective:
    return Objective(**{"loss": torch.nn.Identity(), "advantages": group_relative, "group_size": 2, **parts})


async def run_to_end(loop: Loop) -> None:
    """However it ends, it leaves no task behind."""
    before = asyncio.all_tasks()
    try:
        await loop.run()
    finally:
        assert asyncio.all_tasks() <= before


# ---- staleness, exactly once ----


async def test_a_step_takes_its_groups_in_the_order_of_their_admission() -> None:
    """Whichever comes back first: a run is then the same again where its groups are."""
    record = Record(rollout(group, lambda index: 9 - 2 * (index % 4)))
    await record.loop(steps=2, batch_size=4).run()
    assert record.trained == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("staleness", [0, 1, 3])
async def test_rollouts_run_ahead_as_far_as_staleness_allows(staleness: int) -> None:
    """With quick rollouts and slow steps the bound is reached: generation really overlaps with training."""
    record = Record(rollout(), train_ticks=50)
    await record.loop(steps=6, staleness=staleness).run()
    lags = {step - record.admitted[i] for step, groups in enumerate(record.trained) for i in groups}
    assert max(lags) == staleness
    assert record.most_open == (staleness + 1) * 2


@pytest.mark.parametrize(("staleness", "interval"), [(0, 1), (1, 1), (2, 1), (2, 3), (3, 2)])
async def test_engines_take_weights_over_while_the_next_step_trains(staleness: int, interval: int) -> None:
    """Its metrics come with the update after it, but for the last one, which is waited for."""
    steps, seen, during = 7, [], []

    async def train(groups: Sequence[Group]) -> dict[str, float]:
        await ticks(3)
        during.append(record.published - record.version)
        return {}

    record = Record(rollout(), pull_ticks=8)
    loop = record.loop(steps=steps, staleness=staleness, sync_interval=interval, train_step=train)

    def record_step(step: int, groups: Sequence[Group], metrics: dict[str, float]) -> None:
        seen.append((metrics.get("published"), metrics.get("pulled")))

    record.instead["record_step"] = record_step
    await run_to_end(loop)
    updates = [step for step in range(1, steps + 1) if step % interval == 0 or step == steps]
    assert [int(published) for published, _ in seen if published] == updates
    waited = updates if staleness == 0 else [0, *updates[:-2], updates[-1]]
    assert [int(pulled or 0) for published, pulled in seen if published] == waited
    overlaps = staleness >= interval  # else the next step waits for groups of the very weights that are taken over
    assert any(during) == overlaps and record.version == steps


ALONE = [(staleness, 1, 9) for staleness in range(4)]
EVALUATED = [(0, 1, 1), (0, 1, 3), (1, 1, 2), (2, 1, 1), (2, 2, 4), (3, 3, 3), (5, 2, 2)]
"""Staleness, and the intervals of updates and of evaluations."""


@pytest.mark.parametrize(
    ("deterministic", "paces"), [(False, ALONE), (False, EVALUATED), (True, EVALUATED)], ids=["", "evaluated", "waves"]
)
@given(
    latencies=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    train_ticks=st.integers(0, 20),
    pull_ticks=st.integers(0, 40),
    evaluation_ticks=st.integers(0, 60),
    batch_size=st.integers(1, 3),
    pace=st.integers(0, 27),
)
@example(latencies=[30, *[0] * 11], train_ticks=0, pull_ticks=1, evaluation_ticks=0, batch_size=1, pace=3)
def test_staleness_is_bounded_every_group_trains_once_and_an_evaluation_meets_the_weights_of_its_step(
    deterministic: bool,
    paces: list[tuple[int, int, int]],
    latencies: list[int],
    train_ticks: int,
    pull_ticks: int,
    evaluation_ticks: int,
    batch_size: int,
    pace: int,
) -> None:
    """A group admitted at version v trains at the latest in the step that starts from v + S.

    Whatever the latencies are: nothing is published during an evaluation, and the run ends.
    """
    staleness, sync_interval, interval = paces[pace % len(paces)]
    steps, evaluated, running = 7, [], 0
    if deterministic:
        staleness, sync_interval = 0, 1

    async def run_group(task: Task, index: int) -> Group:
        nonlocal running
        running += 1
        await ticks(latencies[index % len(latencies)])
        running -= 1
        return group(index)

    async def run() -> Record:
        record = Record(run_group, train_ticks, pull_ticks)

        async def run_wave(specs: Sequence[GroupSpec]) -> list[Group]:
            return list(await asyncio.gather(*map(record.run_group, specs)))

        async def evaluate(step: int) -> None:
            for _ in range(evaluation_ticks):
                assert record.version == record.published == step == len(record.trained)
                assert not (deterministic and running), "the engine answers nobody else"
                await asyncio.sleep(0)
            evaluated.append(step)

        loop = record.loop(
            steps=steps,
            batch_size=batch_size,
            staleness=staleness,
            sync_interval=sync_interval,
            **({"run_wave": run_wave} if deterministic else {}),
            evaluate=evaluate,
            is_evaluated=lambda step: step % interval == 0 and step < steps,
        )
        record.instead["record_step"] = lambda step, groups, metrics: record.steps.append(step)
        await run_to_end(loop)
        return record

    record = asyncio.run(run())
    assert evaluated == list(range(interval, steps, interval))
    assert record.steps == list(range(1, steps + 1)) and record.version == steps
    assert [len(groups) for groups in record.trained] == [batch_size] * steps
    trained_in = {index: step for step, groups in enumerate(record.trained) for index in groups}  # from version `step`
    assert len(trained_in) == steps * batch_size
    assert record.most_open <= (staleness + 1) * batch_size
    for index, version in record.admitted.items():
        if version + staleness < steps:
            assert version <= trained_in.get(index, steps) <= version + staleness


async def test_rollouts_go_on_beside_an_evaluation() -> None:
    """With room for groups of the next steps, they are sampled while the weights are measured."""
    begun: list[int] = []

    record = Record(rollout())

    async def evaluate(step: int) -> None:
        before = len(record.admitted)
        await ticks(20)
        begun.append(len(record.admitted) - before)

    await record.loop(staleness=1, evaluate=evaluate, is_evaluated=lambda step: step == 2).run()
    assert begun == [2]


async def test_an_error_of_a_pull_in_the_background_ends_the_run() -> None:
    """While the trainer waits for groups that never come, long before the next update would notice."""

    async def run_group(task: Task, index: int) -> Group:
        if index >= 2:
            await asyncio.Event().wait()
        return group(index)

    async def pull(step: int) -> dict[str, float]:
        await ticks(20)
        raise ServiceError("the engine is gone")

    record = Record(run_group)
    with pytest.raises(ServiceError, match="the engine is gone"):
        await run_to_end(record.loop(staleness=2, pull_weights=pull))
    assert record.steps == [1]


@pytest.mark.parametrize("staleness", [0, 2])
async def test_rollouts_do_not_wait_for_a_proof_and_the_next_update_does(staleness: int) -> None:
    happened: list[str] = []
    proofs = {step: asyncio.Event() for step in range(1, 5)}

    async def run_group(task: Task, index: int) -> Group:
        happened.append(f"group {index}")
        for step in range(1, 4):
            if index == 2 * step + 1:  # the second group after update `step`
                proofs[step].set()
        return group(index)

    async def publish(step: int) -> dict[str, float]:
        happened.append(f"update {step}")
        return await record.publish(step)

    async def prove(step: int) -> dict[str, float]:
        if step < 4:  # there are no groups after the last update
            await proofs[step].wait()
        happened.append(f"proof {step}")
        return {"proved": float(step)}

    record, proved = Record(run_group), []
    record.instead["record_step"] = lambda step, groups, metrics: proved.append(metrics.get("proved"))
    await record.loop(staleness=staleness, publish_weights=publish, prove_weights=prove).run()
    for step in range(1, 4):
        assert happened.index(f"proof {step}") < happened.index(f"update {step + 1}")
    assert proved == [None, 1.0, 2.0, 4.0], "the last update is proved at once, like the one before it"


# ---- faults ----


@pytest.mark.parametrize("dies", [False, True])
async def test_faulty_groups_are_dropped_counted_and_refilled(dies: bool) -> None:
    """Those whose faults leave too few episodes, and those that end their process in every try."""

    async def run_group(task: Task, index: int) -> Group:
        await ticks(index % 3)
        if dies and index % 3:
            raise ReplicaDied("envs.run_group lost 3 replicas: the envs process died")
        return group(index, [Outcome.SCORED, Outcome.ENV_FAULT if index % 3 else Outcome.SCORED], "broken")

    record = Record(run_group)
    loop = record.loop(steps=5, staleness=1)
    await run_to_end(loop)
    trained = [index for groups in record.trained for index in groups]
    assert len(trained) == 10 and all(index % 3 == 0 for index in trained)
    dropped = loop.drops.faulty[""]
    assert dropped >= 18 and loop.drops.outcomes == ({} if dies else {"env_fault": dropped})
    assert not dies or loop.ledger.dropped == {"its processes died": dropped}


@pytest.mark.parametrize("dies", [False, True])
async def test_faults_all_the_time_end_the_run_and_name_the_error(dies: bool) -> None:
    """They are no groups without a signal."""

    async def run_group(task: Task, index: int) -> Group:
        if dies:
            raise ReplicaDied("there are no more processes")
        return group(index, [Outcome.INFRA_FAULT] * 2, "SandboxError: no more processes")

    record = Record(run_group)
    loop = record.loop(objective={"needs_signal": True})
    with pytest.raises(ServiceError, match=rf"{MAX_FAULTS_IN_A_ROW} groups in a row.*no more processes"):
        await run_to_end(loop)
    assert record.trained == [] and loop.drops.flat == 0
    assert len(record.admitted) <= MAX_FAULTS_IN_A_ROW + 4


def two_environments() -> Ledger:
    return Ledger(Mixture(weights=dict.fromkeys(ENVIRONMENTS, 1.0)))


async def test_the_faults_of_each_environment_count_on_their_own() -> None:
    """Good groups of another one do not hide an environment that is broken for good."""
    broken = rollout(lambda i: group(i, [Outcome.ENV_FAULT if i % 2 else Outcome.SCORED] * 2, "no disk"))
    loop = Record(broken).loop(steps=100, ledger=two_environments())
    with pytest.raises(ServiceError, match=rf"{MAX_FAULTS_IN_A_ROW} groups of odd in a row.*no disk"):
        await run_to_end(loop)
    assert loop.drops.metrics["groups_dropped/odd"] == loop.drops.metrics["groups_dropped"] >= MAX_FAULTS_IN_A_ROW


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("slow", [1, 40])
async def test_a_slow_environment_starves_no_other_and_is_not_starved(staleness: int, slow: int) -> None:
    record = Record(rollout(group, lambda index: slow if index % 2 else 0), train_ticks=3)
    loop = record.loop(steps=12, batch_size=4, staleness=staleness, ledger=two_environments())
    await run_to_end(loop)
    for steps in range(1, 13):
        trained = [index % 2 for groups in record.trained[:steps] for index in groups]
        assert abs(sum(trained) - 2 * steps) <= 2 * staleness, "half of the groups, but for those that are open"
    begun = loop.ledger.mixture.counts["begun"]
    assert begun["even"] - begun["odd"] in (0, 1)


@pytest.mark.parametrize("flat", [False, True])
async def test_a_good_group_now_and_then_keeps_the_run_going(flat: bool) -> None:
    def make(index: int) -> Group:
        if index % MAX_FAULTS_IN_A_ROW == MAX_FAULTS_IN_A_ROW - 1:
            return group(index)
        return flat_group(index) if flat else group(index, [Outcome.ENV_FAULT] * 2, "broken")

    record = Record(rollout(make))
    settings = {"signal_error": MAX_FAULTS_IN_A_ROW, "objective": {"needs_signal": flat}}
    await record.loop(steps=3, batch_size=1, **settings).run()
    assert len(record.trained) == 3


async def test_a_group_of_one_episode_is_trained_on() -> None:
    """`--reinforce.n_samples 1`, without a baseline."""
    record = Record(rollout(lambda index: group(index, [Outcome.SCORED])))
    await record.loop(steps=2).run()
    assert len(record.trained) == 2


# ---- dynamic sampling ----


def flat_group(index: int, reward: float = 1.0) -> Group:
    """A group whose two episodes have the same reward."""
    members = group(index).episodes
    return Group(
        task=TASKS[index % len(TASKS)], episodes=tuple(replace(e, reward=reward) for e in members), id=str(index)
    )


@pytest.mark.parametrize("staleness", [0, 2])
async def test_groups_without_a_signal_are_sampled_anew_and_counted(staleness: int) -> None:
    record = Record(
        rollout(lambda index: group(index) if index % 3 == 0 else flat_group(index), lambda index: index % 4)
    )
    loop = record.loop(steps=5, staleness=staleness, objective={"needs_signal": True})
    await run_to_end(loop)
    trained = [index for groups in record.trained for index in groups]
    assert len(trained) == 10 and all(index % 3 == 0 for index in trained)
    assert loop.drops.flat >= 18
    assert loop.drops.faulty == {}


async def test_groups_that_are_dropped_teach_the_sampler_too() -> None:
    """Of five tasks one has a signal: the others are always solved, or end by faults, which teach nothing."""
    samplers = {"": TaskSampler(tasks=TASKS, seed=0, by="window")}
    ledger = Ledger(samplers=samplers)

    def make(index: int) -> Group:
        task = ledger.prompt(index).task
        faults = (Outcome.ENV_FAULT,) * 2
        return group(index) if task == 0 else group(index, faults) if task == 1 else flat_group(index)

    record = Record(rollout(make))
    await run_to_end(record.loop(steps=5, objective={"needs_signal": True}, ledger=ledger))
    assert [samplers[""].pool(index) for index in range(5)] == ["mixed", "unseen", "easy", "easy", "easy"]


async def test_too_many_without_a_signal_end_the_run_and_each_is_taken_note_of() -> None:
    dropped: list[list[float]] = []
    record = Record(rollout(lambda index: flat_group(index, reward=0.25)))
    loop = record.loop(
        objective={"needs_signal": True}, signal_error=4, dropped=lambda group, rewards: dropped.append(rewards)
    )
    words = r"nothing was trained: 8 groups in a row were dropped: each of 8 .* 0\.25 in the last.*too easy or too hard"
    with pytest.raises(NothingTrained, match=words):
        await run_to_end(loop)
    assert dropped == [[0.25, 0.25]] * 8
    assert record.trained == []


async def test_a_run_may_wait_for_a_signal_without_end() -> None:
    record = Record(rollout(lambda index: group(index) if index > 600 else flat_group(index)))
    await record.loop(steps=1, batch_size=1, signal_error=0, objective={"needs_signal": True}).run()
    assert len(record.trained) == 1


@pytest.mark.parametrize("in_windows", [False, True])
async def test_first_steps_without_a_gradient_end_a_run_of_any_algorithm(in_windows: bool) -> None:
    record = Record(rollout(lambda index: flat_group(index, reward=0.0)))
    loop = record.loop(steps=9, signal_error=3, sync_interval=2, staleness=1, in_windows=in_windows)
    record.instead["record_step"] = lambda step, groups, metrics: record.steps.append(step)
    words = (
        "nothing was trained: the first 3 steps had no gradient: never rewarded, all 6 groups .*signal_error 0 goes on"
    )
    with pytest.raises(NothingTrained, match=words):
        await run_to_end(loop)
    assert record.steps == [1, 2, 3], "the last of them is written down too"


@pytest.mark.parametrize(("signal_error", "first"), [(3, 5), (0, 99), (6, 99)])
async def test_a_gradient_in_one_of_the_first_steps_is_enough(signal_error: int, first: int) -> None:
    loop = Record(rollout(lambda index: group(index) if index == first else flat_group(index))).loop(
        steps=6, signal_error=signal_error
    )
    await loop.run()
    assert loop.steps_done == 6 and loop.drops.has_learned == (first == 5)
    if first != 5:
        with pytest.raises(NothingTrained, match="all 6 steps had no gradient"):
            loop.drops.check_trained()


async def test_a_resumed_run_goes_on_counting_its_first_steps() -> None:
    record, states = Record(rollout(lambda index: flat_group(index, reward=1.0))), []

    async def after_step(step: int, state: LoopState | None) -> None:
        assert state is not None
        states.append(json.loads(json.dumps(asdict(state.drops))))

    await record.loop(steps=3, after_step=after_step).run()
    again = Record(rollout(lambda index: flat_group(index, reward=1.0)), published=2, version=2)
    again.instead["record_step"] = lambda step, groups, metrics: again.steps.append(step)
    loop = again.loop(steps=9, signal_error=3, steps_done=2, drops=DropCounts(**states[1]))
    with pytest.raises(NothingTrained, match="the first 3 steps .* always rewarded, all 6 groups"):
        await loop.run()
    assert again.steps == [3]


async def test_a_reward_of_the_users_own_is_what_a_signal_is_judged_by() -> None:
    record = Record(rollout(flat_group))
    threads: list[threading.Thread] = []

    def last_digit(e: Episode) -> float:  # differs where the rewards do not
        threads.append(threading.current_thread())
        return float(e.id[-1])

    number = TrainingReward(user_reward=last_digit)
    loop = record.loop(steps=2, objective={"needs_signal": True, "reward": number})
    await loop.run()
    assert len(record.trained) == 2 and loop.drops.flat == 0
    assert threads and threading.main_thread() not in threads  # a slow function blocks no ping


def failing(share: float) -> TrainingReward:
    """A reward of the user's own that fails for a share of the episodes."""
    rng = random.Random(0)

    def reward(e: Episode) -> float:
        if rng.random() < share:
            raise UserError(f"--reward mine:reward for episode {e.id} returned None")
        return float(e.id[-1])

    return TrainingReward(user_reward=reward)


@pytest.mark.parametrize("in_waves", [False, True])
async def test_an_episode_that_a_reward_of_the_users_own_fails_for_is_left_out(in_waves: bool) -> None:
    groups: list[Group] = []
    record = Record(rollout(lambda index: group(index, (Outcome.SCORED,) * 3)))

    async def train(taken: Sequence[Group]) -> dict[str, float]:
        groups.extend(taken)
        return await record.train(taken)

    async def run_wave(specs: Sequence[GroupSpec]) -> list[Group]:
        return [group(int(spec.group_id), (Outcome.SCORED,) * 3) for spec in specs]

    waves = {"run_wave": run_wave} if in_waves else {}
    loop = record.loop(steps=20, train_step=train, objective={"reward": failing(1 / 9)}, **waves)
    await loop.run()
    faults = [episode for g in groups for episode in g.faults]
    assert len(record.trained) == 20 and len(faults) >= 5 and {e.outcome for e in faults} == {Outcome.ENV_FAULT}
    assert all(e.reward is None and "returned None" in e.error for e in faults)
    assert loop.drops.metrics["episodes_unjudged"] >= len(faults)


@pytest.mark.parametrize("share", [0.75, 1.0])
async def test_a_reward_that_mostly_fails_ends_the_run_between_two_steps(share: float) -> None:
    record = Record(rollout(lambda index: group(index, (Outcome.SCORED,) * 6)))
    loop = record.loop(steps=1000, objective={"reward": failing(share)})
    with pytest.raises(UserError, match=rf"\d\d of the last {MOSTLY + 2} episodes were left out: .*None") as ended:
        await run_to_end(loop)
    assert ended.value is loop.ended_by and not loop.is_in_window
    assert loop.state.steps_done == len(record.trained) == loop.state.ledger.trained / 2
    assert (share == 1.0) == (loop.steps_done == 0)


async def test_a_function_that_fails_in_a_step_leaves_a_state_that_has_its_prompts() -> None:
    record = Record(rollout())

    async def train(taken: Sequence[Group]) -> dict[str, float]:
        if len(record.trained) == 2:
            raise UserError("--advantages failed")
        return await record.train(taken)

    loop = record.loop(steps=4, train_step=train)
    with pytest.raises(UserError, match="--advantages failed"):
        await loop.run()
    ledger = Ledger()
    ledger.load_state_dict(loop.state.ledger.state_dict())
    rest, unrecorded = Record(rollout(), published=2, version=2), {"record_step": lambda *_: None}
    await rest.loop(steps=4, steps_done=2, ledger=ledger, ready=loop.state.ready, **unrecorded).run()
    assert sorted(number for step in (*record.trained, *rest.trained) for number in step) == list(range(8))


async def test_a_time_out_amid_groups_without_a_signal_names_them() -> None:
    async def run_group(task: Task, index: int) -> Group:
        if index >= 5:
            await asyncio.Event().wait()
        return flat_group(index)

    with pytest.raises(ServiceError, match="the last 5 groups were dropped"):
        await Record(run_group).loop(patience=0.05, objective={"needs_signal": True}).run()


async def test_services_that_are_too_slow_for_any_group_end_the_run_with_what_happened() -> None:
    record = Record(
        rollout(
            lambda index: group(index, [Outcome.TIMEOUT, Outcome.TIMEOUT, Outcome.SCORED], "the services were slow")
        )
    )
    loop = record.loop()
    words = "32 groups in a row had too few valid episodes; .*: timeout 2; the last error: the services were slow"
    with pytest.raises(ServiceError, match=words):
        await loop.run()
    assert not record.trained and loop.drops.outcomes["timeout"] >= 64


# ---- waves ----


@dataclass
class Waves:
    """Runs groups in waves, and writes down which began together; every third has no signal."""

    began: list[list[int]] = field(default_factory=list)

    async def __call__(self, specs: Sequence[GroupSpec]) -> list[Group]:
        numbers = [int(spec.group_id) for spec in specs]
        self.began.append(numbers)
        await ticks(len(self.began) % 5)
        return [flat_group(number) if number % 3 == 0 else group(number) for number in numbers]


async def test_waves_begin_what_a_step_still_needs() -> None:
    waves, record = Waves(), Record(lambda task, index: pytest.fail("a group was begun alone"))
    loop = record.loop(steps=3, batch_size=4, objective={"needs_signal": True}, run_wave=waves)
    await run_to_end(loop)
    assert waves.began[:4] == [[0, 1, 2, 3], [4, 5], [6, 7, 8, 9], [10, 11]]
    assert record.trained == [[1, 2, 4, 5], [7, 8, 10, 11], [13, 14, 16, 17]]
    assert loop.drops.flat == 6


async def test_resumed_waves_equal_the_waves_of_an_unbroken_run() -> None:
    """Wherever the checkpoint falls: before a wave, in it, or between two of them."""

    async def record(late: int, **place: Any) -> tuple[Waves, Record, list[tuple[dict[str, Any], list[ReadyGroup]]]]:
        done = place.get("steps_done", 0)
        waves, places = Waves(), []
        record = Record(lambda task, index: pytest.fail("a group was begun alone"), published=done, version=done)

        async def after_step(step: int, state: LoopState | None) -> None:
            await ticks(late)  # the next wave begins meanwhile
            places.append((loop.ledger.state_dict(), loop.state.ready))

        loop = record.loop(
            steps=5, batch_size=4, objective={"needs_signal": True}, run_wave=waves, after_step=after_step, **place
        )
        record.instead["record_step"] = lambda step, groups, metrics: None
        await loop.run()
        return waves, record, places

    results = []
    for late in range(12):
        whole, trained, places = await record(late)
        for step, (place, ready) in enumerate(places[:-1], 1):
            ledger = Ledger()
            ledger.load_state_dict(place)
            rest, trained_after, _ = await record(late, steps_done=step, ledger=ledger, ready=ready)
            began = whole.began[whole.began.index(rest.began[0]) :]
            both = min(len(began), len(rest.began))  # the end of a run may come before its last wave, or after it
            assert began[:both] == rest.began[:both]
            assert trained_after.trained == trained.trained[step:]
            results.append((len(place["open"]), len(place["ready"])))
    assert {(4, 0), (2, 2), (4, 4)} & {*results} and len({*results}) > 1


# ---- deadlines and exceptions ----


@pytest.mark.parametrize("in_waves", [False, True])
async def test_no_group_in_time_ends_the_run(in_waves: bool) -> None:
    async def hangs(*_: Any) -> Any:
        await asyncio.Event().wait()

    words = r"nothing has moved for 0\.05 s: 0 of 2 open groups are finished"
    words += "" if in_waves else ".*wait for groups 0, 1; the env"
    with pytest.raises(ServiceError, match=words):
        await run_to_end(Record(hangs).loop(patience=0.05, **({"run_wave": hangs} if in_waves else {})))


async def test_a_group_may_take_as_long_as_something_moves() -> None:
    """It is back only after twice the looks that are taken within the patience, each of which saw a step more."""
    steps, back = itertools.count(), asyncio.Event()

    async def progress() -> int:
        step = next(steps)
        if step >= 16:
            back.set()
        return step

    async def run_group(task: Task, index: int) -> Group:
        await back.wait()
        return group(index)

    record = Record(run_group)
    await run_to_end(record.loop(steps=1, patience=0.05, progress=progress))
    assert record.steps == [1] and next(steps) > 16


class Bug(Exception):
    """Not one of forge_env's."""


WHERE = ("run_group", "begin_window", "train_step", "publish_weights", "pull_weights", "prove_weights", "evaluate")


@pytest.mark.parametrize("error", [ServiceError("the trainer died"), Bug("a bug")], ids=["ServiceError", "Bug"])
@pytest.mark.parametrize("where", WHERE)
async def test_an_error_of_the_loop_is_raised_unchanged(where: str, error: Exception) -> None:
    async def breaks(*_: Any) -> Any:
        await ticks(3)
        raise error

    async def run_group(task: Task, index: int) -> Group:
        if where == "run_group" and index == 3:
            await breaks()
        return group(index)

    loop = Record(run_group).loop(is_evaluated=lambda step: True, **({} if where == "run_group" else {where: breaks}))
    with pytest.raises(type(error), match=str(error)):
        await run_to_end(loop)


async def test_a_run_that_is_cancelled_leaves_nothing() -> None:
    started = asyncio.Event()

    async def run_group(task: Task, index: int) -> Group:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    running = asyncio.create_task(run_to_end(Record(run_group).loop(staleness=2)))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


# ---- going on ----


async def test_a_loop_that_has_all_its_steps_admits_nothing() -> None:
    record = Record(lambda task, index: pytest.fail("a group was admitted"))
    await record.loop(steps=4, steps_done=4).run()
    assert record.admitted == {} and record.steps == []


# ---- stopping ----


async def test_a_loop_that_is_stopped_in_a_step_finishes_it_and_its_state_goes_on() -> None:
    record = Record(rollout())

    async def train_step(groups: Sequence[Group]) -> dict[str, float]:
        loop.stop()  # amid the step
        return await record.train(groups)

    loop = record.loop(steps=50, train_step=train_step)
    await run_to_end(loop)
    assert len(record.trained) == 1 and loop.state.steps_done == 1
    rest, unrecorded = Record(rollout(), published=1, version=1), {"record_step": lambda *_: None}
    await rest.loop(steps=3, steps_done=1, ledger=loop.ledger, ready=loop.state.ready, **unrecorded).run()
    trained = [number for step in (*record.trained, *rest.trained) for number in step]
    assert len(rest.trained) == 2 and len(trained) == len(set(trained)), "no prompt was trained twice"


async def test_a_loop_that_waits_for_groups_or_an_evaluation_stops_at_once() -> None:
    async def hangs(*_: Any) -> Any:
        asyncio.get_running_loop().call_soon(loop.stop)
        await asyncio.Event().wait()

    record = Record(hangs)
    loop = record.loop(steps=50)
    await run_to_end(loop)
    assert loop.state.steps_done == 0
    record = Record(rollout())
    loop = record.loop(steps=50, is_evaluated=lambda step: step == 2, evaluate=hangs)
    await run_to_end(loop)
    assert loop.state.steps_done == 2


async def test_a_loop_that_is_stopped_while_engines_take_weights_over_begins_no_evaluation() -> None:
    async def pull_weights(step: int) -> dict[str, float]:
        loop.stop()
        return await record.pull(step)

    async def evaluate(step: int) -> None:
        raise AssertionError("an evaluation began")

    record = Record(rollout())
    given = {"is_evaluated": lambda step: True, "evaluate": evaluate, "pull_weights": pull_weights}
    loop = record.loop(steps=50, staleness=1, **given)
    await run_to_end(loop)
    assert loop.state.steps_done == 1


async def test_a_window_that_is_begun_is_finished_before_the_loop_stops() -> None:
    async def begin_window(batches: Sequence[Sequence[Group]]) -> dict[str, float]:
        loop.stop()
        return {}

    record = Record(rollout())
    unrecorded = {"record_step": lambda *_: None}
    loop = record.loop(steps=50, sync_interval=3, staleness=2, begin_window=begin_window, **unrecorded)
    await run_to_end(loop)
    assert loop.state.steps_done == len(record.trained) == 3
