"""A process of the guest, and the socket that controls it: start it, send it orders, receive the ends of its work."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import platform
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from forge_env.core.errors import SandboxUnavailable, UserError
from forge_env.utils.exits import how_it_ended
from sandboxes.guest import seccomp

GUEST = Path(seccomp.__file__).parent
"""Folder of the programs that run inside, and of the modules that they import."""
FLAGS = ("-P", "-s", "-S", "-B", "-X", "utf8")
"""Of a bare Python."""
START_S = 30.0
_MAX_MESSAGE = 64 * 2**10
_EXIT_S = 2.0
"""Seconds that a process may take to end after its socket was closed, for the reason to name its end."""
NO_ROOM = (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM)
"""The kernel has no room for a message or its descriptors, for now: nobody at the other end is to blame."""
_NO_ROOM_S = 0.02
End = TypeVar("End")


class Controlled(Generic[End]):
    """A running process. It works on numbered pieces of work; `End` tells how one ended. Belongs to one event loop."""

    program: ClassVar[Path]
    who: ClassVar[str]
    """The subject of sentences about it."""
    end: ClassVar[type]
    """`End`. Its argument `failure` says what broke in the sandbox itself."""
    end_key: ClassVar[str]
    """The key of its messages with the number of the work that has ended."""
    close_s: ClassVar[float]
    """Seconds that its end may take, before it is killed."""
    closed: ClassVar[str] = "the sandbox was closed"
    """What ends its work when it is closed."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process, self._control = process, control
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._waiting: dict[int, asyncio.Future[End]] = {}
        self._unsent: deque[tuple[bytes, list[int], int]] = deque()
        """Messages that wait, each with copies of its descriptors and the number of its work."""
        self._last_words = ""
        self._answer_deadline: asyncio.TimerHandle | None = None
        self.alive, self.reason = True, ""
        """`reason`: why it is not alive."""
        self._loop.add_reader(control.fileno(), self._receive, control, self._on_death)

    @classmethod
    def _spawn(cls) -> Self:
        require_supported_platform()
        host_end, guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with guest_end:
                process = spawn(cls.program, guest_end.fileno())
        except BaseException:
            host_end.close()
            raise
        host_end.setblocking(False)
        host_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
        return cls(process, host_end)

    async def _begin(self, config: dict[str, Any]) -> None:
        """Send what it begins with, and wait until it takes orders. Raises what `_refusal` returns."""
        try:
            self._send({"owner": os.getpid(), "privileged": os.geteuid() == 0, **config})
            async with asyncio.timeout(START_S):
                answer = await self._ready
            if "ready" not in answer:
                raise self._refusal(answer)
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise self._refusal({"failed": f"it took longer than {START_S:g} s", "late": True}) from error
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill_all(self) -> None:
        self._process.kill()
        self._lose(f"{self.who} was killed because it did not answer")

    async def close(self) -> None:
        """End the process and everything below it. Idempotent."""
        self._lose(self.closed)
        self._ready.cancel()
        try:  # it ends at the end of its control socket; its starter ends after all processes below it
            await exited(self._process, self.close_s)
        finally:
            self._process.kill()
            self._process.wait()

    def _refusal(self, answer: dict[str, Any]) -> UserError:
        raise NotImplementedError

    def _note(self, message: dict[str, Any]) -> None:
        """Take a message that is no end."""
        self._last_words = message.get("died", self._last_words)
        if not self._ready.done():
            self._ready.set_result(message)

    def _end(self, message: dict[str, Any]) -> End:
        """Read a message that is an end, without its number."""
        failure = message.pop("failed", "")
        end: End = self.end(**message, failure=failure)
        return end

    def _work(self, number: int, order: dict[str, Any], fds: Sequence[int]) -> asyncio.Future[End]:
        """Send an order; return the future of its end, which never raises."""
        end = self._waiting[number] = self._loop.create_future()
        self._send(order, fds, number)
        return end

    def _send(self, message: dict[str, Any], fds: Sequence[int] = (), number: int = 0) -> None:
        """Send a message, in order. It waits while the socket is full: many at once can fill it.

        Args: number: of the work that ends if the message cannot be sent.
        """
        if not self.alive:
            self._lose(self.reason)
            return
        data = json.dumps(message).encode()
        if not self._unsent and self._is_done_with(data, fds, number):
            return
        try:
            self._unsent.append((data, _copies(fds), number))
        except OSError as error:
            self._fail(number, error)

    def _is_done_with(self, data: bytes, fds: Sequence[int], number: int) -> bool:
        """Try to send; return False if it has to be tried again later, which is arranged."""
        try:
            socket.send_fds(self._control, [data], fds)
        except BlockingIOError:
            self._loop.add_writer(self._control.fileno(), self._send_rest)
            return False
        except (BrokenPipeError, ConnectionResetError):
            self._receive(self._control, self._on_death)
        except OSError as error:
            if error.errno in NO_ROOM:  # the kernel does not say when there is room again
                self._loop.call_later(_NO_ROOM_S, self._send_rest)
                return False
            self._fail(number, error)
        return True

    def _send_rest(self) -> None:
        if self.alive:
            self._loop.remove_writer(self._control.fileno())
        while self._unsent:
            waiting = self._unsent.popleft()
            if not self._is_done_with(*waiting):
                self._unsent.appendleft(waiting)
                return
            _close_all(waiting[1])

    def _fail(self, number: int, error: OSError) -> None:
        self._take({self.end_key: number, "failed": f"{self.who} cannot be told: {error.strerror}"})

    def _expect_answer(self, timeout_s: float) -> None:
        """Kill the process unless a message comes in time."""
        if self._answer_deadline is None and self.alive:
            self._answer_deadline = self._loop.call_later(timeout_s, self.kill_all)

    def _stop_expecting(self) -> None:
        if self._answer_deadline is not None:
            self._answer_deadline.cancel()
            self._answer_deadline = None

    def _receive(self, control: socket.socket, lost: Callable[[], None]) -> None:
        """Read all messages that are there: a deadline of a busy event loop must not pass over one of them."""
        while True:
            try:
                data = control.recv(_MAX_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                lost()
                return
            self._stop_expecting()
            self._take(json.loads(data))

    def _take(self, message: dict[str, Any]) -> None:
        if self.end_key not in message:
            self._note(message)
            return
        future = self._waiting.pop(message.pop(self.end_key), None)
        if future is not None and not future.done():
            future.set_result(self._end(message))

    def _on_death(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_S)
        words = f": {self._last_words}" if self._last_words else ""
        self._lose(f"{self.who} {how_it_ended(self._process.returncode)}{words}")

    def _lose(self, reason: str) -> None:
        if self.alive:
            self.alive, self.reason = False, reason
            self._stop_expecting()
            self._loop.remove_reader(self._control.fileno())
            self._loop.remove_writer(self._control.fileno())
            self._control.close()
            while self._unsent:
                _close_all(self._unsent.popleft()[1])
        if not self._ready.done():
            self._ready.set_result({"failed": reason, "errno": None})
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_result(self.end(failure=reason))


def _copies(fds: Sequence[int]) -> list[int]:
    copies: list[int] = []
    try:
        for fd in fds:
            copies.append(os.dup(fd))
    except OSError:
        _close_all(copies)
        raise
    return copies


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


async def exited(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    if process.poll() is not None:
        return
    pidfd = os.pidfd_open(process.pid)
    loop, exit_event = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, exit_event.set)
    try:
        async with asyncio.timeout(timeout_s):
            await exit_event.wait()
    except TimeoutError:
        pass
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def spawn(program: Path, control_fd: int) -> subprocess.Popen[bytes]:
    """Start a program of the guest in a bare interpreter, with one end of its control socket."""
    python = getattr(sys, "_base_executable", None) or sys.executable
    # -P -s and a clean environment isolate like -I, which would ignore the hash seed. With a fixed seed the same code
    # iterates its sets in the same order in every zygote, so a grade can be reproduced.
    return subprocess.Popen(
        [python, *FLAGS, str(program), str(control_fd), str(GUEST)],
        # BLAS libraries would start a thread per CPU, and glibc would reserve address space per thread.
        env={"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[control_fd],
        start_new_session=True,
    )


def require_supported_platform() -> None:
    """Raise SandboxUnavailable on a platform without namespaces, or without a list of its system calls."""
    if sys.platform != "linux" or platform.machine() not in seccomp.supported_machines():
        raise SandboxUnavailable(
            f"namespace sandbox: needs Linux on {' or '.join(seccomp.supported_machines())}, "
            f"but this is {platform.system()} on {platform.machine()}."
        )


def why_not(failed: str) -> str:
    """Return the error sentence for a kernel that refused to isolate, with the remedy."""
    if os.geteuid() == 0:
        remedy = (
            "root needs CAP_SYS_ADMIN, CAP_SETUID and CAP_SETGID and Linux 5.12 or newer (in a container add "
            "--cap-add SYS_ADMIN --security-opt seccomp=unconfined --security-opt apparmor=unconfined)"
        )
    else:
        remedy = (
            "an ordinary user needs Linux 5.12 or newer with unprivileged user namespaces enabled (sysctl "
            "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0, "
            "user.max_user_namespaces above 0), or run as root"
        )
    return f"namespace sandbox: the kernel refused to isolate ({failed}); {remedy}."
