"""Small actors for the tests of the runtime; imported by the tests and by Monarch's child processes.

Nothing here imports torch, which takes longer than everything else in the start of an actor.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from forge_env.core.errors import EnvError, PolicyError, ReplicaBroken, ServiceError, UserError
from forge_env.runtime.actor import ForgeActor, concurrent_endpoint, long_endpoint
from forge_env.runtime.calls.client import ServiceClient


def strange_errors(base: type[Exception]) -> dict[str, Callable[[str], Exception]]:
    """Kinds of errors that a pickle does not bring over, each with what makes one of a message."""

    class Local(base):  # type: ignore[misc, valid-type]
        """Cannot be pickled by reference."""

    class Locked(base):  # type: ignore[misc, valid-type]
        """Has an attribute that cannot be pickled."""

        def __init__(self, text: str) -> None:
            super().__init__(text)
            self.lock = threading.Lock()

    class TwoArguments(base):  # type: ignore[misc, valid-type]
        def __init__(self, number: str, text: str) -> None:
            super().__init__(f"{number} {text}")

    class NoReduce(base):  # type: ignore[misc, valid-type]
        def __reduce__(self) -> Any:
            raise RuntimeError("it cannot be taken apart")

    class NoReading(base):  # type: ignore[misc, valid-type]
        def __reduce__(self) -> Any:
            return int, ("no number",)

    class Huge(base):  # type: ignore[misc, valid-type]
        def __init__(self, text: str) -> None:
            super().__init__(text)
            self.data = bytes(2**24)

    class NoAttribute(base):  # type: ignore[misc, valid-type]
        """Has no traceback: Python asks for `__notes__`."""

        def __getattr__(self, name: str) -> Any:
            return {"": name}[name]

    class ExitInReduce(base):  # type: ignore[misc, valid-type]
        def __reduce__(self) -> Any:
            raise SystemExit(3)

    makes = {kind.__name__: kind for kind in (Locked, NoReduce, NoReading, Huge, NoAttribute, ExitInReduce)}
    local = {"Local": Local} if base is Exception else {}  # one of ours arrives as it is
    return {**makes, **local, "TwoArguments": lambda message: TwoArguments(*message.split(" ", 1))}


class NoText(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


STRANGE, STRANGE_OWN = strange_errors(Exception), strange_errors(EnvError)
OWN = {kind.__name__: kind for kind in (UserError, PolicyError, ServiceError)}


class Worker(ForgeActor):
    """Does what a test tells it."""

    def __init__(self, *, failure: str = "", finishing: str = "", broken: bool = False, **base: Any) -> None:
        super().__init__(**base)
        if broken:
            raise ValueError("the constructor broke")
        self._failure = failure
        self._finishing = finishing

    async def on_start(self) -> None:
        if self._failure in OWN:
            raise OWN[self._failure]("cannot start: no weights in /nowhere")
        if self._failure == "exit":
            os._exit(3)
        if self._failure.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[self._failure])
        if self._failure:
            raise ValueError(self._failure)

    async def on_finish(self) -> None:
        if self._finishing:
            Path(self._finishing).touch()
            while Path(self._finishing).exists():
                await asyncio.sleep(0.01)
            Path(f"{self._finishing}.done").touch()

    @concurrent_endpoint
    async def add(self, a: int, b: int) -> int:
        return a + b

    @concurrent_endpoint
    async def environ(self, name: str) -> str:
        return os.environ.get(name, "")

    @concurrent_endpoint
    async def write(self) -> None:
        print("a line by Python")
        print("a line of errors", file=sys.stderr)
        os.write(1, b"a line past Python\n")
        subprocess.run(["echo", "a line by a child"], check=True)
        sys.stdout.flush()

    @concurrent_endpoint
    async def fail(self, kind: str, message: str) -> None:
        if kind == "group":
            raise ExceptionGroup("many", [make(message) for make in STRANGE.values()])
        strange = {**STRANGE, **{f"own {name}": make for name, make in STRANGE_OWN.items()}}
        if kind == "no text":
            raise NoText
        usual = (ValueError, TimeoutError, SystemExit, KeyboardInterrupt, asyncio.CancelledError)
        kinds = {**OWN, **strange, **{kind.__name__: kind for kind in usual}}
        raise kinds[kind](message)

    @concurrent_endpoint
    async def hold(self, failing_rank: int = -1) -> None:
        """Never answer; one rank raises instead."""
        if self.rank == failing_rank:
            raise UserError(f"rank {failing_rank} cannot take part")
        await asyncio.Event().wait()


class Gone(Worker):
    """Answers with the id of a process that has ended and was reaped, as that of an actor that dies right after it."""

    @concurrent_endpoint
    async def pid(self) -> int:  # type: ignore[override]
        ended = subprocess.Popen(["true"])
        ended.wait()
        return ended.pid


class Counting(Worker):
    """A worker for services: says who answers, and leaves a mark where a call arrives."""

    idempotent = frozenset({"answer_when", "break_down", "die", "pid"})
    broken = False
    ping_error: Exception | None = None

    def on_ping(self) -> None:
        if self.ping_error is not None:
            raise self.ping_error
        if self.broken:
            raise ReplicaBroken("it has no more numbers")

    @concurrent_endpoint
    async def break_down(self, pid: int) -> int:
        """Break for good in the process of this id."""
        if os.getpid() == pid:
            self.broken = True
            raise ReplicaBroken("it has no more numbers")
        return os.getpid()

    @concurrent_endpoint
    async def fail_pings(self) -> None:
        self.ping_error = ValueError("7 is not prime")

    @long_endpoint
    async def work(self, marks: str) -> None:
        """Begin a work without an end, and leave a mark when it begins and when it is cancelled."""
        (Path(marks) / "begun").touch()
        try:
            await asyncio.Event().wait()
        finally:
            (Path(marks) / "ended").touch()

    @concurrent_endpoint
    async def die(self) -> None:
        """End the process, whichever it is."""
        os.kill(os.getpid(), signal.SIGKILL)

    @concurrent_endpoint
    async def answer_when(self, go: str, marks: str) -> int:
        """Answer with the process's id once the file `go` is there."""
        (Path(marks) / str(os.getpid())).touch()
        while not Path(go).exists():
            await asyncio.sleep(0.01)
        return os.getpid()

    @concurrent_endpoint
    async def mark_and_hold(self, marks: str) -> None:
        (Path(marks) / str(os.getpid())).touch()
        await asyncio.Event().wait()


