"""Each grammar is tried in a process of its own before the engine gets it.

The engine masks tokens within its steps. So a grammar that compiles slowly, or has slow masks, would hold up every
request. Schemas come from the programs that are trained, and some take minutes: nested repeats in a pattern, thousands
of optional properties. The kernel enforces limits on the CPU time and memory of a trial (grammar_trial_process.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any, Final

from contrib.external import grammar_trial_process as library
from envs.processes.helper import HelperProcess
from forge_env.core.errors import PolicyError, ServiceError, TurnRefused
from forge_env.utils.threads import invoke

CPU_SECONDS: Final = 10
"""CPU time of one trial: compiling, and the masks of some answers."""
_MOST_KEPT: Final = 10_000


class GrammarTrials:
    """Tries grammars, one after another, and remembers the results. Use it on one event loop.

    The process starts with the first grammar, and again after a failure. It ends with this process.
    """

    def __init__(self, model: str, *, cpu_seconds: int = CPU_SECONDS) -> None:
        self._model = model
        self._cpu_seconds = cpu_seconds
        self._process: HelperProcess | None = None
        self._is_closed = False
        self._lock = asyncio.Lock()
        self._results: dict[bytes, str] = {}
        """The last used ones at the end."""

    async def check(self, grammar: str, vocabulary: int) -> None:
        """Try a grammar unless it was tried before."""
        key = hashlib.blake2b(grammar.encode(), digest_size=16).digest()
        async with self._lock:  # bounded: each trial has limits
            problem = self._results.pop(key, None)
            if problem is None:
                problem = await self._try(grammar, vocabulary)
            self._results[key] = problem
            if len(self._results) > _MOST_KEPT:
                del self._results[next(iter(self._results))]
        if problem:
            raise TurnRefused(problem)

    async def _try(self, grammar: str, vocabulary: int) -> str:
        if self._process is None:
            settings = {library.SETTINGS: json.dumps([self._model, vocabulary])}
            self._process = HelperProcess(
                library.__file__, name="the process that tries grammars", environment=settings
            )
            self._process.end_with_owner()
        request = {"grammar": grammar, "cpu_seconds": self._cpu_seconds}
        try:
            answer: dict[str, Any] = await invoke(self._process.request, request, seconds=2 * library.WAIT_SECONDS)
        except ServiceError as error:
            raise PolicyError("the engine was closed" if self._is_closed else str(error)) from None
        if "error" in answer:
            raise PolicyError(f"a grammar could not be tried: {answer['error']}")
        if "problem" in answer:
            return str(answer["problem"])
        return (
            f"the engine's grammar of the schema takes more than {self._cpu_seconds} s of CPU or too much memory: use "
            "fewer optional properties, no repeats within repeats in patterns, and less nesting"
        )

    async def close(self) -> None:
        self._is_closed = True
        if self._process is not None:
            await asyncio.to_thread(self._process.end)
