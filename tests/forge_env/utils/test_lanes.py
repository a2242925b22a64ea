"""Fast functions share a thread. One that blocks never holds up the loop, nor the others for longer than two looks."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from contextvars import ContextVar
from typing import Any

import pytest

from forge_env.utils import lanes, trust, workers
from forge_env.utils.lanes import lane_of
from forge_env.utils.threads import invoke
from forge_env.utils.trust import TRIAL_CALLS, trust_in
from forge_env.utils.workers import Call, GivenUp
from tests.helpers.waiting import DEADLINE_S, until

word: ContextVar[str] = ContextVar("word", default="none")


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine any call may look slow, so here no call does; and the lane looks only when a test says so."""
    monkeypatch.setattr(trust, "FAST_SECONDS", math.inf)
    monkeypatch.setattr(trust, "SLOW_SECONDS", math.inf)
    monkeypatch.setattr(workers, "SLOW_SECONDS", math.inf)
    monkeypatch.setattr(lanes, "LOOK_SECONDS", 3600.0)


def look() -> None:
    lane_of(asyncio.get_running_loop()).look()


async def earn_trust(function: Any, *args: Any) -> None:
    for _ in range(TRIAL_CALLS):
        assert not trust_in(function)
        await invoke(function, *args)
    assert trust_in(function)


def new_functions() -> tuple[Any, Any]:
    """Return two functions that return their thread. The second one waits for an event, and sets another before."""

    def quick() -> int:
        return threading.get_ident()

    def wait(event: threading.Event | None = None, began: threading.Event | None = None) -> int:
        if began is not None:
            began.set()
        if event is not None:
            assert event.wait(DEADLINE_S)
        return threading.get_ident()

    return quick, wait


async def trusted_functions() -> tuple[Any, Any]:
    functions = new_functions()
    for function in functions:
        await earn_trust(function)
    return functions


async def test_calls_of_trusted_functions_share_one_thread() -> None:
    quick, wait = await trusted_functions()
    threads = await asyncio.gather(*(invoke(function) for function in (quick, wait) * 100))
    assert len(set(threads)) == 1 and threading.get_ident() not in threads


async def test_calls_of_a_trial_have_threads_of_their_own() -> None:
    barrier = threading.Barrier(TRIAL_CALLS)

    def meet() -> int:
        barrier.wait(DEADLINE_S)
        return threading.get_ident()

    assert len(set(await asyncio.gather(*(invoke(meet) for _ in range(TRIAL_CALLS))))) == TRIAL_CALLS


async def test_a_call_that_blocks_holds_up_the_others_for_two_looks_and_the_loop_never() -> None:
    quick, wait = await trusted_functions()
    began, release = threading.Event(), threading.Event()
    stuck = asyncio.create_task(invoke(wait, release, began))
    others = asyncio.gather(*(invoke(function) for function in (quick, wait) * 30))
    await until(began.is_set)  # the loop goes on
    look()
    assert not others.done() and trust_in(wait)
    look()
    threads = await others
    assert not trust_in(wait) and trust_in(quick) and not stuck.done()
    assert len(set(threads[::2])) == 1, "the quick function is in a lane again"
    release.set()
    assert await stuck not in threads


async def test_calls_that_come_after_one_that_blocks_are_made_after_two_looks() -> None:
    quick, wait = await trusted_functions()
    began, release = threading.Event(), threading.Event()
    stuck = asyncio.create_task(invoke(wait, release, began))
    await until(began.is_set)
    later = asyncio.gather(*(invoke(function) for function in (quick, wait) * 100))
    for _ in range(2):
        await asyncio.sleep(0)
        assert not later.done()
        look()
    await later
    release.set()
    await stuck


async def test_the_lane_looks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LOOK_SECONDS", 0.001)
    quick, wait = await trusted_functions()
    release = threading.Event()
    stuck = asyncio.create_task(invoke(wait, release))
    await asyncio.gather(*(invoke(quick) for _ in range(100)))
    assert not stuck.done() and not trust_in(wait)
    release.set()
    await stuck


async def test_results_that_were_there_before_a_call_blocked_are_given_out() -> None:
    quick, wait = await trusted_functions()
    first = asyncio.gather(*(invoke(quick) for _ in range(5)))
    began, release = threading.Event(), threading.Event()
    await asyncio.sleep(0)
    stuck = asyncio.create_task(invoke(wait, release, began))
    await until(began.is_set)
    look()
    look()
    await first
    release.set()
    await stuck


