"""Processes that start at once: forks of a server that has imported torch and the trainer, which takes seconds.

The server starts with the first of them and ends with the tests. It has no threads; this process may have some, whose
locks a fork of it would inherit.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from forge_env.runtime.process.ranks import RankRendezvous

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.helpers.forked_imports"])


class Forked:
    """`function(connection, *arguments)` in a process of its own, and this end of the connection.

    What it writes to stderr is among what the test has captured.

    Args:
        function: one of a module.
        *arguments: of it, which are pickled.
        environ: variables over those of this process.
        uses_gpu: whether it needs CUDA, which works in no fork of a process that has looked for GPUs: it is no fork.
    """

    def __init__(
        self,
        function: Callable[..., None],
        *arguments: Any,
        environ: Mapping[str, str] | None = None,
        uses_gpu: bool = False,
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:  # this checkout comes first, wherever this process stands
            patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
            forkserver.ensure_running()
        context: Any = multiprocessing.get_context("spawn") if uses_gpu else _FORKS
        self.connection, theirs = context.Pipe()
        with theirs:
            work = (dict(os.environ) | dict(environ or {}), function, theirs, *arguments)
            self.process: BaseProcess = context.Process(target=_run, args=work)
            self.process.start()

    def answer(self) -> Any:
        """What it sends next; EOFError when it has ended instead."""
        assert self.connection.poll(DEADLINE_S), f"no answer within {DEADLINE_S:g} s"
        return self.connection.recv()

    def ended(self) -> int:
        """Wait for its end; returns its exit code, a signal as a negative number."""
        self.process.join(DEADLINE_S)
        assert self.process.exitcode is not None, f"it has not ended within {DEADLINE_S:g} s"
        return self.process.exitcode

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def run_ranks(function: Callable[..., None], *arguments: Any, world: int, seconds: float) -> None:
    """`function(*arguments)` in so many ranks, with the environment that torch reads; nothing of them is left.

    Raises:
        AssertionError: when one has failed; what it wrote to stderr is among what the test has captured.
    """
    rendezvous = RankRendezvous(world)  # outlives the ranks: one of them may end while another still reads its store
    ranks: list[Forked] = []
    try:
        for number in range(world):
            ranks.append(Forked(_without_connection, function, *arguments, environ=rendezvous.environ(number)))
        running: dict[Any, Forked] = {rank.process.sentinel: rank for rank in ranks}
        deadline = time.monotonic() + seconds
        while running:
            ended = wait(list(running), deadline - time.monotonic())
            assert ended, f"{len(running)} ranks have not ended within {seconds:g} s"
            for sentinel in ended:
                code = running.pop(sentinel).ended()
                assert code == 0, f"a rank has failed with exit code {code}: see what it wrote to stderr"
    finally:
        for rank in ranks:
            rank.close()


def _run(environ: dict[str, str], function: Callable[..., None], connection: Connection, *arguments: Any) -> None:
    os.environ.clear()
    os.environ.update(environ)
    faulthandler.enable()  # a crash in native code writes its stack to stderr
    function(connection, *arguments)


def _without_connection(_: Connection, function: Callable[..., None], *arguments: Any) -> None:
    function(*arguments)
