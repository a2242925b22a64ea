"""Channels: what one run leaves so that the next run in the same place, told nothing, finds it.

The control of each is the same code in two processes that share what the sandbox must not let two runs share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from sandboxes.guest import guest_kernel as kernel
from tests.helpers.waiting import DEADLINE_S
from tests.sandboxes.attacks import PRELUDE, Attack, Channel

_ATTEMPTS = 20
"""Of a control of the page cache: any process of the machine may read the file meanwhile."""

_SHOWN = """
def shown(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
"""

CHANNELS = [
    Channel(
        name="a name that sockets in flight in a ring keep",
        code=r"""
def leave(host):
    named = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    named.bind("\0ring")
    left, right = socket.socketpair()
    socket.send_fds(left, [b"x"], [left.fileno(), right.fileno(), named.fileno()])

def find(host):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        return through(free=lambda: other.bind("\0ring"))
""",
    ),
    Channel(
        name="a port that a socket in flight in a ring keeps",
        code="""
def leave(host):
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bound.bind(("", 50505))
    left, right = socket.socketpair()
    socket.send_fds(left, [b"x"], [left.fileno(), right.fileno(), bound.fileno()])

def find(host):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        return through(free=lambda: other.bind(("", 50505)))
""",
    ),
    Channel(
        name="a lock of a file in flight in a ring",
        code="""
import fcntl
def leave(host):
    held = open("/bin/sh", "rb")
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    left, right = socket.socketpair()
    socket.send_fds(left, [b"x"], [left.fileno(), right.fileno(), held.fileno()])

def find(host):
    with open("/bin/sh", "rb") as held:
        return through(free=lambda: fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB))
""",
    ),
    Channel(
        name="descriptors in flight, of which a user may have so many",
        code="""
import resource
def leave(host):
    left, right = socket.socketpair()
    socket.send_fds(left, [b"x"], [left.fileno(), right.fileno()] * 100)

def find(host):
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    left, right = socket.socketpair()
    sent = 0
    try:
        while sent < 300:
            socket.send_fds(left, [b"x"], [0] * 10)
            sent += 10
    except OSError:
        pass
    return sent
""",
    ),
    Channel(
        name="a count of connections that found no way out",
        code=_SHOWN
        + """
def leave(host):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as lost:
        through(connects=lambda: [lost.connect_ex(("192.0.2.1", 53)) for _ in range(7)])

def find(host):
    return shown("/proc/self/net/snmp")
""",
    ),
    Channel(
        name="a flow label that lingers",
        code=_SHOWN
        + """
import struct
def leave(host):
    request = socket.inet_pton(socket.AF_INET6, "2001:db8::1") + struct.pack("!I", 0x5EC)
    request += struct.pack("=BBHHHI", 0, 255, 1, 0, 6, 0)  # make it, for any share, and keep it for 6 s
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as owner:
        owner.setsockopt(socket.IPPROTO_IPV6, 32, request)

def find(host):
    return len(shown("/proc/self/net/ip6_flowlabel").splitlines())
""",
    ),
]


def crosses(channel: Channel, facts: dict[str, Any]) -> bool:
    """Return whether the channel carries something between two processes of one user in one network namespace.

    The kernel collects what is in flight whenever any process of the machine closes a socket. So the process
    that finds is there before the other one leaves anything, and both are tried again until a deadline.
    """
    if os.geteuid() == 0:
        flags, user = kernel.NEWNET, 0x6E000000 + os.getpid()
    else:
        flags, user = kernel.NEWNET | kernel.NEWUSER, None

    def run(name: str) -> Process:
        def prepare() -> Callable[[], Any]:
            namespace: dict[str, Any] = {}
            exec(PRELUDE + channel.code, namespace)
            if user is not None:  # not before: it may not read what the code imports
                os.setresuid(user, user, user)
            return lambda: namespace[name](facts)

        return Process(prepare)

    def attempt() -> bool:
        kernel.unshare(flags)
        before = run("find").result()
        finds, leaves = run("find"), run("leave")
        leaves.result()
        return bool(finds.result() != before)

    deadline = time.monotonic() + DEADLINE_S
    while not (crossed := in_a_process(attempt)) and time.monotonic() < deadline:
        pass
    return bool(crossed)


class Process:
    """A fork that calls `prepare()` at once, and the action that this returns when its result is asked for."""

    def __init__(self, prepare: Callable[[], Callable[[], Any]]) -> None:
        waiting, self._go = os.pipe()
        self._value, answer = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            try:
                action = prepare()
                os.read(waiting, 1)
                os.write(answer, json.dumps(action()).encode())
            finally:
                os._exit(0)
        os.close(waiting)
        os.close(answer)

    def result(self) -> Any:
        """Return the plain value of the action, when the process has ended. Raises ValueError if it has raised."""
        with open(self._value, "rb") as pipe, open(self._go, "wb") as go:
            go.write(b"x")
            go.flush()
            value = pipe.read()
        os.waitpid(self._pid, 0)
        return json.loads(value)


def in_a_process(action: Callable[[], Any]) -> Any:
    """Return the plain value of `action()`, which is called in a fork. Raises ValueError if it raises."""
    return Process(lambda: action).result()


def _page_cache_tells(facts: dict[str, Any]) -> bool:
    """What one process puts out of memory, another sees to be out."""
    for path in (f"{facts['repository']}/LICENSE", os.__file__):
        for _ in range(_ATTEMPTS):
            seen = []
            with open(path, "rb", buffering=0) as file:
                for leave in (lambda: file.read(1), lambda: os.posix_fadvise(file.fileno(), 0, 0, 4)):
                    in_a_process(lambda: leave() and None)  # noqa: B023
                    seen.append(_is_cached(file.fileno()))
            if seen == [True, False]:
                return True
    return False


def _is_cached(descriptor: int) -> bool:
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False


ATTACKS = [
    Attack(
        name="what tells which pages of a file are in memory, or puts them out",
        number=0,
        code="""
import mmap
def f(host):
    file = open(os.__file__, "rb", buffering=0)
    page = mmap.mmap(file.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ)
    anywhere = libc.mmap
    anywhere.restype = ctypes.c_void_p
    mapped = ctypes.c_void_p(anywhere(None, 4096, 1, 2, file.fileno(), 0))
    numbers = (ctypes.c_uint64 * 5)(0, 4096, 0, 0, 0)
    return through(wait_not=lambda: os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT),
                   write=lambda: os.pwritev(os.open("/tmp/x", os.O_CREAT | os.O_WRONLY), [b"x"], 0, os.RWF_DSYNC),
                   in_core=lambda: libc.mincore(mapped, 4096, ctypes.create_string_buffer(1)),
                   state=lambda: libc.syscall(451, file.fileno(), numbers, ctypes.byref(numbers, 8), 0),
                   drop=lambda: os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED),
                   page_out=lambda: libc.madvise(mapped, 4096, 21),
                   reading=lambda: os.preadv(file.fileno(), [bytearray(1)], 0))
""",
        harmless=lambda got: got == ["reading"],
        control=_page_cache_tells,
    )
]
