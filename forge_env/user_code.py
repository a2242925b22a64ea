"""Exceptions of code that users wrote: where in their file they were raised, and in which part of an episode.

A user's code may raise anything, `SystemExit` among it. None of that ends more than the episode that it happened in.
"""

from __future__ import annotations

import asyncio
import os
import sysconfig
import traceback
from pathlib import Path

_OURS = Path(__file__).resolve().parent
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))

NOT_CAUGHT = (asyncio.CancelledError, GeneratorExit)
"""What a guard around a user's code lets pass; every other BaseException is that code's fault."""


def describe(part: str, error: BaseException) -> str:
    """Return one line for a fault: the part of the episode, file and line, the type of the exception and its text.

    >>> describe("tool buy", KeyError("price"))
    "tool buy: KeyError: 'price'"

    Args:
        part: what was running: "reset", "step", "close", "success", "tool NAME", "reward NAME", "agent", "tasks".
    """
    place = place_of(error)
    text = str(error)
    return f"{part}{f' ({place})' if place else ''}: {type(error).__name__}{f': {text}' if text else ''}"


def place_of(error: BaseException) -> str:
    """Return "FILE:LINE" of the innermost frame that is neither forge_env's nor a library's; "" without a traceback.

    FILE is relative to the working directory where it lies below it. Where every frame is a library's or ours, it is
    the innermost frame of all.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    frame = next((frame for frame in reversed(frames) if _is_users(frame.filename)), frames[-1])
    path = os.path.relpath(frame.filename) if os.path.isabs(frame.filename) else frame.filename
    return f"{frame.filename if path.startswith('..') else path}:{frame.lineno}"


def _is_users(file: str) -> bool:
    if file.startswith("<"):
        return False
    return not (Path(file).resolve().is_relative_to(_OURS) or file.startswith(_LIBRARIES))