async def test_a_slow_call_ends_the_trust_and_its_turn_of_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = threading.Barrier(3)

    def work(is_slow: bool = False, meets: bool = False) -> None:
        if is_slow:
            time.sleep(0.02)
        if meets:
            barrier.wait(DEADLINE_S)

    await earn_trust(work)
    await asyncio.gather(*(invoke(work) for _ in range(4)))  # a crowd, so that the next four calls begin together
    monkeypatch.setattr(trust, "SLOW_SECONDS", 0.01)
    monkeypatch.setattr(workers, "SLOW_SECONDS", 0.01)
    await asyncio.gather(invoke(work, is_slow=True), *(invoke(work, meets=True) for _ in range(3)))  # in three threads
    assert not trust_in(work)


async def test_no_call_is_lost_behind_a_slow_one_however_batches_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(seconds: float = 0.0) -> float:
        time.sleep(seconds)
        return seconds

    await earn_trust(work)
    monkeypatch.setattr(workers, "SLOW_SECONDS", 0.001)
    loop = asyncio.get_running_loop()
    first, slow, third, fourth = [Call(work, (s,), {}, trust_in(work), loop) for s in (0.0, 0.02, 0.0, 0.0)]
    lane_of(loop).add(first)
    lane_of(loop).add(slow)  # in the next batch, which is due when the first call has ended
    await first.future
    lane_of(loop).add(third)  # begins that batch before
    lane_of(loop).add(fourth)
    async with asyncio.timeout(DEADLINE_S):
        assert [await call.future for call in (slow, third, fourth)] == [0.02, 0.0, 0.0]


async def test_calls_that_get_no_thread_fail_and_later_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, wait = new_functions()
    await earn_trust(quick)

    def refuse(worker: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(workers, "_idle", [])
        full.setattr(workers._Worker, "start", refuse)
        calls = (invoke(function) for function in (quick, quick, quick, wait))
        async with asyncio.timeout(DEADLINE_S):
            errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [repr(error) for error in errors] == ['RuntimeError("can\'t start new thread")'] * 4
    assert await asyncio.gather(invoke(quick), invoke(wait))


async def test_a_call_in_the_lane_is_given_up_like_any_other() -> None:
    quick, _ = new_functions()
    began = threading.Event()
    stops: list[str] = []

    def endless(goes_on: bool = False) -> None:
        try:
            began.set()  # in here, since the call may be given up before it has returned
            if goes_on:
                while True:  # not `while goes_on`: no `try` covers the jump back of such a loop in Python 3.13.0
                    pass
        except GivenUp:
            stops.append("stopped")
            raise

    await earn_trust(quick)
    await earn_trust(endless)
    began.clear()
    call = asyncio.create_task(invoke(endless, True))
    await until(began.is_set)
    behind, waiting = asyncio.create_task(invoke(quick)), asyncio.create_task(invoke(endless))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await call
    await behind
    assert stops == ["stopped"] and waiting.cancelled() and not trust_in(endless)


async def test_giving_up_never_hits_the_next_call_of_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that end in the very moment in which they are given up, many times over, all in one thread."""
    monkeypatch.setattr(trust.Trust, "end", lambda self: None)

    def total() -> int:
        return sum(i for i in range(1000))

    await earn_trust(total)

    async def once(i: int) -> int | None:
        try:
            async with asyncio.timeout(0.0003 * (i % 5)):
                return await invoke(total)
        except TimeoutError:
            return None

    results: set[int | None] = set()
    for _ in range(40):
        results |= {*await asyncio.gather(*(once(i) for i in range(20)))}
        assert await invoke(total) == sum(range(1000))
    assert results == {None, sum(range(1000))}


async def test_what_a_function_may_do_in_a_thread_it_may_do_in_the_lane() -> None:
    loop = asyncio.get_running_loop()

    async def on_the_loop() -> int:
        return threading.get_ident()

    def uses_asyncio() -> tuple[str, int, int]:
        mine = asyncio.run(on_the_loop())
        return word.get(), mine, asyncio.run_coroutine_threadsafe(on_the_loop(), loop).result(DEADLINE_S)

    def fails() -> None:
        raise StopIteration("at its end") if word.get() == "stop" else KeyError("price")

    async def call(text: str) -> Any:
        word.set(text)
        return await asyncio.gather(invoke(uses_asyncio), invoke(fails), return_exceptions=True)

    for _ in range(TRIAL_CALLS):
        await call("first")
    assert trust_in(uses_asyncio) and trust_in(fails)
    results = await asyncio.gather(*(asyncio.create_task(call(text)) for text in ("stop", "b", "c")))
    assert [value[0] for value, _ in results] == ["stop", "b", "c"]
    assert {value[1:] for value, _ in results} == {(results[0][0][1], threading.get_ident())}
    assert [repr(error) for _, error in results] == [
        "RuntimeError('StopIteration: at its end')",
        *["KeyError('price')"] * 2,
    ]
