"""Slots are warm before requests need them, are replaced in the background, and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from forge_env.core.errors import SandboxError, UserError
from forge_env.core.sandbox import ExecRequest, ExecResult, ExecStatus, Limits
from sandboxes import open_sandbox
from sandboxes.host.warm_slots import WarmSlots
from tests.helpers.processes import control_groups, descendants
from tests.helpers.sandboxes import opened, owner_of, said_by
from tests.helpers.waiting import is_alive, until

pytestmark = pytest.mark.asyncio

LONG = Limits(wall_s=60)
SPENDS_SLOT = "import socket\ntry: socket.create_connection(('192.0.2.1', 80))\nexcept OSError: pass"
"""A failed connection changes a counter of the slot's network, which is then discarded."""


class Made:
    """Slots that are numbers. A start waits for `allow`, unless `free`; a number in `cold` serves no request."""

    def __init__(self, *, warm: int, most: int, free: bool = True) -> None:
        self.made: list[int] = []
        self.ended: list[int] = []
        self.cold: set[int] = set()
        self.failures: list[Exception] = []
        self._allowed = asyncio.Semaphore(10**6 if free else 0)
        self.slots: WarmSlots[int] = WarmSlots(
            "numbered", start=self._start, end=self.ended.append, is_warm=self._is_warm, warm=warm, most=most
        )

    def allow(self) -> None:
        self._allowed.release()

    async def _start(self) -> int:
        await self._allowed.acquire()
        if self.failures:
            raise self.failures.pop()
        self.made.append(len(self.made))
        return self.made[-1]

    def _is_warm(self, slot: int) -> bool:
        return slot not in self.cold


async def taken(slots: WarmSlots[int], count: int) -> list[int]:
    return [await slots.take() for _ in range(count)]


