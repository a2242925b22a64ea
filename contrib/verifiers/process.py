"""The worker process that plays rollouts of verifiers, and the rollouts that it plays."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contrib.common.guard import guarded
from contrib.common.programs import last_words, read_tail, stop
from contrib.external.output import ProgramOutput, how_it_ended
from contrib.external.scoring import Result
from contrib.verifiers.interpreter import Settings, environment, read_line
from forge_env.core.errors import EnvError, ServiceError
from forge_env.utils.deadlines import queued

START_SECONDS = 600.0
CANCEL_SECONDS = 3.0
"""How long a cancelled rollout is waited for; the worker ends it in any case."""
STOP_SECONDS = 10.0
_TAIL, _LINE = 2**16, 2**26


class Worker:
    """One environment of verifiers in a process of its own, which plays many rollouts at once.

    The rollout after its death starts another one. Belongs to one event loop.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._starting = asyncio.Lock()
        self._process: _Process | None = None
        self._is_closed = False

    async def play(self, request: Mapping[str, Any]) -> Rollout:
        """Begin a rollout."""
        async with queued():
            process = await self.start()
        return await process.play(request)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def close(self) -> None:
        """End the process, and remove its files."""
        self._is_closed = True
        async with self._starting:
            await self._stop()

    async def start(self) -> _Process:
        async with self._starting:
            if self._is_closed:
                raise ServiceError("the process of verifiers was closed")
            if self._process is not None and self._process.is_dead:
                await self._stop()
            if self._process is None:
                self._process = await _Process.start(self._settings)
            return self._process

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.stop()


class Rollout(ProgramOutput):
    """A rollout; to an episode it is its program, see `contrib.external.player.Player`."""

    listener: socket.socket | None = None

    def __init__(self, process: _Process, number: int) -> None:
        super().__init__()
        self.folder = process.folder
        self.result_data: Mapping[str, Any] = {}
        self._process = process
        self._number = number
        self._done = asyncio.get_running_loop().create_future()

    def finish(self, result: Mapping[str, Any]) -> None:
        if not self._done.done():
            self.result_data, self.exit_code = result, int("failed" in result)
            self.note("stderr", str(result.get("failed", "")).encode("utf-8", "replace"))
            self._done.set_result(None)

    async def wait_for_end(self) -> int:
        """Wait for its end; 0, or 1 for one that failed."""
        await asyncio.shield(self._done)
        assert self.exit_code is not None
        return self.exit_code

    def raise_failure(self) -> None:
        """Raise the reason of a failure: the environment's, or its process's."""
        if self.result_data.get("died"):
            raise ServiceError(str(self.result_data["failed"]))
        if "failed" in self.result_data:
            raise EnvError(f"the rollout of verifiers failed: {self.result_data['failed']}")

    def result(self, last_words: str) -> Result:
        """The model's last message; the reward comes from verifiers, see `Verifiers`."""
        return Result(answer=last_words)

    async def close(self) -> None:
        if not self._done.done():
            await self._process.cancel(self._number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_SECONDS):
                    await self.wait_for_end()
        self.finish({"failed": "the rollout did not end when it was cancelled"})
        self._process.forget(self._number)


class _Process:
    def __init__(self, process: asyncio.subprocess.Process, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self._process = process
        self._settings = settings
        self._numbers = itertools.count(1)
        self._rollouts: dict[int, Rollout] = {}
        self._stderr = bytearray()
        self._reading = [asyncio.create_task(read_tail(process.stderr, self._stderr, _TAIL))]
        self._cause = ""

    @classmethod
    async def start(cls, settings: Settings) -> _Process:
        folder = Path(tempfile.mkdtemp(prefix="forge_env_verifiers_"))  # for the files of its rollouts
        command = settings.command("serve", folder=str(folder))
        try:
            process = await asyncio.create_subprocess_exec(
                *guarded(command, folder=folder),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment(),
                cwd=folder,
                start_new_session=True,
                limit=_LINE,
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        worker = cls(process, folder, settings)
        try:
            await worker._until_ready()
        except BaseException:
            await worker.stop()
            raise
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_dead(self) -> bool:
        return bool(self._cause) or self._process.returncode is not None

    async def play(self, request: Mapping[str, Any]) -> Rollout:
        number = next(self._numbers)
        rollout = self._rollouts[number] = Rollout(self, number)
        try:
            await self._write({"id": number, **request})
        except BaseException:
            self.forget(number)
            raise
        return rollout

    async def cancel(self, number: int) -> None:
        with contextlib.suppress(ServiceError):
            await self._write({"cancel": number})

    def forget(self, number: int) -> None:
        self._rollouts.pop(number, None)

    async def stop(self) -> None:
        """End the process and all that it has started."""
        try:
            await stop(self._process, STOP_SECONDS)  # the guard, which kills what does not end by itself
        finally:
            for reading in self._reading:
                reading.cancel()
            await asyncio.gather(*self._reading, return_exceptions=True)
            self._die("the process of verifiers was closed")
            shutil.rmtree(self.folder, ignore_errors=True)

    async def _until_ready(self) -> None:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                line = await self._process.stdout.readline()
                if not line:
                    await asyncio.wait(self._reading, timeout=STOP_SECONDS)
        except TimeoutError:
            raise ServiceError(f"verifiers:{self._settings.id} did not start within {START_SECONDS:g} s") from None
        read_line(line, self._settings, last_words(self._stderr))
        self._reading.append(asyncio.create_task(self._read_results()))

    async def _write(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        if self.is_dead:
            raise ServiceError(self._cause or "the process of verifiers is dead")
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            await self._process.stdin.drain()
        except OSError as error:
            raise ServiceError(f"the process of verifiers is dead: {error}") from None

    async def _read_results(self) -> None:
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                result = json.loads(line)
                if rollout := self._rollouts.get(result["id"]):
                    rollout.finish(result)
            await asyncio.wait(self._reading[:1], timeout=STOP_SECONDS)  # its last words
            words = last_words(self._stderr)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._process.wait()
            code = self._process.returncode
            how = "" if code is None else f": it {how_it_ended(code)}"
            self._die(
                f"the process of verifiers ended in the middle of its work{how}"
                + (f"; it wrote: {words}" if words else "")
            )
        except (ValueError, KeyError) as error:
            self._die(f"the process of verifiers wrote what cannot be read: {error}")

    def _die(self, cause: str) -> None:
        self._cause = self._cause or cause
        for rollout in self._rollouts.values():
            rollout.finish({"failed": self._cause, "died": True})
