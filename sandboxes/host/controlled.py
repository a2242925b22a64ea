"""A process of the guest, and the socket that controls it: start it, send it orders, receive the ends of its work."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from forge_env.core.errors import SandboxUnavailable, UserError
from sandboxes.guest import seccomp

GUEST = Path(seccomp.__file__).parent
"""Folder of the programs that run inside, and of the modules that they import."""
FLAGS = ("-P", "-s", "-S", "-B", "-X", "utf8")
"""Of a bare Python."""
START_S = 30.0
_MAX_MESSAGE = 64 * 2**10
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
        self._unsent: list[dict[str, Any]] = []
        self.alive = True
        self._loop.add_reader(control.fileno(), self._receive, control, partial(self._lose, f"{self.who} died"))

    @classmethod
    def _spawn(cls) -> Self:
        require_supported_platform()
        host_end, guest_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with guest_end:
            process = spawn(cls.program, guest_end.fileno())
        host_end.setblocking(False)
        host_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
        return cls(process, host_end)

    async def _begin(self, config: dict[str, Any]) -> None:
        """Send what it begins with, and wait until it takes orders. Raises what `_refusal` returns."""
        try:
            self._send({"owner": os.getpid(), "privileged": os.geteuid() == 0, **config}, [])
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
        # It ends at the end of its control socket; its starter ends after all processes below it.
        await exited(self._process, self.close_s)
        self._process.kill()
        self._process.wait()

    def _refusal(self, answer: dict[str, Any]) -> UserError:
        raise NotImplementedError

    def _note(self, message: dict[str, Any]) -> None:
        """Take a message that is no end."""
        if not self._ready.done():
            self._ready.set_result(message)

    def _end(self, message: dict[str, Any]) -> End:
        """Read a message that is an end, without its number."""
        failure = message.pop("failed", "")
        end: End = self.end(**message, failure=failure)
        return end

    def _work(self, number: int, order: dict[str, Any], fds: Sequence[int]) -> asyncio.Future[End]:
        """Send an order; return the future of its end, which never raises."""
        ended = self._waiting[number] = self._loop.create_future()
        self._send(order, fds)
        return ended

    def _send(self, message: dict[str, Any], fds: Sequence[int] | None = None) -> None:
        """Send a message. One without descriptors waits if the socket is full: closing many at once can fill it."""
        if not self.alive:
            self._lose(f"{self.who} is gone")
            return
        if self._unsent and fds is None:
            self._unsent.append(message)
            return
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], list(fds or ()))
        except BlockingIOError:
            if fds is not None:
                self._lose(f"{self.who} does not read its socket")
                return
            self._unsent.append(message)
            self._loop.add_writer(self._control.fileno(), self._send_rest)
        except OSError as error:
            self._lose(f"{self.who} does not read its socket: {error.strerror}")

    def _send_rest(self) -> None:
        self._loop.remove_writer(self._control.fileno())
        unsent, self._unsent = self._unsent, []
        for message in unsent:
            self._send(message)

    def _receive(self, control: socket.socket, lost: Callable[[], None]) -> None:
        try:
            data = control.recv(_MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._take(json.loads(data)) if data else lost()

    def _take(self, message: dict[str, Any]) -> None:
        if self.end_key not in message:
            self._note(message)
            return
        ended = self._waiting.pop(message.pop(self.end_key), None)
        if ended is not None and not ended.done():
            ended.set_result(self._end(message))

    def _lose(self, reason: str) -> None:
        if self.alive:
            self.alive = False
            self._loop.remove_reader(self._control.fileno())
            self._loop.remove_writer(self._control.fileno())
            self._control.close()
        if not self._ready.done():
            self._ready.set_result({"failed": reason, "errno": None})
        waiting, self._waiting = self._waiting, {}
        for ended in waiting.values():
            if not ended.done():
                ended.set_result(self.end(failure=reason))


async def exited(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait until a process has ended, at most `timeout_s`."""
    if process.poll() is not None:
        return
    pidfd = os.pidfd_open(process.pid)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        async with asyncio.timeout(timeout_s):
            await ended.wait()
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
