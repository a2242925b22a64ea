"""Pid 1 of a workspace: it starts commands, reports their ends, and kills. Standard library only.

Imported by `guest_workspace.py`, never by the host. It holds no more privileges than the commands that it starts: to
change to another user of the workspace, and to kill. It trusts nothing that it reads there. Requests and answers are
JSON over a socket of the owner; output goes to descriptors of the owner, which come with a request.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap  # noqa: F401  # for a canary: a workspace cannot import it any more
import os
import resource
import select
import signal
import socket
import time
from typing import Any, NoReturn

import guest_kernel as kernel  # type: ignore[import-not-found]
import guest_workspace_changes as changes  # type: ignore[import-not-found]
import guest_workspace_files as files  # type: ignore[import-not-found]
import guest_workspace_users as users  # type: ignore[import-not-found]

IDS = 2**16
KEPT_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 31)
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETFCAP: what installing packages takes, in a user
namespace of its own."""
_OPEN_FILES, _USUAL_OPEN_FILES = 65536, 1024
_SPARE_PROCESSES = 16
_MAX_MESSAGE, _MAX_FDS = 256 * 2**10, 8
_MAX_REASON = 1000  # characters: a reason quotes what it is about, and a message of the link has to hold it
_PASSES = 100
_ETC_HOSTS = "127.0.0.1\tlocalhost workspace\n::1\tlocalhost ip6-localhost ip6-loopback\n"


def enter_users(user_namespace: int | None) -> None:
    """Become root of a user namespace, unless this process is that already. Raises OSError."""
    _be_killed_last()
    if user_namespace is not None:
        kernel.setns(user_namespace, kernel.NEWUSER)
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    kernel.die_with_parent()


def confine(order: dict[str, Any], lockdown: Any) -> None:
    """Give up everything that this process and its children do not need. Raises OSError."""
    _limit(order)
    lockdown.keep_capabilities(KEPT_CAPABILITIES)
    kernel.set_dumpable(False)
    lockdown.filter_calls()


def _be_killed_last() -> None:
    """When memory runs out, commands are killed before this process.

    With CAP_SYS_RESOURCE they cannot lower their score again: the first file then sets the least score as well, which
    the second one, that of old kernels, leaves as it is.
    """
    _be_killed_first()
    for name in ("oom_adj", "oom_score_adj"):
        try:
            with open(f"/proc/self/{name}", "w") as score:
                score.write("0")
            return
        except OSError:
            continue


def _be_killed_first() -> None:
    """Where /proc is read-only, the kernel chooses by size, and pid 1 is small."""
    with contextlib.suppress(OSError):
        kernel.be_killed_first()


def _limit(order: dict[str, Any]) -> None:
    kernel.lower_small_limits()
    # The disk is full before that; this is for files with holes.
    kernel.lower(resource.RLIMIT_FSIZE, order["disk_bytes"] + 2**20)
    if order["own_ids"]:  # else the limit would count processes of the same ids elsewhere on the machine
        kernel.lower(resource.RLIMIT_NPROC, order["processes"] + (_SPARE_PROCESSES if order["counted"] else 0))
    if not order["counted"]:
        kernel.lower(resource.RLIMIT_AS, order["memory_bytes"])
    kernel.lower(resource.RLIMIT_NOFILE, _OPEN_FILES, _USUAL_OPEN_FILES)
    kernel.lower(resource.RLIMIT_STACK, order["memory_bytes"], kernel.USUAL_STACK)


