"""The contract of a sandbox: a place where untrusted code runs. Backends live in `sandboxes/`.

A result speaks of the *code* (it timed out, it crashed, it printed). A failure of the sandbox itself has the
status `SANDBOX_ERROR`, which is our fault and never becomes a reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class ExecStatus(StrEnum):
    OK = "ok"  # exit code 0 and, where a call was asked for, it returned
    NONZERO = "nonzero"  # ended with another exit code, an uncaught exception for example
    SIGNALED = "signaled"  # ended by a signal that no limit explains
    TIMEOUT = "timeout"  # wall-clock or CPU limit
    MEMORY = "memory"  # memory limit
    PIDS = "pids"  # process limit
    OUTPUT_LIMIT = "output_limit"  # killed for a flood of output
    SANDBOX_ERROR = "sandbox_error"  # our fault; says nothing about the code


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one execution may use. Bytes, seconds and counts."""

    wall_s: float = 5.0
    cpu_s: float = 5.0
    memory_bytes: int = 512 * 2**20
    processes: int = 32
    file_bytes: int = 16 * 2**20
    tmp_bytes: int = 32 * 2**20
    output_bytes: int = 64 * 2**10
    """Kept of stdout and of stderr each; the rest is read, counted and thrown away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Call `function(*args)` after the code ran, and hand its value back as plain JSON data."""

    function: str
    args: Sequence[Any] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """One execution in a fresh state.

    Example: ``ExecRequest(code="def f(x): return x + 1", call=Call(function="f", args=[2]))``
    """

    code: str
    setup: str = ""
    """Trusted code of the environment that runs first in the same namespace; its lines never show in tracebacks."""
    stdin: str = ""
    call: Call | None = None
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What happened. `value` is the JSON text of the called function's return value, decoded by nobody yet."""

    status: ExecStatus
    backend: str
    exit_code: int | None = None
    signal: int | None = None
    stdout: str = ""
    stderr: str = ""
    truncated_stdout: bool = False
    truncated_stderr: bool = False
    value: str | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    error: str = ""
    """For SANDBOX_ERROR: what broke."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend really enforces on this machine, found out by trying it at start-up."""

    backend: str
    pid_namespace: bool
    mount_namespace: bool
    network_namespace: bool
    ipc_namespace: bool
    seccomp: bool
    uid_drop: bool
    memory_limit: str
    """"cgroup_v2", "cgroup_v1", "rlimit" or "none"."""


class Sandbox(Protocol):
    """A place where untrusted code runs. Safe to use from many coroutines of one event loop at once."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def run(self, request: ExecRequest) -> ExecResult:
        """Run `request` in a fresh state. Never raises for anything that the code does."""
        ...

    async def close(self) -> None:
        """End every process and remove every file of this sandbox. Idempotent."""
        ...
