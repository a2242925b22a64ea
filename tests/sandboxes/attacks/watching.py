"""Attacks that watch what the host does with the files it shares, or use what no limit of memory or time counts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.sandboxes.attacks import PRELUDE, Attack

_CALL = """
import json, sys
print(json.dumps(f(json.loads(sys.argv[1]))))
"""


def gets_through(*names: str) -> Callable[[dict[str, Any], str], bool]:
    """Judge by the attempts that got through where nothing stops them: all of these must."""
    return lambda facts, code: set(names) <= set(_unconfined(facts, code))


def _unconfined(facts: dict[str, Any], code: str) -> list[str]:
    """Run `f` of an attack in a plain process of this machine, and return what got through."""
    result = subprocess.run(
        [sys.executable, "-c", PRELUDE + code + _CALL, json.dumps(facts)], capture_output=True, text=True, timeout=20
    )
    assert result.returncode == 0, result.stderr
    got: list[str] = json.loads(result.stdout)
    return got


def _attack(name: str, code: str, works: Callable[[dict[str, Any], str], bool]) -> Attack:
    return Attack(number=46, name=name, code=code, control=lambda facts: works(facts, code))


# The folder of the interpreter is the host's, and shared by every snippet. What opens a file there stands for the host.
_WATCH = """
import select, sys
FOLDER = os.path.dirname(os.__file__)
def events(watching):
    with open(os.__file__, "rb") as file: file.read(1)
    return bool(select.select([watching], [], [], 1)[0])
"""

ATTACKS = [
    _attack(
        "watch files that the host shares, by inotify",
        _WATCH
        + """
def f(host):
    def watch(start):
        fd = start()
        return fd >= 0 and libc.inotify_add_watch(fd, FOLDER.encode(), 0x21) >= 0 and events(fd)
    return through(init1=lambda: watch(lambda: libc.inotify_init1(0)), init=lambda: watch(libc.inotify_init))
""",
        gets_through("init1", "init"),
    ),
    _attack(
        "watch files that the host shares, by dnotify",
        _WATCH
        + """
def f(host):
    def watch(high):
        seen = []
        signal.signal(signal.SIGIO, lambda *_: seen.append(1))
        fd = os.open(FOLDER, os.O_RDONLY)
        command = ctypes.c_ulong(high << 32 | 1026)
        if libc.syscall(host["calls"]["fcntl"], fd, command, ctypes.c_ulong(0x80000021)) < 0: return False
        with open(os.__file__, "rb") as file: file.read(1)
        os.close(fd)
        return bool(seen)
    return through(notify=lambda: watch(0), high=lambda: watch(1))
""",
        gets_through("notify", "high"),
    ),
    _attack(
        "watch files that the host shares, by fanotify",
        _WATCH
        + """
def f(host):
    def watch(flags, report):
        fd = libc.syscall(host["calls"]["fanotify_init"], flags | report, 0)
        mark = host["calls"]["fanotify_mark"]
        return fd >= 0 and libc.syscall(mark, fd, 1, ctypes.c_ulong(0x8000021), -100, FOLDER.encode()) == 0
    return through(identity=lambda: watch(0, 0x200), content=lambda: watch(4, 0), mark=lambda:
                   libc.syscall(host["calls"]["fanotify_mark"], 0, 0x80, ctypes.c_ulong(0), -100, None))
""",
        gets_through("identity"),  # the others take root
    ),
    _attack(
        "leases, owners of signals and hints on shared files",
        """
import fcntl, struct
def f(host):
    shared = os.open(os.__file__, os.O_RDONLY)
    mine = os.open("/tmp/lease-of-an-attack", os.O_RDWR | os.O_CREAT)
    os.unlink("/tmp/lease-of-an-attack")
    reading, writing = os.pipe()
    plug = socket.socket()
    def command(fd, number, value): return lambda: fcntl.fcntl(fd, number, value) != -1
    def words(fd, number, value): return lambda: libc.ioctl(fd, ctypes.c_ulong(number), ctypes.byref(value))
    pid = ctypes.c_int(os.getpid())
    return through(
        lease=command(shared, 1024, 0), lease_own=command(mine, 1024, 1), owner=command(reading, 8, os.getpid()),
        owner_ex=command(reading, 15, struct.pack("ii", 1, os.getpid())), signal=command(reading, 10, 34),
        hint=command(mine, 1036, struct.pack("Q", 3)), ioctl_owner=words(plug.fileno(), 0x8901, pid),
        ioctl_group=words(plug.fileno(), 0x8902, pid),
    )
""",
        gets_through("lease_own", "owner", "owner_ex", "signal", "hint", "ioctl_owner", "ioctl_group"),
    ),
    _attack(
        "which pages of shared files the host has read",
        """
import mmap
def f(host):
    mine = os.open("/tmp/pages-of-an-attack", os.O_RDWR | os.O_CREAT)
    os.unlink("/tmp/pages-of-an-attack")
    os.write(mine, bytes(4096))
    pages = mmap.mmap(mine, 4096)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    part, counts = (ctypes.c_uint64 * 2)(0, 4096), (ctypes.c_uint64 * 5)()
    return through(mincore=lambda: libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(4096), bytes(1)),
                   cachestat=lambda: libc.syscall(451, mine, part, counts, 0))
""",
        gets_through("mincore"),  # cachestat is newer than some kernels
    ),
    _attack(
        "gain capabilities by running a program",
        """
def f(host):
    with open("/proc/self/status") as lines:
        sets = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    found = [name for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(sets[name], 16)]
    return found + ["NoNewPrivs"] * (sets["NoNewPrivs"] != "1")
""",
        gets_through("CapBnd", "NoNewPrivs"),
    ),
    _attack(
        "memory of the kernel: signals and timers that wait",
        """
LIMIT = 1024
def f(host):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
    def signals():
        for _ in range(LIMIT):
            if libc.sigqueue(os.getpid(), int(signal.SIGRTMIN), None) < 0: return False
    def timers():
        timer = ctypes.c_void_p()
        for _ in range(LIMIT):
            if libc.timer_create(1, None, ctypes.byref(timer)) < 0: return False
    return through(signals=signals, timers=timers)
""",
        gets_through("signals", "timers"),
    ),
    _attack(
        "a stack without an end",
        """
import resource
def f(host):
    endless = resource.RLIM_INFINITY
    return through(stack=lambda: resource.setrlimit(resource.RLIMIT_STACK, (endless, endless)),
                   gigabyte=lambda: resource.setrlimit(resource.RLIMIT_STACK, (2**30, 2**30)))
""",
        gets_through("gigabyte"),
    ),
    _attack(
        "priorities that the host gives its users",
        """
import resource
class Parameters(ctypes.Structure): _fields_ = [("priority", ctypes.c_int)]
def f(host):
    limits = [name for name in ("RTPRIO", "NICE", "MEMLOCK", "MSGQUEUE")
              if resource.getrlimit(getattr(resource, "RLIMIT_" + name))[1] > 0]
    return limits + through(
        round_robin=lambda: libc.sched_setscheduler(0, 2, ctypes.byref(Parameters(1))),
        deadline=lambda: libc.syscall(host["calls"]["sched_setattr"], 0, (ctypes.c_uint64 * 6)(
            48 | 6 << 32, 0, 0, 10**7, 10**8, 10**8), 0),
        nice=lambda: os.setpriority(os.PRIO_PROCESS, 0, -1),
    )
""",
        gets_through("MEMLOCK", "MSGQUEUE"),  # the rest takes root, or a host that allows it
    ),
]