class Choir(Counting):
    """Its singers come in one message, and count the messages."""

    idempotent = frozenset({"outlive"})
    messages = 0

    @concurrent_endpoint
    async def begin_calls(self, calls: Any, port: Any) -> None:  # type: ignore[override]
        self.messages += 1
        await ForgeActor.begin_calls.method(self, calls, port)

    @long_endpoint
    async def sing(self, number: int, song: Any = None) -> Any:
        """Answer with the number and the count of messages; some cannot."""
        if number == 3:
            raise PolicyError("3 is hoarse")
        if number == 4:
            await asyncio.Event().wait()
        odd = {5: threading.Lock, 6: Unreadable}.get(number)
        return odd() if odd else (number, self.messages)

    @long_endpoint
    async def outlive(self, victim: int) -> int:
        """Hold in one process, and answer with its id in all others."""
        if os.getpid() == victim:
            await asyncio.Event().wait()
        return os.getpid()


class Unreadable:
    def __reduce__(self) -> Any:
        return int, ("no number",)


class Caller(ForgeActor):
    """Calls a service from a process of its own."""

    def __init__(self, *, client: ServiceClient[Counting], **base: Any) -> None:
        super().__init__(**base)
        self._client = client

    @concurrent_endpoint
    async def ask(self) -> int:
        return await self._client.route(Counting.pid)

    @concurrent_endpoint
    async def let_work(self, marks: str) -> None:
        await self._client.route(Counting.work, marks)


class Team(Worker):
    """Ranks that add numbers up over all of them, in a thread, as a trainer does."""

    async def on_start(self) -> None:
        import torch.distributed as dist

        await asyncio.to_thread(dist.init_process_group, "gloo")
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.sums: list[float] = []

    @concurrent_endpoint
    async def sum(self, value: float) -> list[float] | None:
        """Add value * (rank + 1) up over the ranks; returns all sums so far."""
        await asyncio.get_running_loop().run_in_executor(self.thread, self._sum, value)
        return list(self.sums) if self.rank == 0 else None

    @concurrent_endpoint
    async def places(self) -> tuple[int, str, str]:
        return self.rank, os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]

    def _sum(self, value: float) -> None:
        import torch
        import torch.distributed as dist

        total = torch.tensor(value * (self.rank + 1))
        dist.all_reduce(total)
        self.sums.append(total.item())
