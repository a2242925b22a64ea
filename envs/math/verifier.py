"""Compares expressions by math-verify, in a helper process that can be stopped.

The process starts with the first comparison, serves all threads one after the other, and ends with its owner, or with
the environment factory that shares it. Only processor time counts against a comparison, so that a busy machine makes
no answer wrong.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from envs.math.worker import WALL_SECONDS
from forge_env.core.errors import EnvError, ServiceError, UserError
from forge_env.utils.threads import invoke

logger = logging.getLogger(__name__)

START_SECONDS = 120.0
QUEUE_SECONDS = 600.0
# -P keeps this folder off the worker's path: a module here may not hide one of Python's
_COMMAND = [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))]
_MISSING = (
    "math-verify is not installed, and answers that are no numbers are graded by it: pip install 'forge-env[math]'"
)


def require_math_verify() -> None:
    """Check that math-verify is installed.

    Raises:
        UserError: when it is not, with the command that installs it.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise UserError(_MISSING)


def equal_expressions(target: str, answer: str, *, tolerance: float = 0.0) -> bool:
    """Tell whether two LaTeX expressions are equal; `tolerance` is relative and counts for values only.

    An answer that takes too much processor time or memory to compare is not equal.

    Raises:
        UserError: when math-verify is not installed.
        EnvError: when the target itself takes too long to read.
        ServiceError: when the helper process broke.
    """
    return _verifier.compare(target, answer, tolerance)


@asynccontextmanager
async def open_verifier() -> AsyncIterator[Verifier]:
    """Stop the helper process at the end, for an environment that shares it."""
    try:
        yield _verifier
    finally:
        await invoke(_verifier.close)


class Verifier:
    """One helper process. Its methods are thread-safe and block; each wait has a deadline."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._busy = False
        self._ended = False
        self._enforced: dict[str, Any] = {}

    @property
    def pid(self) -> int | None:
        """The helper process, while there is one."""
        process = self._process
        return None if process is None else process.pid

    def compare(self, target: str, answer: str, tolerance: float) -> bool:
        """Compare two expressions, as `equal_expressions` does."""
        with self._turn():
            try:
                return self._compare(target, answer, tolerance)
            except ServiceError:
                self._stop()
                raise

    def enforced(self) -> dict[str, Any]:
        """Tell what the helper process is denied, found out by trying it, and what is "missing".

        While there is none, one that does no more than this is started.

        Raises:
            ServiceError: when it does not start.
        """
        if importlib.util.find_spec("math_verify") is None:
            return {"missing": ["math-verify is not installed, so there is no helper process"]}
        with self._turn():
            return self._enforced if self._process is not None else _tried()

    def close(self) -> None:
        """Stop the helper process, if there is one; the next comparison starts another."""
        with self._turn():
            self._stop()

    def end(self) -> None:
        """Stop at once and for good, as the owner ends: comparisons under way fail."""
        self._ended = True
        self._kill()
        self.close()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock. A thread may be told to give up at any moment, so what is released is what is really held."""
        deadline = time.monotonic() + QUEUE_SECONDS
        try:
            while not self._lock.acquire(timeout=1.0):  # in slices, because a waiting thread hears of nothing
                if time.monotonic() > deadline:
                    raise ServiceError(f"no turn at the math grader within {QUEUE_SECONDS:g} s")
            yield
        finally:
            try:
                self._lock.release()
            except RuntimeError:
                pass  # this thread gave up before it had the lock

    def forget(self) -> None:
        """Let go of the parent's helper process, in a fork."""
        process = self._process
        self._process, self._lock, self._unread, self._busy = None, threading.RLock(), b"", False
        if process is not None and process.stdin and process.stdout:
            process.stdin.close()
            process.stdout.close()
            process.returncode = 0  # not ours to wait for

    def _compare(self, target: str, answer: str, tolerance: float) -> bool:
        if self._process is not None and self._process.poll() is not None:
            self._stop()  # it ended while idle, which harmed no comparison
        if self._process is None:
            self._start()
        deadline = time.monotonic() + 2 * WALL_SECONDS
        if self._busy:
            self._lines(deadline)  # the rest of a comparison whose thread was told to give up
        self._send({"target": target, "answer": answer, "tolerance": tolerance})
        return _verdict(self._lines(deadline), target)

    def _send(self, request: Mapping[str, object]) -> None:
        assert self._process is not None and self._process.stdin is not None
        line = json.dumps(request).encode() + b"\n"
        self._busy = True
        try:
            self._process.stdin.write(line)
        except OSError as error:
            raise ServiceError(f"the math grader is gone: {error}") from error

    def _lines(self, deadline: float) -> list[str]:
        """Read what one comparison wrote."""
        lines = [self._line(deadline)]
        while not lines[-1].startswith("done "):
            lines.append(self._line(deadline))
        self._busy = False
        return lines

    def _start(self) -> None:
        require_math_verify()
        if self._ended:
            raise ServiceError("the math grader has ended with its process")
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        try:
            line = self._line(time.monotonic() + START_SECONDS)
            if not line.startswith("ready "):
                raise ServiceError(f"the math grader did not start: {line.removeprefix('failed ')}")
            self._enforced = json.loads(line.removeprefix("ready "))
            if not self._enforced["seccomp"]:
                logger.warning(
                    "the math grader reads text of models unconfined: %s", "; ".join(self._enforced["missing"])
                )
        except BaseException:
            self._stop()
            raise

    def _line(self, deadline: float) -> str:
        """Read the next line that the helper wrote."""
        assert self._process is not None and self._process.stdout is not None
        file = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(file, select.POLLIN)
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise ServiceError("the math grader did not answer in time")
            data = os.read(file, 65536)
            if not data:
                raise ServiceError("the math grader ended in the middle of its work")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def _stop(self) -> None:
        self._kill()
        process = self._process
        if process is not None:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._process, self._unread, self._busy = None, b"", False

    def _kill(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)  # its fork too
        except ProcessLookupError:
            pass  # it has ended already


def _tried() -> dict[str, Any]:
    try:
        result = subprocess.run([*_COMMAND, "try"], capture_output=True, text=True, timeout=START_SECONDS, check=True)
        enforced: dict[str, Any] = json.loads(result.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ServiceError(f"the math grader cannot be confined: {error}") from error
    return enforced


def _verdict(lines: list[str], target: str) -> bool:
    """Turn what a comparison wrote into its result.

    Raises:
        EnvError: when it ended before it had read the target.
        ServiceError: when it ended in a way that the answer cannot be blamed for.
    """
    if lines[0] != "target":
        raise EnvError(f"the target {target[:100]!r} takes the math grader too long to read")
    if lines[1] in ("equal", "different"):
        return lines[1] == "equal"
    status = int(lines[-1].removeprefix("done "))
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        return False
    raise ServiceError(f"the math grader's work ended with status {os.waitstatus_to_exitcode(status)}")


_verifier = Verifier()
atexit.register(_verifier.end)
os.register_at_fork(after_in_child=_verifier.forget)
