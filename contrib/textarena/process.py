"""The helper process in which TextArena runs, one for each interpreter that has the package."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from contrib.textarena import worker as library
from envs.processes.helper import ANSWER_SECONDS, HelperProcess
from forge_env.core.errors import ServiceError, UserError, nearest

VERSION_SECONDS = 60.0
OLDEST = (0, 7, 4)
_VERSION = """
import importlib.metadata, importlib.util
print(importlib.metadata.version("textarena") if importlib.util.find_spec("textarena") else "")
"""


class Worker(HelperProcess):
    def __init__(self, python: str, version: str) -> None:
        # some games depend on the order of sets
        super().__init__(
            library.__file__, name="the TextArena process", environment={"PYTHONHASHSEED": "0"}, python=python
        )
        self.version = version
        self._descriptions: dict[str, dict[str, Any]] = {}

    def ask(self, request: Mapping[str, object], *, seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        response = super().ask(request, seconds=seconds)
        if "lost" in response:
            raise ServiceError("the TextArena process ended during the game, and another one took its place")
        return response

    def describe(self, game: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the "players" that a game can have, a list of numbers, and "max_turns", which may be None."""
        key = json.dumps([game, dict(options)], sort_keys=True)
        if key not in self._descriptions:
            games = self.ask({"do": "games"})["games"]
            if game not in games:
                hint = nearest(game, games).partition(" Available")[0]
                raise UserError(f"TextArena {self.version} has no game {game!r}. {hint} It has {len(games)}.")
            description = self.ask({"do": "describe", "game": game, "options": dict(options)})
            if "refused" in description:
                remark = f" with game_options={json.dumps(dict(options))}" if options else ""
                raise UserError(
                    f"the game {game} of TextArena {self.version} cannot be played{remark}: {description['refused']}"
                )
            self._descriptions[key] = description
        return self._descriptions[key]

    def forget(self, session: str) -> None:
        """Forget a game; a process that has ended is not started for it."""
        if self.pid is None:
            return
        try:
            self.request({"do": "end", "session": session}, seconds=ANSWER_SECONDS)
        except ServiceError:
            pass  # the game has ended with it


@functools.cache
def worker_of(python: str) -> Worker:
    """Return the helper process of an interpreter; "" is this process's. It starts with its first request."""
    program = sys.executable if not python else shutil.which(python)
    if program is None:
        raise UserError(f"python={python!r} is no program: name the interpreter of an environment that has TextArena")
    version = _version(program)
    install = f"{program} -m pip install textarena" if python else "pip install textarena"
    elsewhere = "" if python else ", or name an interpreter that has it: --option python=/path/to/bin/python"
    if not version:
        raise UserError(f"TextArena is not installed: {install}{elsewhere}")
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UserError(f"TextArena {version} is too old, {oldest} or newer is needed: {install} --upgrade{elsewhere}")
    worker = Worker(program, version)
    worker.end_with_owner()
    return worker


def _version(program: str) -> str:
    command = [program, "-P", "-c", _VERSION]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_SECONDS, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        words = str(getattr(error, "stderr", "") or error).strip().splitlines()
        reason = words[-1] if words else type(error).__name__
        raise UserError(f"{program} cannot be used, which takes Python 3.11 or newer: {reason}") from None


@asynccontextmanager
async def open_worker(python: str = "") -> AsyncIterator[Worker]:
    """Give the helper process to an environment; it runs on afterwards, because it is slow to start.

    Args:
        python: the interpreter that has TextArena; this process's by default.
    """
    yield worker_of(python)