async def turns() -> None:
    """Let every task run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_there_are_as_many_idle_slots_as_busy_ones_up_to_the_most() -> None:
    made = Made(warm=2, most=7)
    await made.slots.fill()
    counts = []
    for _ in range(7):
        await made.slots.take()
        await made.slots.fill()
        counts.append((made.slots.stats.busy, made.slots.stats.idle))
    assert counts == [(1, 1), (2, 2), (3, 3), (4, 3), (5, 2), (6, 1), (7, 0)]
    assert made.slots.stats.waited_for_start == 0


async def test_the_slot_used_last_is_used_next() -> None:
    made = Made(warm=3, most=3)
    await made.slots.fill()
    slot = await made.slots.take()
    made.slots.give_back(slot)
    assert await made.slots.take() == slot and len(made.made) == 3


async def test_a_slot_that_is_used_up_is_replaced_while_others_serve() -> None:
    made = Made(warm=2, most=2)
    await made.slots.fill()
    first, second = await taken(made.slots, 2)
    made.cold.add(first)
    made.slots.give_back(first)
    made.slots.give_back(second)
    assert (made.ended, made.slots.stats.starting) == ([first], 1)
    assert await made.slots.take() == second, "no request waits while a warm slot is idle"
    await made.slots.fill()
    assert (made.slots.stats.idle, made.slots.stats.waited_for_start) == (1, 0)


async def test_a_slot_that_goes_cold_while_it_is_idle_serves_nobody() -> None:
    made = Made(warm=1, most=1)
    await made.slots.fill()
    made.cold.add(0)
    assert await made.slots.take() == 1
    assert (made.ended, made.slots.stats.waited_for_start) == ([0], 1)


async def test_requests_that_wait_are_served_in_their_order_by_starts_and_by_slots_given_back() -> None:
    made = Made(warm=0, most=2, free=False)
    served: list[tuple[str, int]] = []

    async def request(name: str) -> None:
        served.append((name, await made.slots.take()))

    requests = [asyncio.create_task(request(name)) for name in "abc"]
    await turns()
    assert (served, made.slots.stats.waited_for_start) == ([], 3)
    made.allow()
    await turns()
    made.slots.give_back(0)
    await turns()
    assert served == [("a", 0), ("b", 0)]
    made.allow()
    await asyncio.gather(*requests)
    assert served[2] == ("c", 1)


async def test_a_start_that_fails_is_told_to_one_request_and_tried_again_for_the_next() -> None:
    made = Made(warm=0, most=1)
    made.failures = [SandboxError("no memory")]
    told = await asyncio.gather(made.slots.take(), made.slots.take(), return_exceptions=True)
    assert isinstance(told[0], SandboxError) and told[1] == 0


async def test_a_start_that_fails_with_no_request_is_told_to_who_fills_and_is_not_repeated() -> None:
    made = Made(warm=1, most=1)
    made.failures = [SandboxError("second"), SandboxError("first")]
    with pytest.raises(SandboxError, match="first"):
        await made.slots.fill()
    assert len(made.failures) == 1
    with pytest.raises(SandboxError, match="second"):
        await made.slots.fill()
    await made.slots.fill()
    assert made.slots.stats.idle == 1


@pytest.mark.parametrize("served", [False, True], ids=["waits", "just served"])
async def test_a_request_that_is_cancelled_while_it_waits_keeps_no_slot(served: bool) -> None:
    made = Made(warm=1, most=1)
    await made.slots.fill()
    slot = await made.slots.take()
    request = asyncio.create_task(made.slots.take())
    await turns()
    if served:
        made.slots.give_back(slot)  # its future has the slot, and the task has not run yet
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    if not served:
        made.slots.give_back(slot)
    assert (made.slots.stats.idle, made.slots.stats.busy) == (1, 0)
    assert await made.slots.take() == slot


async def test_closing_ends_idle_slots_and_those_that_are_being_started() -> None:
    made = Made(warm=1, most=4, free=False)
    made.allow()
    await made.slots.fill()
    busy = await made.slots.take()  # a second one is now being started
    waiting = [asyncio.create_task(made.slots.take()) for _ in range(2)]
    await turns()
    closing = asyncio.create_task(made.slots.close())
    await turns()
    assert not closing.done(), "it waits for the starts"
    for _ in range(3):
        made.allow()
    await closing
    for request in waiting:
        with pytest.raises(SandboxError, match="numbered sandbox is closed"):
            await request
    with pytest.raises(SandboxError, match="numbered sandbox is closed"):
        await made.slots.take()
    made.slots.give_back(busy)
    assert sorted(made.ended) == made.made
    assert made.slots.stats.idle == made.slots.stats.starting == made.slots.stats.busy == 0


async def test_cells_of_sessions_and_runs_take_turns() -> None:
    async with opened(slots=1) as sandbox:
        session = await sandbox.open_session()
        order: list[str] = []

        async def client(name: str) -> None:
            for _ in range(3):
                await (session.run("pass") if name == "cell" else sandbox.run("pass"))
                order.append(name)

        await asyncio.gather(client("cell"), client("run"))
        assert order == ["cell", "run"] * 3
        await session.close()


async def test_a_slot_whose_network_was_touched_is_replaced_in_the_background() -> None:
    async with opened(slots=4) as sandbox:
        started, waited = sandbox.slot_stats.started, sandbox.slot_stats.waited_for_start
        for replaced in (1, 2):
            await sandbox.run(SPENDS_SLOT)
            assert (await sandbox.run("pass")).status is ExecStatus.OK
            await sandbox.warm_up()
            assert (sandbox.slot_stats.started, sandbox.slot_stats.idle) == (started + replaced, 4)
        assert sandbox.slot_stats.waited_for_start == waited


async def test_an_ordinary_end_keeps_the_slot() -> None:
    async with opened(slots=2) as sandbox:
        before = sandbox.slot_stats
        for code in ("1 / 0", "import os; os.abort()", "import os\nwhile True: os.write(1, b'x' * 65536)"):
            await sandbox.run(code)
        long = asyncio.create_task(sandbox.run(ExecRequest(code="import time; time.sleep(60)", limits=LONG)))
        await until(lambda: sandbox.slot_stats.busy == 1)
        long.cancel()
        await asyncio.wait([long])
        assert sandbox.slot_stats == before


async def test_slots_are_warm_again_after_the_zygote_died() -> None:
    idle = descendants(os.getpid())
    async with opened(slots=4) as sandbox:
        _, zygote, *_ = sorted(descendants(os.getpid()) - idle)
        os.kill(zygote, signal.SIGKILL)
        await until(lambda: not is_alive(zygote))
        assert (await sandbox.run("print(1)")).stdout == "1\n"
        await sandbox.warm_up()
        waited = sandbox.slot_stats.waited_for_start
        await asyncio.gather(*(sandbox.run("pass") for _ in range(4)))
        assert sandbox.slot_stats.waited_for_start == waited


async def test_closing_while_slots_are_being_started_leaves_nothing() -> None:
    before = descendants(os.getpid()), control_groups(os.getpid())
    async with opened(slots=8, warm=0) as sandbox:
        requests = [asyncio.create_task(sandbox.run("pass")) for _ in range(8)]
        while not sandbox.slot_stats.starting:
            await asyncio.sleep(0)
    for ended in await asyncio.gather(*requests, return_exceptions=True):
        assert isinstance(ended, SandboxError | ExecResult)
    assert (descendants(os.getpid()), control_groups(os.getpid())) == before


OWNER = """
import asyncio, time
from sandboxes import open_sandbox

async def main():
    async with open_sandbox("namespace", slots=8, warm=0) as sandbox:
        requests = [asyncio.create_task(sandbox.run("pass")) for _ in range(8)]
        while not sandbox.slot_stats.starting:
            await asyncio.sleep(0)
        print("starting", flush=True)
        time.sleep(60)  # the event loop stands still in the middle of the starts

asyncio.run(main())
"""


async def test_slots_that_are_being_started_do_not_outlive_a_killed_owner() -> None:
    async with opened(slots=1):
        pass  # skips where nothing isolates
    with owner_of(OWNER) as owner:
        assert said_by(owner) == "starting\n"
        family = descendants(owner.pid)
        assert family
        owner.send_signal(signal.SIGKILL)
        await until(lambda: not any(is_alive(pid) for pid in family))


async def test_warm_is_between_none_and_all() -> None:
    for warm in (-1, 3):
        with pytest.raises(UserError, match=f"warm must be between 0 and slots, which is 2, not {warm}"):
            async with open_sandbox("namespace", slots=2, warm=warm):
                pass
