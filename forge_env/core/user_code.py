"""Exceptions of code that users wrote: where in their file they were raised, and in which part of an episode.

A user's code may raise anything, `SystemExit` among it. None of that ends more than the episode that it happened in:
asyncio lets SystemExit and KeyboardInterrupt out of whatever task they come up in, so a guard stands in that very task.
A real Ctrl-C is no exception of a user's code: asyncio makes a cancellation of it.
"""

from __future__ import annotations

import asyncio
import os
import sysconfig
import traceback
from functools import cache
from pathlib import Path
from types import TracebackType

from forge_env.core.errors import EnvError, ForgeError

_OURS = Path(__file__).resolve().parents[1]
_BUNDLED = (_OURS, *(_OURS.parent / name for name in ("agents", "envs", "sandboxes", "trainers")))
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_MOST = 4000  # characters of an exception's text

NOT_CAUGHT = (asyncio.CancelledError, GeneratorExit)
"""What a guard around a user's code lets pass; every other BaseException is that code's fault."""


def describe(part: str, error: BaseException) -> str:
    """Return a line for a fault: the part of the episode, file and line, the type of the exception and its text.

    >>> describe("tool buy", KeyError("price"))
    "tool buy: KeyError: 'price'"

    Args:
        part: what was running: "reset", "step", "close", "success", "tool NAME", "reward NAME", "agent", "tasks".
    """
    text = _text(error)
    return f"{_located(part, place_of(error))}: {type(error).__name__}{f': {text}' if text else ''}"


def place_of(error: BaseException) -> str:
    """Return "FILE:LINE" of the innermost frame that is neither forge_env's nor a library's; "" without one of these.

    FILE is relative to the working directory where it lies below it. Where no frame is a user's, it is the innermost
    one that is not forge_env's.
    """
    frames = _frames(error)
    users = (frame for frame in frames if not _is_below(frame[0], (_OURS,)) and not frame[0].startswith(_LIBRARIES))
    others = (frame for frame in frames if not _is_below(frame[0], (_OURS,)))
    return _shown(next(users, None) or next(others, None))


def fault(part: str, error: BaseException) -> EnvError | None:
    """Return the fault that an exception of a user's code is; None for one that goes on as it is.

    Those are cancellations of the task at hand, and the exceptions of forge_env; an EnvError learns in `where` what was
    running. A CancelledError that nobody asked this task for is the code's own, and a fault as any other.
    """
    if isinstance(error, ForgeError):
        if isinstance(error, EnvError) and not error.where and (place := _raised_at(error)):
            error.where = _located(part, place)
        return None
    if isinstance(error, GeneratorExit) or (isinstance(error, asyncio.CancelledError) and _is_cancelled()):
        return None
    return EnvError(describe(part, error))


class guard:
    """Makes the faults of an episode of what a user's code raises; see `fault`.

    Example::

        with guard("reward correct"):
            value = await invoke(function)

    Raises:
        EnvError: naming the part, file and line.
    """

    __slots__ = ("_part",)

    def __init__(self, part: str) -> None:
        self._part = part

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and (broken := fault(self._part, error)) is not None:
            raise broken from error


def told(error: ForgeError) -> str:
    """Return what an exception says; an EnvError with the part and the place where a user's code raised it."""
    where = error.where if isinstance(error, EnvError) else ""
    return f"{where}: {error}" if where else str(error)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as second:  # an exception's own mistake
        text = f"(its text cannot be had: {type(second).__name__})"
    return text if len(text) <= _MOST else f"{text[:_MOST]}..."


def _located(part: str, place: str) -> str:
    return f"{part} ({place})" if place else part


def _frames(error: BaseException) -> list[tuple[str, int]]:
    """File and line of each frame, innermost first."""
    walked = traceback.walk_tb(error.__traceback__)
    found = [(frame.f_code.co_filename, line) for frame, line in walked if not frame.f_code.co_filename.startswith("<")]
    return found[::-1]


def _raised_at(error: ForgeError) -> str:
    """As `place_of` for an exception of forge_env; "" where what comes with it raised it, and says enough."""
    frames = _frames(error)
    if not frames or _is_below(frames[0][0], _BUNDLED):
        return ""
    users = (frame for frame in frames if not frame[0].startswith(_LIBRARIES) and not _is_below(frame[0], _BUNDLED))
    return _shown(next(users, None))


def _shown(frame: tuple[str, int] | None) -> str:
    if frame is None:
        return ""
    file, line = frame
    path = os.path.relpath(file) if os.path.isabs(file) else file
    return f"{file if path.startswith('..') else path}:{line}"


@cache
def _is_below(file: str, folders: tuple[Path, ...]) -> bool:
    path = Path(file).resolve()
    return any(path.is_relative_to(folder) for folder in folders)
