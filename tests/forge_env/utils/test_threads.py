"""Plain functions in threads: results, context, and work that really stops when nobody waits any more."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextvars import ContextVar

import pytest

from forge_env.utils import workers
from forge_env.utils.threads import invoke
from forge_env.utils.workers import GivenUp
from tests.helpers.waiting import DEADLINE_S

word: ContextVar[str] = ContextVar("word", default="none")


async def test_functions_of_every_kind_are_called_in_the_callers_context() -> None:
    async def slow(a: int, *, b: int) -> int:
        return a + b

    assert await invoke(slow, 1, b=2) == 3
    assert await invoke(lambda a, *, b: a * b, 3, b=4) == 12
    assert await invoke(lambda: slow(1, b=2)) == 3, "an awaitable that a plain function returns is awaited"
    word.set("mine")
    assert await invoke(word.get) == "mine"
    call = invoke(slow)  # a caller makes the call before its guards begin
    with pytest.raises(TypeError, match="argument"):
        await call
    with pytest.raises(ZeroDivisionError):
        await invoke(lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await invoke(lambda: next(iter(())))


async def test_a_plain_function_may_run_a_loop_of_its_own_and_use_the_callers() -> None:
    async def on_the_loop() -> int:
        return threading.get_ident()

    def uses_asyncio(loop: asyncio.AbstractEventLoop) -> tuple[int, int]:
        own = asyncio.run(on_the_loop())
        return own, asyncio.run_coroutine_threadsafe(on_the_loop(), loop).result(DEADLINE_S)

    own, callers = await invoke(uses_asyncio, asyncio.get_running_loop())
    assert own != callers == threading.get_ident()


@pytest.mark.parametrize("free", [0, 1])
async def test_short_calls_need_few_threads(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """One that is blocked holds up none of them, as long as there is one more thread."""
    monkeypatch.setattr(workers, "_workers", workers._Workers())
    monkeypatch.setattr(workers, "MAX_THREADS", 1 + free)
    release = threading.Event()
    blocked = [asyncio.create_task(invoke(release.wait, DEADLINE_S)) for _ in range(free)]
    await asyncio.sleep(0)
    threads = await asyncio.gather(*(invoke(threading.get_ident) for _ in range(1000)))
    release.set()
    assert (await asyncio.gather(*blocked), len(set(threads))) == ([True] * free, 1)


async def test_calls_go_on_when_there_are_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def start_two(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(workers, "_workers", workers._Workers())
    monkeypatch.setattr(threading.Thread, "start", start_two)
    barrier = threading.Barrier(2)
    waits = (invoke(barrier.wait, DEADLINE_S) for _ in range(20))
    assert sorted(await asyncio.gather(*waits)) == [0] * 10 + [1] * 10


async def test_calls_above_the_bound_wait_for_a_thread_and_one_that_is_cancelled_is_never_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "_workers", workers._Workers())
    monkeypatch.setattr(workers, "MAX_THREADS", 2)
    barrier, threads = threading.Barrier(2), set[int]()

    def meet() -> None:
        threads.add(threading.get_ident())
        barrier.wait(DEADLINE_S)

    calls = [asyncio.create_task(invoke(meet)) for _ in range(21)]
    await asyncio.sleep(0)
    calls.pop().cancel()  # otherwise an odd one would wait for another for ever
    await asyncio.gather(*calls)
    assert len(threads) == 2


async def test_a_call_that_is_given_up_stops() -> None:
    began, stopped = threading.Event(), threading.Event()

    def endless() -> None:
        try:
            began.set()  # in here, since the call may be given up before it has returned
            while True:
                pass
        except GivenUp:
            stopped.set()
            raise

    call = asyncio.create_task(invoke(endless))
    assert await asyncio.to_thread(began.wait, DEADLINE_S)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await asyncio.to_thread(stopped.wait, DEADLINE_S)


async def test_giving_up_never_hits_the_next_call() -> None:
    """Calls that end in the very moment in which they are given up, many times over, in the same few threads."""

    async def once(i: int) -> int | None:
        try:
            async with asyncio.timeout(0.0005 * (i % 5)):
                return await invoke(sum, range(3000))
        except TimeoutError:
            return None

    for _ in range(40):
        results = await asyncio.gather(*(once(i) for i in range(20)))
        assert set(results) <= {None, sum(range(3000))}
        assert await invoke(lambda: "whole") == "whole"


def test_giving_up_leaves_nothing_pending_in_the_interpreter() -> None:
    """Where something stays pending for ever, CPython 3.11 never gets past the first line of a traced function."""
    code = """
import asyncio, sys, threading
from forge_env.utils.threads import invoke

def endless():
    began.set()
    while True:
        pass

async def main():
    call = asyncio.create_task(invoke(endless))
    await asyncio.to_thread(began.wait)
    call.cancel()
    await asyncio.wait({call})
    while any(thread.name == "forge_env" and thread.is_alive() for thread in threading.enumerate()):
        await asyncio.sleep(0.01)

def traced():
    return "got past it"

import forge_env.utils.workers
forge_env.utils.workers.IDLE_SECONDS = 0.01  # so that the end of the thread can be waited for
began = threading.Event()
asyncio.run(main())
sys.settrace(lambda *event: None)
print(traced())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("got past it\n", "")


def test_a_process_ends_while_a_tool_sleeps() -> None:
    """A thread that cannot be interrupted does not keep the process alive."""
    code = """
import asyncio, time
from forge_env.utils.threads import invoke

async def main():
    try:
        async with asyncio.timeout(0.05):
            await invoke(time.sleep, 600)
    except TimeoutError:
        print("given up")

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "given up", "")
