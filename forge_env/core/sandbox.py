"""The contract of a sandbox, which runs untrusted code. The backends are in `sandboxes/`.

A result describes the *code*: it timed out, it crashed, it printed. A failure of the sandbox itself has the status
`SANDBOX_ERROR`, which is not a fault of the code and never becomes a reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, Protocol

MAX_FILES = 1000
"""Maximum number of files of one request, folders included."""
_MAX_PATH_BYTES, _MAX_NAME_BYTES = 1024, 255
_PAGE_BYTES = 4096


class ExecStatus(StrEnum):
    OK = "ok"  # exit code 0; a requested call returned
    NONZERO = "nonzero"  # another exit code, after an uncaught exception for example
    SIGNALED = "signaled"  # ended by a signal that is not due to a limit
    TIMEOUT = "timeout"  # wall-clock or CPU limit
    MEMORY = "memory"  # memory limit
    PIDS = "pids"  # process limit
    OUTPUT_LIMIT = "output_limit"  # killed for too much output
    SANDBOX_ERROR = "sandbox_error"  # the sandbox failed; says nothing about the code


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one execution, in bytes, seconds and counts."""

    wall_s: float = 5.0
    cpu_s: float = 5.0
    memory_bytes: int = 512 * 2**20
    processes: int = 32
    file_bytes: int = 16 * 2**20
    tmp_bytes: int = 32 * 2**20
    output_bytes: int = 64 * 2**10
    """Bytes kept of stdout and of stderr each; the rest is read, counted and discarded."""


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Calls `function(*args)` after the code ran, and returns its value as JSON data."""

    function: str
    args: Sequence[Any] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """One execution in a fresh state.

    Example: ``ExecRequest(code="def f(x): return x + 1", call=Call(function="f", args=[2]))``

    Raises:
        RequestFileError: `files` has a path that could leave the working directory, or is too large.
    """

    code: str
    setup: str = ""
    """Trusted code of the environment that runs first in the same namespace; it never appears in tracebacks."""
    stdin: str = ""
    call: Call | None = None
    limits: Limits = field(default_factory=Limits)
    files: Mapping[str, bytes | str] = field(default_factory=dict, hash=False)
    """Path below the working directory -> content, text as UTF-8; written before `setup` and `code` run.

    Each has at most `file_bytes`, all together have at most `tmp_bytes`, and there are at most MAX_FILES."""

    def __post_init__(self) -> None:
        if self.files:
            object.__setattr__(self, "files", _checked_files(self.files, self.limits))

    def contents(self) -> dict[str, bytes]:
        return {path: data if isinstance(data, bytes) else _encode(data) for path, data in self.files.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """The result of one execution. `value` is the return value of the called function as JSON text, not yet decoded."""

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
    """In a session: the state of earlier cells is lost, because the interpreter ended in or before this cell."""
    error: str = ""
    """For SANDBOX_ERROR: what failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend enforces on this machine, as measured at start-up."""

    backend: str
    pid_namespace: bool = False
    mount_namespace: bool = False
    network_namespace: bool = False
    ipc_namespace: bool = False
    seccomp: bool = False
    uid_drop: bool = False
    memory_limit: str
    """"cgroup_v2" and "cgroup_v1" limit all processes of a snippet together, "rlimit" each of them; or "none"."""
    process_limit: str = "rlimit"
    """As `memory_limit`."""
    cpu_share: bool = False
    """Whether a slot gets at most one CPU, however many processes it has."""
    capabilities_dropped: bool = False
    """Whether a snippet has no kernel capability and cannot gain one, for example by running a program."""
    host_watch_denied: bool = False
    """Whether inotify, dnotify, fanotify and leases are refused, which reveal how others use shared files."""
    limits: tuple[str, ...] = ()
    """Resource limits that a process cannot raise; RLIMIT_STACK is named "stack"."""
    missing: tuple[str, ...] = ()
    """What this machine does not provide, each with its remedy."""


class SessionFileError(ValueError):
    """A session cannot write or read this file: the fault of the caller or of the code, not of the sandbox."""


class RequestFileError(ValueError):
    """A request names a file that cannot be written: the fault of the caller, not of the sandbox."""


class Session(Protocol):
    """An interpreter that keeps its variables, imports and files (in its own directory) from cell to cell.

    A cell can manipulate the interpreter and so forge the output of later cells. That is acceptable for the output of a
    tool, but not for a verdict: grade in a fresh `Sandbox.run`.

    When a cell exceeds a limit or otherwise ends the interpreter, variables, files and background processes are lost;
    the next request starts a new interpreter and runs the set-up again. `ExecResult.state_lost` reports this.
    Cancelling a request ends the interpreter, too. The requests of one session run one after another.
    """

    async def run(self, code: str, *, stdin: str = "") -> ExecResult:
        """Run a cell. The code cannot make it raise; an uncaught exception or `exit()` keeps the state.

        Raises:
            SandboxError: the session is closed.
        """
        ...

    async def put(self, path: str, data: bytes) -> None:
        """Write a file, and its folders, below the session's directory.

        Raises:
            SessionFileError: the path leaves the directory, or `data` exceeds `Limits.file_bytes` or the free space.
            SandboxError: the sandbox failed, or the session is closed.
        """
        ...

    async def get(self, path: str) -> bytes:
        """Read a regular file below the session's directory. Raises as `put` does."""
        ...

    async def reset(self) -> None:
        """Delete variables, files and processes, and run the set-up again. Raises SandboxError."""
        ...

    async def close(self) -> None:
        """End every process of the session and free its files. Idempotent; a cell in flight ends SANDBOX_ERROR."""
        ...


