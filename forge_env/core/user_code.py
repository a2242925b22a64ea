"""Exceptions of user code: the part of the episode, file and line that raised them.

User code may raise anything, even `SystemExit`, and that ends only its own episode. asyncio lets SystemExit and
KeyboardInterrupt escape from a task and stop the event loop, so a guard catches them in the task that raised them. A
real Ctrl-C is not an exception of user code: asyncio turns it into a cancellation.
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
# In a checkout the other packages are beside forge_env, in an installed wheel below it.
_OTHERS = tuple(
    (_OURS if (_OURS / "envs").is_dir() else _OURS.parent) / name
    for name in ("agents", "contrib", "envs", "sandboxes", "trainers")
)
_BUNDLED = (_OURS, *_OTHERS)
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_MAX_CHARACTERS = 4000  # of an exception's text
_MAX_DEPTH = 50  # of groups in groups

NOT_CAUGHT = (asyncio.CancelledError, GeneratorExit)
"""Exceptions that a guard around user code does not catch; any other BaseException is a fault of that code."""


def describe(part: str, error: BaseException) -> str:
    """Return one line about a fault: the part of the episode, file and line, the type and text of the exception.

    >>> describe("tool buy", KeyError("price"))
    "tool buy: KeyError: 'price'"

    Args:
        part: what was running: "reset", "step", "close", "success", "tool NAME", "reward NAME", "agent", "tasks".
    """
    return f"{_with_place(part, location_of(error))}: {type_and_text(error)}"


def type_and_text(error: BaseException, depth: int = 0) -> str:
    """Return "TYPE: TEXT" of any exception, the text cut to 4,000 characters; of a group with those in it.

    Args:
        depth: of the groups that the exception is in.
    """
    try:
        text = str(error)
    except BaseException as second:  # of a __str__ that raises, even SystemExit
        text = f"(its text cannot be read: {type(second).__name__})"
    text = text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
    if isinstance(error, BaseExceptionGroup) and depth < _MAX_DEPTH:
        parts = (type_and_text(part, depth + 1) for part in error.exceptions)
        text = f"{text}: {'; '.join(parts)}"[:_MAX_CHARACTERS]
    return f"{type(error).__name__}{f': {text}' if text else ''}"


def location_of(error: BaseException) -> str:
    """Return "FILE:LINE" of the innermost frame of user code; else of the innermost one outside forge_env, else "".

    FILE is relative to the working directory, if it lies below it.
    """
    frames = _frames(error)
    outside = [frame for frame in frames if not _is_below(frame[0], (_OURS,)) or _is_below(frame[0], _OTHERS)]
    users = (frame for frame in outside if not frame[0].startswith(_LIBRARIES))
    return _file_and_line(next(users, None) or next(iter(outside), None))


def fault(part: str, error: BaseException) -> EnvError | None:
    """Return an exception of user code as an EnvError; None if the exception must be raised as it is.

    None stands for a cancellation of the current task, and for exceptions of forge_env; of these, an EnvError gets its
    `where` set. A CancelledError without a cancellation of this task comes from the code, and is a fault.
    """
    if isinstance(error, ForgeError):
        if isinstance(error, EnvError) and not error.where and (location := _raised_at(error)):
            error.where = _with_place(part, location)
        return None
    if isinstance(error, GeneratorExit) or (isinstance(error, asyncio.CancelledError) and _is_cancelled()):
        return None
    return EnvError(describe(part, error))


class guard:
    """Turns exceptions of user code into faults of the episode; see `fault`.

    Example::

        with guard("reward correct"):
            value = await invoke(function)
    """

    __slots__ = ("_part",)

    def __init__(self, part: str) -> None:
        self._part = part

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and (env_error := fault(self._part, error)) is not None:
            raise env_error from error


def error_text(error: ForgeError) -> str:
    """Return the text of an exception; of an EnvError that user code raised, with the part, file and line."""
    where = error.where if isinstance(error, EnvError) else ""
    return f"{where}: {error}" if where else str(error)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _with_place(part: str, location: str) -> str:
    return f"{part} ({location})" if location else part


def _frames(error: BaseException) -> list[tuple[str, int]]:
    """Return file and line of each frame, innermost first."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return [(file, line) for file, line in reversed(frames) if not file.startswith("<")]


def _raised_at(error: ForgeError) -> str:
    """Return the location of an exception of forge_env; "" if code that ships with forge_env raised it."""
    frames = _frames(error)
    if not frames or _is_below(frames[0][0], _BUNDLED):
        return ""
    users = (frame for frame in frames if not frame[0].startswith(_LIBRARIES) and not _is_below(frame[0], _BUNDLED))
    return _file_and_line(next(users, None))


def _file_and_line(frame: tuple[str, int] | None) -> str:
    if frame is None:
        return ""
    file, line = frame
    path = os.path.relpath(file) if os.path.isabs(file) else file
    return f"{file if path.startswith('..') else path}:{line}"


@cache
def _is_below(file: str, folders: tuple[Path, ...]) -> bool:
    path = Path(file).resolve()
    return any(path.is_relative_to(folder) for folder in folders)
