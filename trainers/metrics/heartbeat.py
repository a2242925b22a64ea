"""Shows what a run waits for if there was no message for a while; from the command on, before any heavy import.

Nothing heavy is imported here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

SILENCE_SECONDS = 4.0
_LOOK_SECONDS = 0.5

_began = time.time()
_early: Heartbeat | None = None


class Heartbeat:
    """A thread that calls `beat` after `SILENCE_SECONDS` without a message, until it is closed."""

    def __init__(self, beat: Callable[[], None], quiet_since: Callable[[], float]) -> None:
        self._beat, self._quiet_since = beat, quiet_since
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._is_closed.wait(_LOOK_SECONDS):
            if time.perf_counter() - self._quiet_since() >= SILENCE_SECONDS:
                self._beat()


def begin_now() -> None:
    """Let `command_began` be now, in a process that does more than training."""
    global _began
    _began = time.time()


def command_began() -> float:
    """The start of this process's command, in seconds since the epoch. In a process that does more than training: the
    import of this module, or `begin_now`."""
    return _began


def trainer_of(command: Sequence[str]) -> str:
    """The module of a command line `python -m trainers.NAME OPTIONS` or `python -m trainers FILE.py:NAME OPTIONS`; ""
    for any other command.

    In a wheel the module is forge_env.trainers.NAME.
    """
    module = next((after for word, after in pairwise(command) if word == "-m"), "")
    short = module.removeprefix("forge_env.")
    return module if short.partition(".")[0] == "trainers" and short.count(".") <= 1 else ""


def announce(command: Sequence[str]) -> None:
    """Print the first line of a run, and go on until `quiet`; nothing for a command that starts no trainer."""
    global _began, _early
    module = trainer_of(command)
    if not module or {"-h", "--help", "--dry-run"} & {*command}:
        return
    from forge_env.runtime.process.children import process_began  # imports for 0.1 s, which other commands do not need

    _began, last = process_began(), 0.0

    def say(text: str) -> None:
        nonlocal last
        last = time.perf_counter()
        print(f"{time.time() - _began:6.1f} s  {text}", flush=True)

    say(f"{module}: importing its packages and checking the settings")
    _early = Heartbeat(lambda: say("importing packages and checking the settings"), lambda: last)


def quiet() -> None:
    """End what `announce` began: from now on the run prints its own messages."""
    global _early
    if _early is not None:
        _early.close()
        _early = None
