"""The last checkpoint of a run is written while the run evaluates and exports."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from trainers.run.checkpointing import last_checkpoint


class Run:
    """What `last_checkpoint` asks of a run, and in what order."""

    def __init__(self, *, asynchronous: bool = True, cpu_offload: bool = False, procs: int = 1) -> None:
        self.done: list[str] = []
        self.plan = SimpleNamespace(
            config=SimpleNamespace(
                checkpoint=SimpleNamespace(asynchronous=asynchronous),
                training=SimpleNamespace(cpu_offload=cpu_offload),
                services=SimpleNamespace(trainer=SimpleNamespace(procs=procs)),
            ),
            deadlines=SimpleNamespace(checkpoint=5.0),
        )
        ranks = SimpleNamespace(call_one=self.call)
        self.trainer = SimpleNamespace(ranks=SimpleNamespace(deadline=lambda seconds, what: ranks))
        self.record = SimpleNamespace(span=lambda track, name: nullcontext())

    async def call(self, endpoint: Any) -> None:
        self.done.append("written")

    async def save(self, *, asynchronous: bool) -> None:
        self.done.append("copied" if asynchronous else "saved")

    async def end(self, error: BaseException | None = None) -> None:
        async with last_checkpoint(self, self.save):  # type: ignore[arg-type]
            self.done.append("evaluated")
            if error is not None:
                raise error


async def test_it_is_copied_first_and_waited_for_last() -> None:
    run = Run()
    await run.end()
    assert run.done == ["copied", "evaluated", "written"]


async def test_it_is_written_although_the_evaluation_fails() -> None:
    run = Run()
    with suppress(RuntimeError):
        await run.end(RuntimeError("the evaluation fails"))
    assert run.done == ["copied", "evaluated", "written"]


@pytest.mark.parametrize("changes", [{"asynchronous": False}, {"cpu_offload": True}, {"procs": 2}])
async def test_it_is_written_first_if_it_is_not_to_be_copied(changes: dict[str, Any]) -> None:
    run = Run(**changes)
    await run.end()
    assert run.done == ["saved", "evaluated"]