class Init:
    def __init__(self, link: socket.socket, order: dict[str, Any]) -> None:
        self.link = link
        self.users: bool = order["users"]
        self.workdir: str = order["workdir"]
        self.running: dict[int, int] = {}
        """Number of a request -> process id."""
        self.requests_by_pid: dict[int, int] = {}
        """Process id -> number of a request."""

    def serve(self, listeners: list[socket.socket]) -> NoReturn:
        _make_standard_files(self.workdir)
        os.chdir("/")
        wakeup, wake_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Commands inherit them, and a program resets handlers. The kernel spares pid 1 what would end it by default.
        kernel.end_ignored_signals()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
        socket.send_fds(self.link, [b'{"ready": true}'], [listener.fileno() for listener in listeners])
        for listener in listeners:
            listener.close()
        poll = select.poll()
        for fd in (self.link.fileno(), wakeup):
            poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self.link.fileno() in ready:
                self.receive()
            if wakeup in ready:
                os.read(wakeup, 4096)
                self.reap(os.WNOHANG)

    def receive(self) -> None:
        data, fds, flags, _ = socket.recv_fds(self.link, _MAX_MESSAGE, _MAX_FDS)
        if not data:
            os._exit(0)  # the owner is gone, and the kernel ends everything else here
        request = json.loads(data)
        try:
            if flags & socket.MSG_CTRUNC:  # the kernel drops what has no number here
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            if "kill" in request:
                self.kill(request["kill"], only_below=request["only_below"])
            elif "end_processes" in request:
                self.end_processes(request["end_processes"])
            else:
                self.start(request, fds)
        except OSError as failure:
            self.answer({"end": request.get("run", 0), "failed": failure.errno, "reason": str(failure)})
        finally:
            for fd in fds:
                os.close(fd)

    def start(self, request: dict[str, Any], fds: list[int]) -> None:
        """Start a command, or work on files. Raises OSError if there is no room for another process."""
        if request.get("body"):
            request |= json.loads(_read_all(fds[0]))
            os.close(fds.pop(0))
        pid = os.fork()
        if pid:
            self.running[request["run"]] = pid
            self.requests_by_pid[pid] = request["run"]
            return
        code = 1
        try:
            self.become_child(request, fds)
            code = 0
        except users.Refusal as refusal:
            self.answer({"refused": request["run"], "reason": str(refusal)[:_MAX_REASON]})
        except OSError as failure:
            reason = str(failure.filename or "")[:_MAX_REASON]
            self.answer({"refused": request["run"], "errno": failure.errno, "reason": reason})
        except Exception as failure:
            # The error number tells it from a refusal, which is the caller's mistake.
            reason = f"{type(failure).__name__}: {failure}"[:_MAX_REASON]
            self.answer({"refused": request["run"], "errno": errno.EIO, "reason": reason})
        finally:
            os._exit(code)

    def become_child(self, request: dict[str, Any], fds: list[int]) -> None:
        signal.set_wakeup_fd(-1)
        os.setsid()
        kernel.set_dumpable(True)  # for a moment: its files in /proc are its own then
        _be_killed_first()
        kernel.set_dumpable(False)
        fds = self.arrange(request, fds)
        os.umask(0o022)
        if "argvs" in request:
            self.execute(request)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # errors of files are answers
            signal.signal(number, signal.SIG_IGN)
        user = users.find(request.get("user", "0"), everybody=self.users)
        if request["do"] == "look":
            os.write(1, _look(request["facts"]).encode())
        else:
            (files.WORK | changes.WORK)[request["do"]](request, fds, user)

    def arrange(self, request: dict[str, Any], fds: list[int]) -> list[int]:
        """Give a command its standard streams, and close everything else; work on files keeps the link for answers."""
        if "argvs" not in request and request["do"] != "look":
            null = os.open("/dev/null", os.O_RDWR)
            for target in (0, 1, 2):
                os.dup2(null, target)
            return fds
        high = [os.dup2(fd, 500 + number, inheritable=True) for number, fd in enumerate(fds)]
        link = os.dup2(self.link.fileno(), 600, inheritable=False)
        self.link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, link)
        for target, fd in enumerate(high):
            os.dup2(fd, target, inheritable=True)
        os.closerange(len(high), 600)
        return []

    def execute(self, request: dict[str, Any]) -> NoReturn:
        user = users.find(request["user"], everybody=self.users)
        environment = {"HOME": user.home} | request["env"]
        user.become()
        try:
            os.chdir(request["cwd"])
        except OSError as failure:
            reason = f"the working directory {request['cwd']!r} of the command: {failure.strerror}"
            raise users.Refusal(reason) from None
        code, reason = _execute(request["argvs"], environment)
        self.answer({"unstarted": request["run"]})
        with contextlib.suppress(OSError):
            os.write(2, f"{request['argvs'][-1][0]}: {reason}\n".encode("utf-8", "replace"))
        os._exit(code)

    def kill(self, number: int, *, only_below: bool) -> None:
        """Kill a command, the processes of its session and those below it; or only what is below it."""
        top = self.running.get(number)
        if top is None:
            return
        for _ in range(_PASSES):
            family = _family(top) - ({top} if only_below else set())
            if not family:
                return
            # All stop before the first one ends: a shell would go on to its next command.
            for signal_number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in family:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal_number)
            self.reap(os.WNOHANG)
            time.sleep(0.0005)

    def end_processes(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        self.reap(0)
        self.answer({"end": number, "status": 0})

    def reap(self, flags: int) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, flags)
            except ChildProcessError:
                return
            if not pid:
                return
            number = self.requests_by_pid.pop(pid, None)
            if number is not None:
                del self.running[number]
                self.answer({"end": number, "status": status, "cpu_s": usage.ru_utime + usage.ru_stime})

    def answer(self, message: dict[str, Any]) -> None:
        try:
            self.link.send(json.dumps(message).encode())
        except OSError as failure:
            if failure.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise


def _look(facts: dict[str, Any]) -> str:
    """Run the canaries of a self-test, which define `look`; return its value as JSON, which the host judges."""
    namespace: dict[str, Any] = {}
    exec(facts["code"], namespace)
    return json.dumps(namespace["look"](*facts["arguments"]))


def _execute(argvs: list[list[str]], environment: dict[str, str]) -> tuple[int, str]:
    """Become the first program that there is. If none starts, return the exit code that a shell gives, and why.

    It is 127 if there is no program, and 126 if it cannot be executed.
    """
    for argv in argvs:
        try:
            os.execvpe(argv[0], argv, environment)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as failure:
            return 126, getattr(failure, "strerror", None) or str(failure)
    return 127, "not found"


def _family(top: int) -> set[int]:
    """Return a process, those below it, and those of its session, whoever is their parent now."""
    parents, members = {}, {top}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or entry == "1":
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:
                state, parent, _, session = stat.read().rpartition(b")")[2].split()[:4]
        except OSError:
            continue
        if state == b"Z":
            continue
        parents[int(entry)] = int(parent)
        if int(session) == top:
            members.add(int(entry))
    below = members
    while below:
        below = {pid for pid, parent in parents.items() if parent in below} - members
        members |= below
    return members & parents.keys()


def _make_standard_files(workdir: str) -> None:
    """Make what programs take for granted and small images lack; a link or a file that is there stays as it is.

    Args: workdir: the image's working directory, which it need not have.
    """
    with contextlib.suppress(OSError):
        os.makedirs(workdir, exist_ok=True)
    for path, mode in (("/tmp", 0o1777), ("/etc", 0o755)):
        with contextlib.suppress(OSError):
            os.mkdir(path)
            os.chmod(path, mode)
    with contextlib.suppress(OSError):
        fd = os.open("/etc/hosts", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(fd, _ETC_HOSTS.encode())
        os.close(fd)


def _read_all(fd: int) -> bytes:
    with os.fdopen(os.dup(fd), "rb") as file:
        return file.read()
