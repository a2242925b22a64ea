"""The zygote: a warm interpreter inside an outer ring of namespaces; it forks one confined process per snippet.

Run by path (`python -P -s -S guest.py <control socket>`), with nothing but the standard library importable.

    owner -> starter -> zygote (pid 1 of the outer ring) -> init (pid 1) and snippet (pid 2) of a fresh pid namespace

The zygote is the parent of init and snippet, so it learns from the kernel, not from the code, how a snippet ended.
Killing init ends every process of its pid namespace, and the death of the zygote ends all processes. Init is needed
because a pid 1 is immune to most signals, so a snippet as pid 1 would behave differently. A session is a snippet that
stays alive and serves cells.

If the host has control groups, every slot has a helper: a fork of the zygote in the slot's group that starts the slot's
snippets, so they are created in their group. The host sends it orders by a socket of its own. (Moving a process into a
group makes the kernel wait for every CPU, and every fork on the machine waits with it.) A session is moved, once.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import base64
import errno
import fcntl
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any, NoReturn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import guest_init as init_program  # type: ignore[import-not-found]
import guest_kernel as kernel  # type: ignore[import-not-found]
import guest_network as network  # type: ignore[import-not-found]
import guest_session as session  # type: ignore[import-not-found]
import guest_snippet as snippet  # type: ignore[import-not-found]

del sys.path[0]

_MAX_MESSAGE, _MAX_FDS = 64 * 2**10, 8  # a session has four descriptors, and one per control group
_STREAMS = 4  # descriptors of every run: its body, its report, and its output and errors
_IDS = 1024  # one per slot and session
_COLLECT_S, _POLL_MS = 0.25, 1
"""Seconds that the kernel may take to collect the sockets of a run, and the polling interval."""
_MAX_REASON = 1000
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    kernel.die_with_parent()
    config = json.loads(control.recv(_MAX_MESSAGE))
    if os.getppid() != config["owner"]:
        os._exit(1)  # the owner died before die_with_parent took effect
    try:
        _enter_outer_ring(control, config)
    except OSError as failure:
        _send(control, {"failed": failure.strerror, "errno": failure.errno})


def _enter_outer_ring(control: socket.socket, config: dict[str, Any]) -> None:
    is_root, uid, gid = config["privileged"], os.geteuid(), os.getegid()
    first_id = _first_id()
    flags = kernel.NEWNS | kernel.NEWPID | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWNET
    kernel.unshare(flags if is_root else flags | kernel.NEWUSER)
    if not is_root:
        kernel.map_ids(0, uid, gid)
    lifeline, held_by_starter = os.pipe()
    child = os.fork()
    if child:
        control.close()
        os.close(lifeline)
        kernel.end_as(child)  # which returns after every process inside has ended
    os.close(held_by_starter)
    kernel.die_with_parent()
    kernel.enter_minimal_root(config.get("packages", ()), {init_program.PATH: init_program.executable()})
    socket.sethostname("sandbox")
    Zygote(control, lifeline, config, first_id if is_root else None).serve()


def _first_id() -> int:
    """Return the first uid of a range that no other live owner uses: process limits count per user."""
    # systemd, container managers and the defaults of /etc/subuid do not use this range.
    return int(kernel.unused_ids(0x70000000 + (os.getpid() % 2**18) * _IDS, _IDS))


@dataclass(slots=True)
class RunningSnippet:
    """A snippet or session between its start and the report of its end."""

    number: int
    slot: int
    init: int
    """Process id; 0 after the wait for it."""
    snippet: int = 0
    end: dict[str, Any] | None = None
    collect_until: float = 0.0
    """Time at which its network namespace is discarded."""


class Zygote:
    def __init__(self, control: socket.socket, lifeline: int, config: dict[str, Any], first_id: int | None) -> None:
        self._control = control
        self._lifeline = lifeline
        self._first_id = first_id  # None for an ordinary user: every snippet has its own user namespace
        if first_id is not None:
            kernel.empty_bounding_set()  # for all snippets; this process keeps what it holds
        self._runs: dict[int, RunningSnippet] = {}
        self._by_pid: dict[int, RunningSnippet] = {}
        self._leaving: list[RunningSnippet] = []  # all processes have ended; leftovers are not checked yet
        self._networks: dict[int, network.Network] = {}
        self._own_network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._own_pid_namespace = os.pidfd_open(os.getpid())
        self._proc_options = self._try_proc_options()
        self._lockdown = kernel.Lockdown(base64.b64decode(config["filter"]))
        if config.get("packages"):
            sys.path.append(kernel.PACKAGES)
            _ENVIRONMENT["PYTHONPATH"] = kernel.PACKAGES  # for an interpreter that a snippet starts
        self._after_fork = snippet.take_fork_hooks()
        for name in config["preimport"]:
            _preimport(name, control)

    def serve(self) -> NoReturn:
        self._has_threads = snippet.has_threads()  # of the preimported packages; nothing here starts one
        os.environ.clear()
        os.environ.update(_ENVIRONMENT)
        sys.argv = [""]
        kernel.allow_many_open_files()
        snippet.add_site_builtins()
        snippet.open_standard_streams()
        gc.disable()
        gc.collect()
        gc.freeze()
        _send(self._control, {"ready": True})
        self._loop()

    def _loop(self) -> NoReturn:
        wakeup, wake_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
        poll = select.poll()
        for fd in (self._control.fileno(), self._lifeline, wakeup):
            poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(_POLL_MS if self._leaving else None)}
            if self._lifeline in ready:
                os._exit(0)
            if wakeup in ready:
                os.read(wakeup, 4096)
                self._reap()
            if self._leaving:
                self._report_ends()
            if self._control.fileno() in ready:
                self._receive()

    @staticmethod
    def _try_proc_options() -> str | None:
        """Return the mount options that hide everything but processes in /proc, if the kernel has them (5.8)."""
        child = os.fork()
        if not child:
            try:
                kernel.unshare(kernel.NEWNS)
                kernel.mount_proc("subset=pid")
            except BaseException:
                os._exit(1)
            os._exit(0)
        return None if os.waitpid(child, 0)[1] else "subset=pid"

    def _receive(self) -> None:
        data, fds, flags, _ = socket.recv_fds(self._control, _MAX_MESSAGE, _MAX_FDS)
        if not data:
            os._exit(0)  # the owner closed the socket, or died
        message = json.loads(data)
        try:
            if flags & socket.MSG_CTRUNC:  # the kernel drops what has no number here
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            if "kill" in message:
                run = self._runs.get(message["kill"])
                if run is not None and run.init:
                    os.kill(run.init, signal.SIGKILL)
            elif "helper" in message:
                self._start_helper(fds)
            else:
                self._start(message, fds)
        except OSError as failure:
            _send(self._control, {"run": message.get("run", 0), "failed": failure.strerror})
        finally:
            for fd in fds:
                os.close(fd)

    def _start_helper(self, fds: list[int]) -> None:
        """Start the helper of a slot, with its control socket and the files of the control groups that it joins."""
        if os.fork():
            return
        try:
            kernel.die_with_parent()
            _join_groups(fds[1:])
            for other_network in self._networks.values():
                other_network.close()
            self._control.close()
            self._control = socket.socket(fileno=fds[0])
            self._networks, self._runs, self._by_pid, self._leaving = {}, {}, {}, []
            self._loop()
        finally:
            os._exit(1)  # the host sees the end of its control socket

    def _start(self, message: dict[str, Any], fds: list[int]) -> None:
        if len(fds) < _STREAMS + message.get("groups", 0):
            raise OSError(errno.EBADF, "its message lacks descriptors")
        slot_network = self._network(message["slot"])
        init_is_bare, held_by_init = os.pipe()
        try:
            try:
                kernel.unshare(kernel.NEWPID)  # the next processes are in it, and the first of them is its pid 1
                os.set_inheritable(held_by_init, True)
                init = init_program.start()
            finally:
                os.close(held_by_init)
            run = RunningSnippet(message["run"], message["slot"], init)
            self._by_pid[init] = run
            try:
                run.snippet = os.fork()
            except OSError:
                os.kill(init, signal.SIGKILL)
                raise
            if not run.snippet:
                os.read(init_is_bare, 1)  # ends when init has closed the zygote's descriptors: none shows in its /proc
                self._run_snippet(message, fds, slot_network.descriptor)
        finally:
            os.close(init_is_bare)
            kernel.setns(self._own_pid_namespace, kernel.NEWPID)
        self._by_pid[run.snippet] = run
        self._runs[run.number] = run

    def _network(self, slot: int) -> network.Network:
        """Return the empty network namespace of `slot`. It is reused, since creating one is the slowest step.

        Runs of a slot are sequential, and `_report_ends` checks that the last one has left nothing in it.
        """
        if slot not in self._networks:
            self._networks[slot] = network.Network(self._own_network)
        return self._networks[slot]

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            run = self._by_pid.pop(pid, None)
            if run is not None:  # else a helper has ended
                self._on_exit(run, pid, status, usage)

    def _on_exit(self, run: RunningSnippet, pid: int, status: int, usage: resource.struct_rusage) -> None:
        if pid == run.init:
            run.init = 0
        else:
            cpu_s, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
            run.end = {"run": run.number, "status": status, "cpu_s": cpu_s, "peak_memory_bytes": peak}
            if run.init:
                os.kill(run.init, signal.SIGKILL)
        # The wait for init returns only after every process of its namespace has ended.
        if run.end and not run.init:
            del self._runs[run.number]
            run.collect_until = time.monotonic() + _COLLECT_S
            self._leaving.append(run)

    def _report_ends(self) -> None:
        """Report ended runs to the host once they have left nothing behind; only then their slot is reused."""
        for run in tuple(self._leaving):
            slot_network = self._networks[run.slot]
            holds_sockets = slot_network.holds_sockets()
            if holds_sockets and time.monotonic() < run.collect_until:
                network.collect_sockets()
                continue
            was_used = holds_sockets or slot_network.was_touched()
            if was_used:
                slot_network.close()
                del self._networks[run.slot]
            self._leaving.remove(run)
            _send(self._control, (run.end or {}) | {"spent": was_used})

    def _run_snippet(self, message: dict[str, Any], fds: list[int], network: int) -> NoReturn:
        try:
            self._runs, self._by_pid, self._leaving = {}, {}, []  # the snippet must not see other runs
            # The functions of the module `signal` make enumerations of their results, which is slower.
            _signal.set_wakeup_fd(-1)
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
            self._after_fork(self._has_threads)
            os.setsid()  # an ordinary user's zygote has the same user: kill(0, 9) must not reach it
            if "groups" in message:
                _join_groups(fds[-message["groups"] :])
                del fds[-message["groups"] :]
            kernel.setns(network, kernel.NEWNET)
            arrange_fds(fds)
            self._confine(message["limits"], message["slot"])
            session.serve() if "session" in message else snippet.run()
        except BaseException as failure:
            # After untrusted code has started, the host ignores this report.
            snippet.report_broken_setup(f"{type(failure).__name__}: {failure}")
        finally:
            os._exit(1)  # never return into the zygote's loop

    def _confine(self, limits: dict[str, int], slot: int) -> None:
        kernel.unshare(kernel.NEWNS | kernel.NEWIPC | kernel.NEWUTS)
        kernel.mount_private_tmp(limits["tmp_bytes"])
        kernel.mount_proc(self._proc_options)
        if limits.get("memory_is_counted"):
            kernel.be_killed_first()
        os.chdir("/tmp")
        if self._first_id is None:
            kernel.unshare(kernel.NEWUSER)
            kernel.map_ids(kernel.INSIDE_ID, 0, 0)
            kernel.limit_resources(limits)
        else:
            kernel.limit_resources(limits)
            user = self._first_id + slot
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        self._lockdown.apply(bounded=self._first_id is not None)


def _preimport(name: str, control: socket.socket) -> None:
    """Import a module for every snippet. The host learns its name first, since the import may end this process."""
    _send(control, {"importing": name})
    try:
        importlib.import_module(name)
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"[:_MAX_REASON]
        _send(control, {"failed": reason, "missing": error.name if isinstance(error, ModuleNotFoundError) else None})
        os._exit(1)


def _join_groups(fds: list[int]) -> None:
    """Move this process into the control groups of the given cgroup.procs files, and close them."""
    for fd in fds:
        os.write(fd, b"0")
        os.close(fd)


def arrange_fds(fds: list[int]) -> None:
    """Move the request's descriptors to their fixed numbers, and close all others."""
    body, report, stdout, stderr, *stdin = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in fds]
    # The zygote's own standard input is /dev/null.
    for target, fd in zip((1, 2, 0), (stdout, stderr, *stdin), strict=False):
        os.dup2(fd, target)
    os.dup2(report, snippet.REPORT_FD, inheritable=False)
    os.dup2(body, snippet.BODY_FD, inheritable=False)
    os.closerange(snippet.BODY_FD + 1, 2**16)


def _send(control: socket.socket, message: dict[str, Any]) -> None:
    try:
        kernel.send(control, message)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)


if __name__ == "__main__":
    main()
