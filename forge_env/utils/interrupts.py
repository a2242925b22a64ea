"""How a command of ours ends. Ctrl-C while it imports its packages is one sentence, and exit code 130.

`forge_env/__init__.py` calls `leave_at_once` before it imports anything else. Between the two times the command handles
Ctrl-C in its own way.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from itertools import pairwise
from typing import ParamSpec

P = ParamSpec("P")


def _is_our_command() -> bool:
    """Whether this process is `forge-env`, `python -m forge_env` or `python -m trainers.NAME`, and no other program."""
    if sys.argv[:1] != ["-m"]:  # as long as Python looks for the module of `python -m`
        return os.path.basename((sys.argv or [""])[0]) == "forge-env"
    module = next((after for word, after in pairwise(sys.orig_argv) if word == "-m"), "")
    return module.removeprefix("forge_env.").partition(".")[0] in ("forge_env", "trainers")


def ends_process(main: Callable[P, int]) -> Callable[P, int]:
    """Let the process end with the exit code that `main` returns, as soon as all `atexit` functions have run.

    What is left then is to free all modules: that takes a tenth of a second, and a thread of Monarch that asks for
    Python meanwhile would abort the process (before Python 3.14).
    """

    @wraps(main)
    def call(*args: P.args, **kwargs: P.kwargs) -> int:
        _codes[:] = []
        code = main(*args, **kwargs)
        _codes[:] = [code]
        return code

    return call


def _end() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is waited for; Python itself would let it kill this process
    if _codes:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(_codes[0])


_codes: list[int] = []
"""The exit code of the command, when it is known."""
_IS_OURS = _is_our_command()
if _IS_OURS:
    from forge_env.utils.std_streams import prepare_streams  # no other program loads it

    prepare_streams()
    atexit.register(_end)  # what is registered first runs last


def leave_at_once() -> None:
    """Let Ctrl-C end this process with one sentence from now on, if it is a command of ours and does not ignore it."""
    if _IS_OURS and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)


def interrupt_again() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(*_: object) -> None:
    # No exception: it could be lost in an import, and at the exit it would be printed with its traceback.
    os.write(2, b"interrupted: nothing is running\n")
    os._exit(128 + signal.SIGINT)
