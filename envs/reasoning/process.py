"""The helper process in which reasoning-gym runs: started with the first request, ended with its owner.

It serves all threads, one after the other.
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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from forge_env.core.errors import EnvError, ServiceError, UserError

logger = logging.getLogger(__name__)

START_SECONDS = 120.0
ANSWER_SECONDS = 300.0
QUEUE_SECONDS = 600.0


def require_reasoning_gym() -> None:
    """Check that reasoning-gym is installed.

    Raises:
        UserError: when it is not, with the command that installs it.
    """
    if importlib.util.find_spec("reasoning_gym") is None:
        raise UserError("reasoning-gym is not installed: pip install 'forge-env[reasoning-gym]'")


class Worker:
    """One helper process. `ask` is thread-safe and blocks; each wait has a deadline."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # it knows its owner
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._enforced: dict[str, Any] = {}

    @property
    def pid(self) -> int | None:
        """The helper process, while there is one."""
        process = self._process
        return None if process is None else process.pid

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and return its answer.

        Raises:
            EnvError: when reasoning-gym itself raised.
            ServiceError: when the helper process broke, or did not answer in time.
        """
        lock = self._lock
        try:
            # Within the block: an interruption may come right after it.
            if not lock.acquire(timeout=QUEUE_SECONDS):
                raise ServiceError(f"no turn at the reasoning-gym process within {QUEUE_SECONDS:g} s")
            answer = self._ask_or_stop(request)
        finally:
            with suppress(RuntimeError):  # this thread never had it
                lock.release()
        if "error" in answer:
            raise EnvError(f"the reasoning-gym dataset {request.get('dataset', '')} raised {answer['error']}")
        return answer

    def enforced(self) -> dict[str, Any]:
        """Tell what the helper process is denied, found out by trying it, and what is "missing"; starts it if need be.

        Raises:
            ServiceError: when it does not start.
        """
        self.ask({"do": "enforced"})  # so that there is one
        return self._enforced

    def close(self) -> None:
        """Stop the helper process, if there is one; the next request starts another."""
        self._kill()  # a request under way ends now, and lets go of the lock
        with self._lock:
            self._stop()

    def forget(self) -> None:
        """Let go of the parent's helper process, in a fork."""
        process, self._process, self._lock, self._unread = self._process, None, threading.RLock(), b""
        if process is not None and process.stdin and process.stdout:
            process.stdin.close()
            process.stdout.close()
            process.returncode = 0  # not ours to wait for

    def _ask_or_stop(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._ask(request)
        except BaseException:
            self._stop()  # whatever it still writes belongs to nobody
            raise

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is not None and self._process.poll() is not None:
            self._stop()  # it ended while idle, which harmed no request
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise ServiceError(f"the reasoning-gym process is gone: {error}") from error
        return self._read(ANSWER_SECONDS)

    def _start(self) -> None:
        require_reasoning_gym()
        script = Path(__file__).with_name("worker.py")
        # -P keeps this folder off the worker's path: a module here may not hide one of Python's
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            env={**os.environ, "PYTHONHASHSEED": "0"},  # some datasets depend on the order of sets
        )
        started = self._read(START_SECONDS)
        if not started.get("ready"):
            raise ServiceError("the reasoning-gym process did not start")
        self._enforced = started["enforced"]
        if not self._enforced["seccomp"]:
            logger.warning(
                "the reasoning-gym process reads text of models unconfined: %s", "; ".join(self._enforced["missing"])
            )

    def _read(self, seconds: float) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        deadline = time.monotonic() + seconds
        file = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(file, select.POLLIN)
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise ServiceError(f"the reasoning-gym process did not answer within {seconds:g} s")
            data = os.read(file, 1 << 20)
            if not data:
                raise ServiceError("the reasoning-gym process ended in the middle of its work")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def _stop(self) -> None:
        self._kill()
        process, self._process, self._unread = self._process, None, b""
        if process is None:
            return
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def _kill(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)  # its fork too
        except ProcessLookupError:
            pass  # it has ended already


@asynccontextmanager
async def open_worker() -> AsyncIterator[Worker]:
    """Name the helper process, for an environment; it outlives the environment, because it is slow to start."""
    yield worker


worker = Worker()
atexit.register(worker.close)
os.register_at_fork(after_in_child=worker.forget)
