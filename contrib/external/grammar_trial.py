"""Each grammar is tried in a process of its own before the engine gets it.

The engine masks tokens within its steps. So a grammar that compiles slowly, or has slow masks, would hold up every
request. Schemas come from the programs that are trained, and some take minutes: nested repeats in a pattern, thousands
of optional properties. The kernel enforces limits on the CPU time and memory of the process (grammar_trial_process.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections import OrderedDict
from typing import Any, Final

from forge_env.core.errors import PolicyError, TurnRefused

CPU_SECONDS: Final = 10
"""CPU time of one trial: compiling, and the masks of some answers."""
_WAIT_SECONDS: Final = 300.0
"""After this time the process is given up, in case of another problem, such as a machine that swaps."""
_START_SECONDS: Final = 300.0
_MOST_KEPT: Final = 10_000


class GrammarTrials:
    """Tries grammars, one after another, and remembers the results. Use it on one event loop.

    The process starts with the first grammar, and again after a grammar that ended it. It ends with this process.
    """

    def __init__(self, model: str, *, cpu_seconds: int = CPU_SECONDS) -> None:
        self._model = model
        self._cpu_seconds = cpu_seconds
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._results: OrderedDict[bytes, str] = OrderedDict()

    async def check(self, grammar: str, vocabulary: int) -> None:
        """Try a grammar unless it was tried before."""
        key = hashlib.blake2b(grammar.encode(), digest_size=16).digest()
        async with self._lock:  # bounded: each trial has limits
            problem = self._results.get(key)
            if problem is None:
                problem = self._results[key] = await self._try(grammar, vocabulary)
                if len(self._results) > _MOST_KEPT:
                    self._results.popitem(last=False)
            self._results.move_to_end(key)
        if problem:
            raise TurnRefused(problem)

    async def _try(self, grammar: str, vocabulary: int) -> str:
        process = await self._started(vocabulary)
        try:
            answer = await _answer(process, grammar)
        except BaseException:  # a cancelled call would leave its answer to the next one
            await self.close()
            raise
        if answer is not None:
            return str(answer["problem"])
        if self._process is not process:
            raise PolicyError("the engine was closed")
        await self.close()
        return (
            f"the engine's grammar of the schema takes more than {self._cpu_seconds} s of CPU or too much memory: use "
            "fewer optional properties, no repeats within repeats in patterns, and less nesting"
        )

    async def _started(self, vocabulary: int) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        command = [sys.executable, "-m", "contrib.external.grammar_trial_process", str(os.getpid()), self._model]
        self._process = await asyncio.create_subprocess_exec(
            *command, str(vocabulary), str(self._cpu_seconds), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            async with asyncio.timeout(_START_SECONDS):
                is_ready = await _read(self._process)
        except BaseException as error:
            await self.close()
            if not isinstance(error, TimeoutError):
                raise
            is_ready = None
        if is_ready is None:
            await self.close()
            raise PolicyError("the process that tries grammars did not start; its messages are in the log")
        return self._process

    async def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdout is not None
        if process.returncode is None and not process.stdout.at_eof():  # otherwise it has ended; only `wait` is left
            process.kill()
        await process.wait()


async def _answer(process: asyncio.subprocess.Process, grammar: str) -> dict[str, Any] | None:
    assert process.stdin is not None
    try:
        async with asyncio.timeout(_WAIT_SECONDS):
            process.stdin.write(json.dumps(grammar).encode() + b"\n")
            await process.stdin.drain()
            return await _read(process)
    except (TimeoutError, ConnectionError):
        return None


async def _read(process: asyncio.subprocess.Process) -> dict[str, Any] | None:
    """Return the next answer; None if the process has ended."""
    assert process.stdout is not None
    line = await process.stdout.readline()
    return json.loads(line) if line.endswith(b"\n") else None
