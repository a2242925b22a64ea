"""Coroutines from plain code: in a script, and where an event loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from forge_env.utils import run_async as module
from forge_env.utils.run_async import run_async

SIGNALS = [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)]


@pytest.fixture(autouse=True)
def _with_hangups() -> Iterator[None]:
    """The tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def in_script(work: Callable[[], Any]) -> Any:
    return work()


def in_notebook(work: Callable[[], Any]) -> Any:
    async def cell() -> Any:
        return work()

    return asyncio.run(cell())


@pytest.mark.parametrize("where", [in_script, in_notebook])
@pytest.mark.parametrize(("number", "error"), SIGNALS)
def test_a_signal_lets_it_close_what_it_has_opened(
    where: Callable[..., Any], number: signal.Signals, error: type[BaseException]
) -> None:
    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    closed: list[bool] = []
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(error):
        where(lambda: run_async(work()))
    assert closed == [True]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("where", [in_script, in_notebook])
def test_a_signal_that_does_not_end_the_wait_of_the_main_thread_is_not_lost(where: Callable[..., Any]) -> None:
    main, is_ready, is_over, lost = threading.get_ident(), threading.Event(), threading.Event(), []

    def interrupt() -> None:
        is_ready.wait()
        # As a signal just before the wait: Python notes it, and no system call of the main thread ends early.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not is_over.wait(20):
            lost.append(True)
            signal.pthread_kill(main, signal.SIGINT)

    async def work() -> None:
        is_ready.set()  # the other thread needs the lock of the interpreter, which the wait releases
        await asyncio.Event().wait()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        where(lambda: run_async(work()))
    is_over.set()
    thread.join()
    assert not lost


def test_a_work_under_nohup_outlives_its_terminal() -> None:
    async def work() -> str:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        return "done"

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_async(work()) == "done"
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("where", [in_script, in_notebook])
def test_its_result_and_its_error_are_the_callers(where: Callable[..., Any]) -> None:
    async def work(value: int) -> float:
        return 1 / value

    assert where(lambda: run_async(work(2))) == 0.5
    with pytest.raises(ZeroDivisionError):
        where(lambda: run_async(work(0)))


@pytest.mark.parametrize("where", [in_script, in_notebook])
def test_a_loop_that_is_blocked_is_interrupted(where: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCKED_SECONDS", 0.0)

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        while True:  # as `tasks` of a user that never returns
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        where(lambda: run_async(work(), insists=False))
