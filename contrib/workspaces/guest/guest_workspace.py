"""The server of workspaces: it starts one on request, as a fork of itself in namespaces of its own.

Run by path (`python -P -s -S guest_workspace.py <control socket> <folder of guest_kernel>`), with nothing but the
standard library importable.

    owner -> server -> pid 1 of each workspace -> its commands

The server stays outside of all workspaces, so that it can keep what they wrote; nothing of theirs reaches it. It ends
with the owner, however that ends: it kills every workspace, waits for all of them, and removes their control groups.
What fails for one workspace ends that one only.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any, NoReturn

sys.path.insert(0, sys.argv[2])
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import guest_kernel as kernel  # type: ignore[import-not-found]
import guest_mounts as mounts  # type: ignore[import-not-found]
import guest_workspace_init as init  # type: ignore[import-not-found]
import guest_workspace_root as root  # type: ignore[import-not-found]

del sys.path[:2]

_MAX_MESSAGE, _MAX_FDS = 256 * 2**10, 8
_REMOVE_S = 5.0
_NO_FILES = "the server of the workspaces has too many open files (ulimit -n)"
_FIRST_RANGE, _RANGES = 0x20000000, 2**14
"""User ids of workspaces: a range of 65,536 for each. systemd and container managers stay below."""


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    kernel.die_with_parent(signal.SIGTERM)
    config = json.loads(control.recv(_MAX_MESSAGE))
    if os.getppid() != config["owner"]:
        os._exit(1)  # the owner died before die_with_parent took effect
    try:
        if not config["privileged"]:
            _become_root_of_own_namespaces(control)
        server = Server(control, config)
    except OSError as failure:
        _send(control, {"failed": str(failure), "errno": failure.errno})
        os._exit(1)
    server.serve()


def _become_root_of_own_namespaces(control: socket.socket) -> None:
    """Go on as a child that is root of a user namespace. This process ends with it, and it with this process.

    The child needs a pid namespace of its own to return to after it has made one for a workspace.
    """
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEWUSER | kernel.NEWPID)
    kernel.map_ids(0, uid, gid)
    kernel.die_with_parent(signal.SIGTERM)
    child = os.fork()
    if child:
        control.close()
        kernel.end_as(child)
    kernel.die_with_parent(signal.SIGTERM)


@dataclass(slots=True)
class Box:
    """A running workspace."""

    pid: int
    number: int
    """From the owner."""
    upper: int = -1
    """Descriptor of a detached copy of the file system that holds what it writes."""
    keep: int = 0
    """Number of the layer that its files become at its end; 0 for none."""


class Server:
    """Raises OSError if the kernel refuses the namespaces of the server itself."""

    def __init__(self, control: socket.socket, config: dict[str, Any]) -> None:
        self.control = control
        self.boxes: dict[int, Box] = {}  # by process id
        self.layers: set[int] = set()
        self.families: dict[int, tuple[int, int]] = {}
        """Number from the owner -> user namespace and its first user id outside."""
        self.stock: list[tuple[int, int]] = []
        """Further ones, made ahead of demand."""
        self.is_privileged: bool = config["privileged"]
        self.group_parents = [(os.open(parent, os.O_PATH | os.O_DIRECTORY), name) for parent, name in config["groups"]]
        kernel.unshare(kernel.NEWNS)
        os.umask(0o022)
        mounts.make_private()
        root.prepare(is_privileged=self.is_privileged)
        self.own_pid_namespace = os.pidfd_open(os.getpid())
        self.lockdowns = {
            in_group: kernel.Lockdown(base64.b64decode(config["filters"][name]))
            for in_group, name in ((False, "strict"), (True, "counted"))
        }
        self.inbox, self.from_boxes = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.inbox.setblocking(False)
        self.ranges = os.getpid() % _RANGES

    def serve(self) -> NoReturn:
        os.environ.clear()
        kernel.allow_many_open_files()
        sys.argv = [""]
        wakeup, wake_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # they only wake the loop: a handler could interrupt `end` in `end`
        signal.set_wakeup_fd(wake_fd, warn_on_full_buffer=False)
        gc.disable()
        gc.collect()
        gc.freeze()
        _send(self.control, {"ready": True})
        try:
            self.loop(wakeup)
        except Exception as failure:
            _send(self.control, {"died": f"{type(failure).__name__}: {failure}"})
            os._exit(1)  # the owner goes on, and removes the control groups; the kernel ends the workspaces

    def loop(self, wakeup: int) -> NoReturn:
        poll = select.poll()
        for fd in (self.control.fileno(), self.inbox.fileno(), wakeup):
            poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self.inbox.fileno() in ready:
                self.receive_uppers()
            if wakeup in ready:
                numbers = os.read(wakeup, 4096)
                self.reap()
                if signal.SIGTERM in numbers:
                    self.end()
            if self.control.fileno() in ready:
                self.receive()

    def receive(self) -> None:
        try:
            data, fds, flags, _ = socket.recv_fds(self.control, _MAX_MESSAGE, _MAX_FDS)
        except ConnectionResetError:  # the owner ended before it had read every message
            data, fds, flags = b"", [], 0
        except OSError:  # the kernel has no memory: the message stays
            return
        if not data:
            self.end()
        message = json.loads(data)
        try:
            if flags & socket.MSG_CTRUNC:
                raise OSError(errno.EMFILE, _NO_FILES)
            if "open" in message:
                self.open(message, fds)
            elif "kill" in message:
                self.kill(message["kill"], message.get("keep", 0))
            elif "drop" in message:
                self.drop_layer(message["drop"])
            elif "forget" in message:
                self.forget(message["forget"])
            elif "ping" in message:
                _send(self.control, {"pong": message["ping"]})
        except Exception as failure:
            _send(self.control, {"ended": message.get("open", 0), "failed": str(failure)})
        finally:
            for fd in fds:
                os.close(fd)

    def open(self, order: dict[str, Any], fds: list[int]) -> None:
        """Start a workspace. Its order comes later: its socket, and the files for joining its control groups."""
        user_namespace, first_id = self.family(order["family"]) if self.is_privileged else (None, 0)
        kernel.unshare(kernel.NEWPID)
        try:
            pid = os.fork()
            if not pid:
                try:
                    self.become_box(order["open"], fds, user_namespace, first_id)
                finally:
                    os._exit(1)
        finally:
            kernel.setns(self.own_pid_namespace, kernel.NEWPID)
        self.boxes[pid] = Box(pid, order["open"])
        if self.is_privileged and not self.stock:
            with contextlib.suppress(OSError):  # the next workspace meets it, too, and reports it
                self.stock.append(self.new_family())

    def become_box(self, number: int, fds: list[int], user_namespace: int | None, first_id: int) -> None:
        """Prepare a workspace, wait for its order, and serve it as its pid 1.

        Joining control groups takes the kernel from microseconds to many milliseconds: it is done ahead of the order.
        """
        link = socket.socket(fileno=fds[0])
        listeners: list[socket.socket] = []
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            kernel.die_with_parent()
            # Not only in the end: while it waits, it must not hold files of other workspaces.
            _close_all_but({link.fileno(), *fds[1:], self.from_boxes.fileno(), user_namespace or 0})
            for fd in fds[1:]:
                os.write(fd, b"0")
            root.leave_namespaces()
            order = link.recv(_MAX_MESSAGE)
            if not order:
                os._exit(0)
            what = json.loads(order)
            listeners = root.enter(what, user_namespace, first_id, functools.partial(self.send_upper, number))
            init.enter_users(user_namespace)
            init.confine(what, self.lockdowns[what["counted"]])
            _close_all_but({link.fileno(), *(listener.fileno() for listener in listeners)})
            init.Init(link, what).serve(listeners)
        except OSError as failure:
            _send(link, {"failed": str(failure), "errno": failure.errno})
        except Exception as failure:
            _send(link, {"failed": f"{type(failure).__name__}: {failure}"})

    def send_upper(self, number: int, upper: int) -> None:
        socket.send_fds(self.from_boxes, [str(number).encode()], [upper])

    def receive_uppers(self) -> None:
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.inbox, 64, 1)
            except BlockingIOError:
                return
            for box in self.boxes.values():
                if fds and box.number == int(data):  # the kernel drops one for which no number is left
                    box.upper = fds.pop()
            for fd in fds:
                os.close(fd)

    def kill(self, number: int, keep: int) -> None:
        for box in self.boxes.values():
            if box.number == number:
                box.keep = keep
                os.kill(box.pid, signal.SIGKILL)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            box = self.boxes.pop(pid, None)
            if box is not None:
                _send(self.control, {"ended": box.number, "status": status} | self.keep_layer(box))

    def keep_layer(self, box: Box) -> dict[str, Any]:
        """Mount what a workspace has written as a layer, if asked; else free it."""
        if box.upper < 0:
            return {"failed": _NO_FILES} if box.keep else {}
        if not box.keep:
            os.close(box.upper)
            return {}
        try:
            root.add_layer(box.keep, box.upper)
        except Exception as failure:
            return {"failed": str(failure)}
        self.layers.add(box.keep)
        return {"kept": box.keep}

    def drop_layer(self, layer: int) -> None:
        """Free a layer; workspaces that were opened from it go on."""
        if layer in self.layers:
            self.layers.discard(layer)
            root.remove_layer(layer)

    def family(self, number: int) -> tuple[int, int]:
        """Return a user namespace and its first id outside. Workspaces of one family share files, so their owners."""
        if number not in self.families:
            self.families[number] = self.stock.pop() if self.stock else self.new_family()
        return self.families[number]

    def new_family(self) -> tuple[int, int]:
        self.ranges = (self.ranges + 1) % _RANGES
        first_id = _FIRST_RANGE + self.ranges * init.IDS
        return _user_namespace(first_id), first_id

    def forget(self, family: int) -> None:
        """Free the user namespace of a family that has no workspace and no layer left."""
        user_namespace, _ = self.families.pop(family, (-1, 0))
        if user_namespace >= 0:
            os.close(user_namespace)

    def end(self) -> NoReturn:
        """Kill every workspace, wait for them, and remove the control groups."""
        for pid in self.boxes:
            os.kill(pid, signal.SIGKILL)
        for pid in self.boxes:
            os.waitpid(pid, 0)
        for parent, name in self.group_parents:
            _remove_group(parent, name)
        os._exit(0)


def _user_namespace(first_id: int) -> int:
    """Return the descriptor of a new user namespace, in which IDS ids from 0 are those from `first_id` outside."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = os.fork()
        if not pid:
            try:
                ours.close()
                kernel.unshare(kernel.NEWUSER)
                theirs.send(b"x")
                theirs.recv(1)  # until the parent is done
            finally:
                os._exit(0)
        try:
            theirs.close()
            if not ours.recv(1):
                raise OSError(errno.ENOSPC, "no user namespace (sysctl user.max_user_namespaces)")
            for name in ("uid_map", "gid_map"):
                with open(f"/proc/{pid}/{name}", "w") as file:
                    file.write(f"0 {first_id} {init.IDS}")
            return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            ours.close()
            os.waitpid(pid, 0)


def _remove_group(parent: int, name: str) -> None:
    """Remove a control group and the groups below it. It can be busy for a while after its last process has ended."""
    deadline = time.monotonic() + _REMOVE_S
    while not _is_removed(parent, name) and time.monotonic() < deadline:
        time.sleep(0.005)


def _is_removed(parent: int, name: str) -> bool:
    try:
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=parent)
    except OSError:
        return True  # by the owner
    try:
        for below in [entry.name for entry in os.scandir(folder) if entry.is_dir()]:
            with contextlib.suppress(OSError):
                os.rmdir(below, dir_fd=folder)
        os.rmdir(name, dir_fd=parent)
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


def _close_all_but(exceptions: set[int]) -> None:
    first = 3
    for fd in sorted(fd for fd in exceptions if fd >= first):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, 2**20)


def _send(link: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the end of the owner shows in the next message
        kernel.send(link, message)


if __name__ == "__main__":
    main()
