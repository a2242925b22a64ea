"""The contract of a sandbox: a place where untrusted code runs. Backends live in `sandboxes/`.

A result speaks of the *code* (it timed out, it crashed, it printed). A failure of the sandbox itself has the
status `SANDBOX_ERROR`, which is our fault and never becomes a reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, Protocol

MAX_FILES = 1000
"""Of one request, the folders that they lie in counted."""
_MAX_PATH_BYTES, _MAX_NAME_BYTES = 1024, 255
_PAGE_BYTES = 4096


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

    Raises:
        RequestFileError: `files` has a path that could lead out of the working directory, or is too large.
    """

    code: str
    setup: str = ""
    """Trusted code of the environment that runs first in the same namespace; its lines never show in tracebacks."""
    stdin: str = ""
    call: Call | None = None
    limits: Limits = field(default_factory=Limits)
    files: Mapping[str, bytes | str] = field(default_factory=dict, hash=False)
    """Contents by the path below the working directory; written before `setup` and `code` run, text as UTF-8.

    At most `file_bytes` each, `tmp_bytes` together, and MAX_FILES of them."""

    def __post_init__(self) -> None:
        if self.files:
            object.__setattr__(self, "files", _checked_files(self.files, self.limits))

    def contents(self) -> dict[str, bytes]:
        """Return the files as bytes."""
        return {path: data if isinstance(data, bytes) else _encoded(data) for path, data in self.files.items()}


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


class RequestFileError(ValueError):
    """A request names a file that cannot be written: the fault of the caller, not of the sandbox."""


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


def _checked_files(files: Mapping[str, bytes | str], limits: Limits) -> dict[str, bytes]:
    """Return the contents by their paths in normal form. Raises RequestFileError."""
    checked: dict[str, bytes] = {}
    folders: set[str] = set()
    for path, content in files.items():
        name = _normal_path(path)
        if name in checked:
            raise RequestFileError(f"files names {name!r} twice, the second time as {path!r}")
        if not isinstance(content, bytes | str):
            raise RequestFileError(f"the file {path!r} is of type {type(content).__name__}; it must be bytes or str")
        data = _encoded(content) if isinstance(content, str) else content
        if len(data) > limits.file_bytes:
            raise RequestFileError(f"the file {path!r} has {len(data)} bytes; file_bytes is {limits.file_bytes}")
        checked[name] = data
        folders |= {parent.as_posix() for parent in PurePosixPath(name).parents}
    both = sorted(checked.keys() & folders)
    if both:
        raise RequestFileError(f"{both[0]!r} is a file and, in the path of another one, a folder")
    if len(checked) + len(folders) - 1 > MAX_FILES:
        raise RequestFileError(
            f"there are {len(checked)} files and {len(folders) - 1} folders; both together may be {MAX_FILES}"
        )
    total = sum(-(-len(data) // _PAGE_BYTES) * _PAGE_BYTES for data in checked.values())
    if total > limits.tmp_bytes:
        raise RequestFileError(
            f"the files need {total} bytes in pages of {_PAGE_BYTES}; tmp_bytes is {limits.tmp_bytes}"
        )
    return checked


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _normal_path(path: str) -> str:
    if not isinstance(path, str):
        raise RequestFileError(f"the path {path!r} of a file is of type {type(path).__name__}; it must be str")
    parts = PurePosixPath(path).parts
    if not parts or parts[0].startswith("/") or ".." in parts or "\0" in path or path.endswith("/"):
        raise RequestFileError(f"{path!r} is no relative path of a file inside the working directory")
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        raise RequestFileError(f"{path!r} is no text that can be written as UTF-8") from None
    if max(sizes) > _MAX_NAME_BYTES or sum(sizes) + len(parts) > _MAX_PATH_BYTES:
        raise RequestFileError(
            f"a path may have {_MAX_PATH_BYTES} bytes, a name in it {_MAX_NAME_BYTES}; one begins with {path[:40]!r}"
        )
    return "/".join(parts)
