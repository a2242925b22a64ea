"""Actions on the loop, in any order and at any moment: every prompt is trained once, and every step is taken."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.errors import UserError
from tests.trainers.controller.test_loop import Record, rollout, run_to_end, ticks

ACTIONS = ("pause", "resume", "evaluate", "more", "fewer", "stop")


async def act(record: Record, loop: Any, actions: list[tuple[int, str]], refused: Counter[str]) -> None:
    """Do each action after so many ticks; a run that is paused at the end goes on."""
    controls = loop.controls
    for wait, action in actions:
        await ticks(wait)
        try:
            if action == "stop":
                loop.stop()
            elif action in ("more", "fewer"):
                steps = controls.steps + (2 if action == "more" else -1)
                controls.check_steps(steps)
                controls.steps = steps
            else:
                getattr(controls, action)()
        except UserError:
            refused[action] += 1
    if controls.is_paused and controls.queue is not None:
        controls.resume()


@pytest.mark.parametrize(("staleness", "interval", "window"), [(0, 1, False), (2, 1, False), (2, 3, True)])
@given(
    latencies=st.lists(st.integers(0, 20), min_size=1, max_size=8),
    actions=st.lists(st.tuples(st.integers(0, 30), st.sampled_from(ACTIONS[:-1])), max_size=12),
    stop=st.one_of(st.none(), st.integers(0, 200)),
)
def test_every_prompt_is_trained_once(
    staleness: int,
    interval: int,
    window: bool,
    latencies: list[int],
    actions: list[tuple[int, str]],
    stop: int | None,
) -> None:
    evaluated: list[tuple[int, int]] = []
    ends: list[int] = []
    refused: Counter[str] = Counter()

    async def run() -> tuple[Record, Any]:
        record = Record(rollout(latency=lambda index: latencies[index % len(latencies)]))

        async def evaluate(step: int) -> None:
            at = record.version
            await ticks(5)
            assert record.version == at, "the weights changed during an evaluation"
            evaluated.append((step, at))

        async def end_at(steps: int) -> None:
            ends.append(steps)

        async def begin_window(batches: Any) -> dict[str, float]:
            return {}

        record.instead["record_step"] = lambda step, groups, metrics: record.steps.append(step)
        more: dict[str, Any] = {"begin_window": begin_window} if window else {}
        loop = record.loop(
            steps=5, staleness=staleness, sync_interval=interval, evaluate=evaluate, end_at=end_at, **more
        )
        acting = asyncio.create_task(
            act(record, loop, [*actions, *([(stop, "stop")] if stop is not None else [])], refused)
        )
        async with asyncio.timeout(20):
            await run_to_end_beside(loop, acting)
        return record, loop

    record, loop = asyncio.run(run())
    trained = [index for groups in record.trained for index in groups]
    assert len(set(trained)) == len(trained) == 2 * len(record.steps), "trained once"
    counts = loop.ledger.counts
    assert counts["trained"] == len(trained) and counts["dropped"] == 0
    state = loop.state  # every prompt is trained, ready or begins again
    ledger = state.ledger.state_dict()
    assert sorted([*trained, *ledger["open"]]) == list(range(ledger["next"]))
    assert record.steps == list(range(1, loop.steps_done + 1))
    if stop is None:
        assert loop.steps_done == loop.controls.steps == loop.settings.steps
    assert all(step == version for step, version in evaluated)
    for step, groups in enumerate(record.trained):
        assert all(step - record.admitted[index] <= staleness for index in groups)


async def run_to_end_beside(loop: Any, acting: asyncio.Task[None]) -> None:
    running = asyncio.create_task(run_to_end(loop))
    await acting
    await running


async def test_a_pause_lets_no_step_and_no_group_begin() -> None:
    record = Record(rollout(), train_ticks=4)
    loop = record.loop(steps=6, staleness=1)
    running = asyncio.create_task(loop.run())
    while not record.steps:
        await asyncio.sleep(0)
    loop.controls.pause()
    await ticks(20)  # the step in progress
    steps, groups = list(record.steps), dict(record.admitted)
    await ticks(200)
    assert record.steps == steps and record.admitted == groups and len(steps) < 6
    assert loop.controls.queue is not None and loop.controls.queue()["steps_done"] == len(steps)
    with pytest.raises(UserError, match="the run is paused already"):
        loop.controls.pause()
    loop.controls.resume()
    await running
    assert record.steps == [1, 2, 3, 4, 5, 6]
    with pytest.raises(UserError, match="the run takes no steps now"):
        loop.controls.pause()


async def test_a_paused_run_is_not_stalled_and_is_evaluated_and_stopped() -> None:
    """Nothing moves for longer than its patience; an evaluation and a stop end their waiting all the same."""
    evaluated: list[int] = []

    async def evaluate(step: int) -> None:
        evaluated.append(step)

    record = Record(rollout())
    loop = record.loop(steps=50, patience=0.02, evaluate=evaluate)
    running = asyncio.create_task(loop.run())
    while not record.steps:
        await asyncio.sleep(0)
    loop.controls.pause()
    await ticks(50)
    await asyncio.sleep(0.1)
    loop.controls.evaluate()
    await ticks(50)
    assert evaluated == [len(record.steps)] and not running.done()
    loop.stop()
    await running
    assert len(record.steps) == evaluated[0] < 50


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [(1, "training.steps cannot be 1, as step 2 has begun"), (2, "training.steps cannot be 2, as step 2 has begun")],
)
async def test_steps_that_have_begun_stay(steps: int, sentence: str) -> None:
    entered, released = asyncio.Event(), asyncio.Event()

    async def train(groups: Any) -> dict[str, float]:
        if len(record.trained) == 1:
            entered.set()
            await released.wait()
        return await record.train(groups)

    record = Record(rollout())
    loop = record.loop(steps=4, train_step=train)
    running = asyncio.create_task(loop.run())
    await entered.wait()
    with pytest.raises(UserError, match=sentence):
        loop.controls.check_steps(steps)
    loop.controls.check_steps(3)
    loop.controls.steps = 3
    released.set()
    await running
    assert record.steps == [1, 2, 3] and loop.settings.steps == 3
