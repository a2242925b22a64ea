"""Work without a deadline goes on for as long as something moves."""

from __future__ import annotations

import asyncio

import pytest

from forge_env.core.errors import ServiceError
from forge_env.utils.progress import fail_if_stalled


async def test_work_ends_when_nothing_moves() -> None:
    places = [0, 1, 2, 3]

    async def place() -> int:
        return places.pop(0) if places else 3

    with pytest.raises(ServiceError, match="^it hangs$"):
        async with fail_if_stalled(place, seconds=0.05, sentence=lambda: "it hangs"):
            await asyncio.Event().wait()
    assert places == [] and asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_time_out_of_the_work_itself_stays_what_it_is() -> None:
    async def place() -> int:
        return 0

    with pytest.raises(TimeoutError, match="its own"):
        async with fail_if_stalled(place, seconds=20.0, sentence=lambda: "it hangs"):
            raise TimeoutError("its own")