class Sandbox(Protocol):
    """Runs untrusted code. Safe for concurrent use by many coroutines of one event loop."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def run(self, request: ExecRequest | str) -> ExecResult:
        """Run a request, or just code, in a fresh state. The code cannot make it raise."""
        ...

    async def open_session(self, *, setup: str = "", limits: Limits = DEFAULT_LIMITS, echo: bool = False) -> Session:
        """Open a session; close it in a `finally`.

        Args:
            setup: trusted code of the environment that runs first; it appears in neither output nor tracebacks.
            limits: wall-clock, CPU and output limits hold for each cell, `processes` and `tmp_bytes` for the session,
                `memory_bytes` as `Capabilities.memory_limit` says.
            echo: print the value of a cell's last expression, as an interactive interpreter does.

        Raises:
            SandboxError: the set-up raised, or no more sessions can be opened.
        """
        ...

    async def close(self) -> None:
        """End every process and remove every file of this sandbox and its sessions. Idempotent."""
        ...


def _checked_files(files: Mapping[str, bytes | str], limits: Limits) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    folders: set[str] = set()
    for path, content in files.items():
        name = _normal_path(path)
        if name in contents:
            raise RequestFileError(f"files names {name!r} twice, the second time as {path!r}")
        if not isinstance(content, bytes | str):
            raise RequestFileError(f"the file {path!r} is of type {type(content).__name__}; it must be bytes or str")
        data = _encode(content) if isinstance(content, str) else content
        if len(data) > limits.file_bytes:
            raise RequestFileError(f"the file {path!r} has {len(data)} bytes; file_bytes is {limits.file_bytes}")
        contents[name] = data
        folders |= {parent.as_posix() for parent in PurePosixPath(name).parents}
    conflicts = sorted(contents.keys() & folders)
    if conflicts:
        raise RequestFileError(f"{conflicts[0]!r} is a file and, in the path of another one, a folder")
    if len(contents) + len(folders) - 1 > MAX_FILES:
        present = f"{len(contents)} files and {len(folders) - 1} folders"
        raise RequestFileError(f"there are {present}; both together may be {MAX_FILES}")
    total = sum(-(-len(data) // _PAGE_BYTES) * _PAGE_BYTES for data in contents.values())
    if total > limits.tmp_bytes:
        need = f"{total} bytes in pages of {_PAGE_BYTES}"
        raise RequestFileError(f"the files need {need}; tmp_bytes is {limits.tmp_bytes}")
    return contents


def _encode(text: str) -> bytes:
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
