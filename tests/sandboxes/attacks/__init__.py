"""Attacks on a sandbox. Each is a snippet that reports what it got through, and what must come of it.

The numbers: 1 fork bombs, 2 memory, 3 filling /tmp, 4 sparse files, 5 host files, 6 environments and command lines, 7
network, 8 other socket families, 9 abstract sockets, 10 engine sockets and open descriptors, 11 signals, 12 tracing,
13 mounts, 14 namespaces, 15 io_uring, 16 kernel keys, 17 bpf, userfaultfd, perf, 18 modules and sysctl, 19 leaving
the root, 20 links in files that the host reads, 21 odd file names, 22 daemons, 23 ignored signals, 24 the held
interpreter lock, 25 sleep, 26 floods, 27 odd output, 29 early exits, 30 faked results, 31 stack walks, 32 objects
that equal everything, 33 replaced helpers, 35 start-up files, 36 changed modules, 37 shared memory, 38 crashes and
recursion, 39 core dumps, 40 artefacts that run when they are opened, 41 clocks, 42 limits and users, 43 CPU hogs, 45
patched sessions, 46 watching the host and limits outside the control group; 0 stands for an attack that was added to
the public ones.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forge_env.core.sandbox import ExecStatus, Limits

SHORT = Limits(wall_s=0.4, cpu_s=4.0, processes=16, memory_bytes=128 * 2**20)
"""For attacks that have to run into the wall-clock limit."""
LONG = Limits(wall_s=20.0, cpu_s=20.0, processes=16, memory_bytes=128 * 2**20)
LIMITS = {"short": SHORT, "long": LONG, "small files": replace(LONG, file_bytes=4 * 2**20, tmp_bytes=8 * 2**20)}
"""By their name in the files of attacks."""

# Trusted code that runs first. `through(name=attempt, ...)` returns the names of the attempts that got through: those
# that neither raised OSError nor answered with a negative number, as system calls do, or with False.
PRELUDE = """
import ctypes, errno, os, signal, socket, time
libc = ctypes.CDLL(None, use_errno=True)

def through(**attempts):
    found = []
    for name, attempt in attempts.items():
        try:
            result = attempt()
        except (OSError, ValueError, OverflowError):
            continue
        if result is not False and not (isinstance(result, int) and result < 0):
            found.append(name)
    return found

def reads(path):
    with open(path, "rb") as file:
        return bool(file.read(1))

def writes(path, data=b"0"):
    with open(path, "wb", buffering=0) as file:
        return file.write(data) > 0
"""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A snippet that must come to nothing.

    Where it defines `f(host)`, that is called with facts about the host (`facts` in test_attacks.py), and has to return
    what got through.
    """

    name: str
    number: int = 0
    code: str
    ends: Sequence[ExecStatus] = (ExecStatus.OK,)
    expected: Sequence[str] = ()
    """What `f` returns, when it returns."""
    at_most: Sequence[int] = ()
    """In place of it: the most that each number may be that `f` returns."""
    limits: Limits = LONG
    counted: bool = False
    """Only a control group stops it: skipped where the capabilities say there is none."""
    takes_container: bool = False
    """The kernel may end a whole container for it: the run is then a fault, and the next one gets a new container.
    Or it ends the helper of a place of the namespace sandbox as well, and the next run starts another one.
    """
    unconfined: Sequence[str] = ()
    """What gets through in a plain process of this machine."""
    control: Callable[[dict[str, Any]], bool] | None = None
    """Runs the attack where the wall that stops it is missing, given the facts; returns whether it got through."""

    @property
    def calls(self) -> bool:
        return "def f(host)" in self.code

    def harmless(self, got: Any) -> bool:
        """Judge what `f` returned."""
        if self.at_most:
            return all(number <= most for number, most in zip(got, self.at_most, strict=True))
        return bool(got == list(self.expected))


def attacks(name: str, before: str = "") -> list[Attack]:
    """Return the attacks in `name`.toml of this folder, with `before` at the beginning of the code of each."""
    made = []
    for row in table(name, "attacks"):
        ends = [ExecStatus[end] for end in row.pop("ends", ["OK"])]
        limits = LIMITS[row.pop("limits", "long")]
        made.append(Attack(**row | {"ends": ends, "limits": limits, "code": before + row["code"]}))
    return made


def table(name: str, of: str) -> list[dict[str, Any]]:
    """Return the tables `of` in `name`.toml of this folder."""
    rows: list[dict[str, Any]] = tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))[of]
    return rows


@dataclass(frozen=True, kw_only=True)
class Channel:
    """A message from one run to the next. The code defines `leave(host)`, whose value is not looked at, and
    `find(host)`, which returns plain data: other data after `leave` than before is a message.
    """

    name: str
    code: str
