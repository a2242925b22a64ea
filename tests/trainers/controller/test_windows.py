"""Windows of the loop: all groups of the steps between two updates of the engines are taken before the first step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forge_env.core.episode import Group
from forge_env.core.errors import InvariantError
from forge_env.core.types import Outcome, Task
from forge_env.rollout.rollout import GroupSpec
from tests.trainers.controller.test_loop import Record, group, rollout, run_to_end, ticks
from trainers.controller.ledger import Ledger
from trainers.controller.loop import Loop
from trainers.controller.loop_state import LoopState


def numbers(groups: Sequence[Group]) -> list[int]:
    return [int(group.id) for group in groups]


@dataclass
class Windows(Record):
    """Writes down the windows too."""

    windows: list[list[list[int]]] = field(default_factory=list)
    """Of each the groups of its steps."""
    began: list[int] = field(default_factory=list)
    """Steps that were done when it began."""

    async def begin_window(self, batches: Sequence[Sequence[Group]]) -> dict[str, float]:
        assert self.published == self.first + len(self.trained), "the trainer's weights are those published last"
        self.began.append(self.published)
        await ticks(3)
        self.windows.append([numbers(batch) for batch in batches])
        return {"window": float(len(batches))}

    first: int = 0
    """Steps that were done when the run went on."""

    def loop(self, **settings: Any) -> Loop:
        self.instead["record_step"] = lambda step, groups, metrics: self.steps.append(step)
        return super().loop(in_windows=True, **settings)


def sizes(steps: int, interval: int, first: int = 0) -> list[int]:
    """Steps of each window of a run."""
    results = []
    while first < steps:
        results.append(min(interval - first % interval, steps - first))
        first += results[-1]
    return results


@pytest.mark.parametrize("deterministic", [False, True])
@given(
    latencies=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    train_ticks=st.integers(0, 20),
    pull_ticks=st.integers(0, 40),
    batch_size=st.integers(1, 3),
    interval=st.integers(1, 5),
    more=st.integers(0, 6),
    steps=st.integers(1, 11),
    drops=st.integers(2, 9),
)
@example([30, 0, 0, 0], 0, 40, 1, 4, 0, 10, 3)
@example([0], 20, 40, 2, 3, 3, 7, 2)
def test_a_window_takes_all_its_groups_first_and_breaks_no_promise(
    deterministic: bool,
    latencies: list[int],
    train_ticks: int,
    pull_ticks: int,
    batch_size: int,
    interval: int,
    more: int,
    steps: int,
    drops: int,
) -> None:
    """No deadlock, every group once, none older than the setting, and the last window as short as is left."""
    staleness = interval - 1 + (0 if deterministic else more)

    async def run_group(task: Task, index: int) -> Group:
        await ticks(latencies[index % len(latencies)])
        return group(index, (Outcome.ENV_FAULT if index % drops == 1 else Outcome.SCORED,) * 2)

    async def run() -> Windows:
        record = Windows(run_group, train_ticks, pull_ticks)

        async def run_wave(specs: Sequence[GroupSpec]) -> list[Group]:
            return list(await asyncio.gather(*map(record.run_group, specs)))

        loop = record.loop(
            steps=steps,
            batch_size=batch_size,
            staleness=staleness,
            sync_interval=interval,
            **({"run_wave": run_wave} if deterministic else {}),
        )
        await run_to_end(loop)
        return record

    record = asyncio.run(run())
    assert record.steps == list(range(1, steps + 1)) and record.version == steps
    assert [len(window) for window in record.windows] == sizes(steps, interval)
    assert [batch for window in record.windows for batch in window] == record.trained
    assert [len(batch) for batch in record.trained] == [batch_size] * steps
    trained_in = {index: step for step, groups in enumerate(record.trained) for index in groups}
    assert len(trained_in) == steps * batch_size
    for index, step in trained_in.items():
        assert record.admitted[index] <= step <= record.admitted[index] + staleness
    if staleness == interval - 1:
        for began, window in zip(record.began, record.windows, strict=True):
            assert {record.admitted[index] for batch in window for index in batch} == {began}


async def test_which_groups_a_step_takes_does_not_depend_on_the_clock_in_waves() -> None:
    async def trained(latencies: Sequence[int]) -> list[list[int]]:
        async def run_wave(specs: Sequence[GroupSpec]) -> list[Group]:
            wave = [int(spec.group_id) for spec in specs]
            await ticks(latencies[wave[0] % len(latencies)])
            return [group(i, (Outcome.ENV_FAULT if i % 4 == 1 else Outcome.SCORED,) * 2) for i in wave]

        record = Windows(lambda task, index: pytest.fail("not in a wave"), train_ticks=latencies[0])
        record.admitted = {}
        loop = record.loop(steps=9, staleness=3, sync_interval=4, run_wave=run_wave)
        await loop.run()
        return record.trained

    assert await trained([0]) == await trained([20, 3, 11]) == await trained([1, 30])


PACES = [(0, 1, False), (1, 1, False), (3, 1, False), (0, 1, True), (2, 3, True), (5, 3, True), (4, 2, True)]


@pytest.mark.parametrize(("staleness", "interval", "in_windows"), PACES)
async def test_a_run_that_goes_on_loses_and_repeats_no_prompt(staleness: int, interval: int, in_windows: bool) -> None:
    """After any step, or any window: what was ready is trained on as it was, and only what was running begins again."""
    steps = 8

    async def flaky(task: Task, index: int) -> Group:
        await ticks(index % 4)
        return group(index, (Outcome.ENV_FAULT if index % 3 == 1 else Outcome.SCORED,) * 2)

    async def run(**place: Any) -> tuple[Record, Loop, dict[int, tuple[dict[str, Any], Any]]]:
        done, places = place.get("steps_done", 0), {}
        start: dict[str, Any] = {"train_ticks": 20, "published": done, "version": done}
        record = Windows(flaky, first=done, **start) if in_windows else Record(flaky, **start)
        record.instead["record_step"] = lambda step, groups, metrics: record.steps.append(step)

        async def after_step(step: int, state: LoopState | None) -> None:
            assert record.steps[-1] == step == loop.steps_done  # it is written down by then
            assert (state is None) == loop.is_in_window == (in_windows and step % interval != 0 and step < steps)
            if state is not None:
                places[step] = state.ledger.state_dict(), state.ready

        loop = record.loop(steps=steps, staleness=staleness, sync_interval=interval, after_step=after_step, **place)
        await loop.run()
        return record, loop, places

    whole, _, places = await run()
    assert list(places) == [step for step in range(1, steps + 1) if step % interval == 0 or step == steps]
    assert in_windows or any(ready for _, ready in places.values()) == (staleness > 0)
    for step, (place, ready) in places.items():
        ledger = Ledger()
        ledger.load_state_dict(place)
        assert sorted(group.number for group in ready) == place["ready"]
        rest, loop, _ = await run(steps_done=step, ledger=ledger, ready=ready)
        assert rest.steps == list(range(step + 1, steps + 1))
        if isinstance(rest, Windows):
            assert [len(window) for window in rest.windows] == sizes(steps, interval, step)
        trained = [index for groups in whole.trained[:step] + rest.trained for index in groups]
        assert len(trained) == len(set(trained)) == loop.ledger.trained == steps * 2
        assert not set(place["ready"]) & set(rest.admitted)
        assert set(place["open"]) - set(place["ready"]) <= set(rest.admitted) or step == steps
        admitted = {group.number: whole.admitted[group.number] for group in ready} | rest.admitted
        for later, groups in enumerate(rest.trained, step):  # from version `later`
            assert all(0 <= later - admitted[index] <= staleness for index in groups)
        if staleness == interval - 1:
            assert rest.trained == whole.trained[step:]


async def test_a_run_of_other_settings_goes_on_inside_of_a_window_with_what_is_left_of_it() -> None:
    record = Windows(rollout(), published=2, version=2, first=2)
    await record.loop(steps=9, steps_done=2, staleness=3, sync_interval=4).run()
    assert [len(window) for window in record.windows] == [2, 4, 1]


async def test_groups_that_are_taken_are_in_no_checkpoint() -> None:
    async def after_step(step: int, state: LoopState | None) -> None:
        assert loop.state.ready == []

    record = Windows(rollout())
    loop = record.loop(steps=4, staleness=1, sync_interval=2, after_step=after_step)
    with pytest.raises(InvariantError, match="after step 1, groups are taken that no step has trained on"):
        await loop.run()
