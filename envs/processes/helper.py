"""HelperProcess: a Python library in a confined process of its own, which the threads of this process ask in turn."""

from __future__ import annotations

import atexit
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from envs.processes import worker
from forge_env.core.errors import EnvError, ServiceError
from forge_env.utils.deadlines import queued
from forge_env.utils.exits import exit_code, how_it_ended
from forge_env.utils.threads import invoke

logger = logging.getLogger(__name__)

START_SECONDS = 120.0
ANSWER_SECONDS = 300.0
QUEUE_SECONDS = 600.0
END_SECONDS = 0.5  # from the end of its output to its own


class HelperProcess:
    """Starts with the first request, serves all threads one after the other, and ends with its owner.

    Its methods are thread-safe and block; each wait has a limit.

    Args:
        environment: variables in addition to this process's.
        python: the interpreter, of Python 3.11 or newer; by default this process's.
    """

    def __init__(
        self,
        library_file: str,
        *,
        name: str,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        # -P keeps the script's folder off its path: a module there may not hide one of Python's
        self._command = [python, "-P", str(Path(worker.__file__)), library_file]
        self._name = name
        self._environment = dict(environment or {})
        self._lock = threading.RLock()  # it knows its owner
        self._process: subprocess.Popen[bytes] | None = None
        self._request: list[int] = []
        """The bytes of the request that has no response yet."""
        self._response: list[bytes] = [b""]
        """What was read and is not a whole response yet."""
        self._has_ended = False
        self._denials: dict[str, Any] = {}

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        process = self._process
        return None if process is None else process.pid

    def check_installed(self) -> None:
        """Check, before a start, that the packages of the library are installed."""

    def request(self, request: Mapping[str, object], *, seconds: float) -> dict[str, Any]:
        """Send a request, and return its response; "error" in it is what the library raised.

        Args:
            seconds: for the response, and for the rest of a request if its thread gave up.
        """
        with self._turn():
            try:
                deadline = time.monotonic() + seconds
                if self._process is not None and _is_over(self._process.pid):
                    self._stop()  # it ended while idle
                if self._process is None:
                    self._start()
                if self._request:
                    self._read(deadline)  # the response for an interrupted thread
                self._send(request)
                return self._read(deadline)
            except ServiceError:
                self._stop()
                raise

    def ask(self, request: Mapping[str, object], *, seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        """Send a request, and return its response. What the library raises is an EnvError here."""
        response = self.request(request, seconds=seconds)
        if "error" in response:
            raise EnvError(f"{self.subject(request)} raised {response['error']}")
        return response

    def subject(self, request: Mapping[str, object]) -> str:
        """The subject of the sentence about an error of a request."""
        return self._name

    async def ask_in_turn(self, request: Mapping[str, object]) -> dict[str, Any]:
        """Ask for an episode, in a thread; its clocks stand still, because this has deadlines of its own."""
        async with queued():
            response: dict[str, Any] = await invoke(self.ask, request)
        return response

    def enforced(self) -> dict[str, Any]:
        """Return what the process is denied, determined by trying it, and "missing", a list of sentences.

        While there is no process, one is started that tries this and ends.
        """
        with self._turn():
            return self._denials if self._process is not None else self._try()

    def close(self) -> None:
        with self._turn():
            self._stop()

    def end_with_owner(self) -> None:
        """Stop the process for good when this process exits, and leave it alone in forks of this process."""
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self._forget)

    def end(self) -> None:
        """Stop the process for good, also in the middle of a request."""
        self._has_ended = True
        self._kill()  # a request under way fails now, and releases the lock
        self.close()

    def _forget(self) -> None:
        process = self._process
        self._process, self._lock = None, threading.RLock()
        self._request, self._response = [], [b""]
        if process is not None and process.stdin and process.stdout:
            process.stdin.close()
            process.stdout.close()
            process.returncode = 0  # the parent waits for it

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock. A thread may be interrupted at any point, so only a lock that is held is released."""
        deadline = time.monotonic() + QUEUE_SECONDS
        try:
            while not self._lock.acquire(timeout=1.0):  # a thread that waits cannot be interrupted, so in slices
                if time.monotonic() > deadline:
                    raise ServiceError(f"no turn at {self._name} within {QUEUE_SECONDS:g} s")
            yield
        finally:
            try:
                self._lock.release()
            except RuntimeError:
                pass  # interrupted before it had the lock

    def _send(self, request: Mapping[str, object]) -> None:
        assert self._process is not None and self._process.stdin is not None
        line = json.dumps(request).encode() + b"\n"
        try:
            _keep(self._request, os.write, self._process.stdin.fileno(), line)
        except OSError as error:
            raise ServiceError(f"{self._name} is gone: {error}") from error
        if self._request != [len(line)]:
            raise ServiceError(f"{self._name} has taken a part of a request only")

    def _read(self, deadline: float) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        file = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(file, select.POLLIN)
        while b"\n" not in self._response[-1]:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or not poll.poll(remaining_s * 1000):
                raise ServiceError(f"{self._name} did not answer in time")
            _keep(self._response, os.read, file, 1 << 20)
            if not self._response[-1]:
                how = how_it_ended(_exit_code(self._process.pid))
                raise ServiceError(f"{self._name} ended in the middle of its work: it {how}")
        line, _, rest = b"".join(self._response).partition(b"\n")
        self._response, self._request = [rest], []  # no call is between the two, so no interruption either
        response: dict[str, Any] = json.loads(line)
        return response

    def _start(self) -> None:
        self.check_installed()
        if self._has_ended:
            raise ServiceError(f"{self._name} has ended with its owner")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            env={**os.environ, **self._environment},
        )
        try:
            first_message = self._read(time.monotonic() + START_SECONDS)
            if "failed" in first_message:
                raise ServiceError(f"{self._name} did not start: {first_message['failed']}")
            self._denials = first_message["enforced"]
        except BaseException:
            self._stop()
            raise
        if not self._denials["seccomp"]:
            logger.warning("%s reads text of models unconfined: %s", self._name, "; ".join(self._denials["missing"]))

    def _try(self) -> dict[str, Any]:
        command = [*self._command, "try"]
        environ = {**os.environ, **self._environment}
        try:
            trial = subprocess.run(
                command, capture_output=True, text=True, timeout=START_SECONDS, check=True, env=environ
            )
            denials: dict[str, Any] = json.loads(trial.stdout)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise ServiceError(f"{self._name} cannot be confined: {error}") from error
        return denials

    def _stop(self) -> None:
        self._kill()
        process = self._process
        if process is not None:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._process = None
        self._request, self._response = [], [b""]

    def _kill(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)  # its forks too
        except ProcessLookupError:
            pass  # it has ended already


def _keep(results: list[Any], function: Callable[..., Any], *arguments: Any) -> None:
    """Append what a function written in C returns. A thread that is interrupted has its result, or has not called it.

    A thread is interrupted after a call, also before it has stored the result. Here it is in C until it has.
    """
    results.extend(map(function, *((argument,) for argument in arguments)))


def _exit_code(child: int) -> int | None:
    """Return the exit code of a child that is about to end, or minus the signal; None if it is not known."""
    try:
        pidfd = os.pidfd_open(child)
    except ProcessLookupError:
        return None
    try:
        select.select([pidfd], [], [], END_SECONDS)
        return exit_code(pidfd)
    finally:
        os.close(pidfd)


def _is_over(child: int) -> bool:
    """Whether a child has ended. `Popen.poll` takes a lock that a thread keeps for ever if it is interrupted there."""
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True  # an interrupted thread has waited for it
