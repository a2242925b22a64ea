"""Channels: what one run leaves so that the next run in the same place, told nothing, finds it.

The control of each is the same code in two processes that share what the sandbox must not let two runs share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sandboxes.guest import guest_kernel as kernel
from tests.helpers.waiting import DEADLINE_S
from tests.sandboxes.attacks import PRELUDE, Channel, attacks, table

_ATTEMPTS = 20
"""Of a control of the page cache: any process of the machine may read the file meanwhile."""

_SHOWN = """
def shown(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
"""

CHANNELS = [Channel(name=row["name"], code=_SHOWN + row["code"]) for row in table("channels", "channels")]


def crosses(channel: Channel, facts: dict[str, Any]) -> bool:
    """Return whether the channel carries something between two processes of one user in one network namespace.

    The kernel collects what is in flight whenever any process of the machine closes a socket. So the process
    that finds is there before the other one leaves anything, and both are tried again until a deadline.
    """
    if os.geteuid() == 0:
        flags, user = kernel.NEWNET, 0x6E000000 + os.getpid()
    else:
        flags, user = kernel.NEWNET | kernel.NEWUSER, None

    def run(name: str) -> Process:
        def prepare() -> Callable[[], Any]:
            namespace: dict[str, Any] = {}
            exec(PRELUDE + channel.code, namespace)
            if user is not None:  # not before: it may not read what the code imports
                os.setresuid(user, user, user)
            return lambda: namespace[name](facts)

        return Process(prepare)

    def attempt() -> bool:
        kernel.unshare(flags)
        before = run("find").result()
        finds, leaves = run("find"), run("leave")
        leaves.result()
        return bool(finds.result() != before)

    deadline = time.monotonic() + DEADLINE_S
    while not (crossed := in_a_process(attempt)) and time.monotonic() < deadline:
        pass
    return bool(crossed)


class Process:
    """A fork that calls `prepare()` at once, and the action that this returns when its result is asked for."""

    def __init__(self, prepare: Callable[[], Callable[[], Any]]) -> None:
        waiting, self._go = os.pipe()
        self._value, answer = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            try:
                action = prepare()
                os.read(waiting, 1)
                os.write(answer, json.dumps(action()).encode())
            finally:
                os._exit(0)
        os.close(waiting)
        os.close(answer)

    def result(self) -> Any:
        """Return the plain value of the action, when the process has ended. Raises ValueError if it has raised."""
        with open(self._value, "rb") as pipe, open(self._go, "wb") as go:
            go.write(b"x")
            go.flush()
            value = pipe.read()
        os.waitpid(self._pid, 0)
        return json.loads(value)


def in_a_process(action: Callable[[], Any]) -> Any:
    """Return the plain value of `action()`, which is called in a fork. Raises ValueError if it raises."""
    return Process(lambda: action).result()


def _page_cache_tells(facts: dict[str, Any]) -> bool:
    """What one process puts out of memory, another sees to be out."""
    for path in (f"{facts['repository']}/LICENSE", os.__file__):
        for _ in range(_ATTEMPTS):
            seen = []
            with open(path, "rb", buffering=0) as file:
                for leave in (lambda: file.read(1), lambda: os.posix_fadvise(file.fileno(), 0, 0, 4)):
                    in_a_process(lambda: leave() and None)  # noqa: B023
                    seen.append(_is_cached(file.fileno()))
            if seen == [True, False]:
                return True
    return False


def _is_cached(descriptor: int) -> bool:
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False


ATTACKS = [replace(attack, control=_page_cache_tells) for attack in attacks("channels")]
