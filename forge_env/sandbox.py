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


DEFAULT_LIMITS = Limits()


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
    state_lost: bool = False
    """In a session: what earlier cells built is gone, because this cell ended the interpreter or found it ended."""
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
    """"cgroup_v2" and "cgroup_v1" limit a snippet as a whole, "rlimit" each of its processes; "none"."""
    process_limit: str = "rlimit"
    """As `memory_limit`."""
    cpu_share: bool = False
    """Whether a slot gets at most one CPU however many processes it has."""
    capabilities_dropped: bool = False
    """Whether a snippet has no capability of the kernel and can gain none, by running a program for example."""
    host_watch_denied: bool = False
    """Whether it is refused inotify, dnotify, fanotify and leases, which tell what others do with shared files."""
    limits: tuple[str, ...] = ()
    """Resource limits of each process that it cannot raise, named as RLIMIT_STACK is: "stack"."""
    missing: tuple[str, ...] = ()
    """What this machine could not give, each with its remedy."""


class SessionFileError(ValueError):
    """A session cannot take or give this file: the fault of the caller or of the code, not of the sandbox."""


class Session(Protocol):
    """An interpreter that keeps its variables, imports and files (in its own directory) from cell to cell.

    Cells can change their own interpreter and so forge what later cells say. That is fine for the output of a tool,
    but take no verdict from a session: grade in a fresh `Sandbox.run`.

    A cell that passes a limit or otherwise ends the interpreter takes variables, files and background processes with
    it; the next request starts afresh, with the set-up run again. `ExecResult.state_lost` tells. Cancelling a request
    ends the interpreter, too. Requests of one session follow each other.
    """

    async def run(self, code: str, *, stdin: str = "") -> ExecResult:
        """Run a cell. Never raises for anything that the code does; an uncaught exception or `exit()` keeps the state.

        Raises:
            SandboxError: the session is closed.
        """
        ...

    async def put(self, path: str, data: bytes) -> None:
        """Write a file, and the folders it needs, below the session's directory.

        Raises:
            SessionFileError: the path leads outside, or `data` is larger than `Limits.file_bytes` or does not fit.
            SandboxError: the sandbox failed, or the session is closed.
        """
        ...

    async def get(self, path: str) -> bytes:
        """Read a regular file below the session's directory. Raises as `put` does."""
        ...

    async def reset(self) -> None:
        """Start afresh: no variables, no files, no processes, and the set-up run again. Raises SandboxError."""
        ...

    async def close(self) -> None:
        """End every process of the session and free its files. Idempotent; a cell in flight ends SANDBOX_ERROR."""
        ...


class Sandbox(Protocol):
    """A place where untrusted code runs. Safe to use from many coroutines of one event loop at once."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def run(self, request: ExecRequest | str) -> ExecResult:
        """Run `request`, or just code, in a fresh state. Never raises for anything that the code does."""
        ...

    async def open_session(self, *, setup: str = "", limits: Limits = DEFAULT_LIMITS, echo: bool = False) -> Session:
        """Open a session; close it in a `finally`.

        Args:
            setup: trusted code of the environment that runs first; neither its output nor its lines show.
            limits: wall-clock, CPU and output limits hold per cell, `processes` and `tmp_bytes` for the whole session,
                `memory_bytes` as the capabilities of the backend say.
            echo: print the value of a cell's last expression, as an interactive interpreter does.

        Raises:
            SandboxError: the set-up raised, or no more sessions can be opened.
        """
        ...

    async def close(self) -> None:
        """End every process and remove every file of this sandbox and its sessions. Idempotent."""
        ...
