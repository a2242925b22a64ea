"""The contract of a workspace: a file system from an image, with commands, a shell, files and snapshots.

A workspace is a machine for an agent. Its files come from an unpacked image (`UnpackedImage`) and change only for
itself; its processes live until they end, or the workspace is closed. The backends are in `machines/`.

A result describes the *command*: it exited with 1, it timed out. A failure of the workspace itself raises SandboxError.
Nothing that comes out of a workspace is a verdict: whoever controls it can forge every output. Grade in a fresh one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from forge_env.core.sandbox import ExecStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedImage:
    """An image as a folder on this machine. Nobody changes the folder while a workspace uses it."""

    root: Path
    """The folder of the root file system, with the owners and modes of the image; absolute."""
    digest: str = ""
    """Names the content, as "sha256:..."; "" for a folder that was not made from an image."""
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    workdir: str = "/"
    """Absolute; made if the image lacks it."""
    user: str = ""
    """User of commands: a name, a number, or "USER:GROUP"; "" is root."""
    entrypoint: tuple[str, ...] = ()
    """Not run by a workspace; kept for whoever wants to run it."""
    command: tuple[str, ...] = ()
    """As `entrypoint`."""
    architecture: str = ""
    """As the image names it ("amd64", "arm64"); "" is taken to be this machine's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceLimits:
    """Limits of one workspace with all its processes. `WorkspaceCapabilities` says which of them hold."""

    memory_bytes: int = 2 * 2**30
    processes: int = 512
    """Processes and threads."""
    cpus: float = 1.0
    """CPU seconds per second, of all processes together."""
    disk_bytes: int = 2**30
    """Files that were written since the image or the snapshot, /tmp among them. They are kept in memory, on top of
    `memory_bytes`, where `WorkspaceCapabilities.disk_in_memory` says so."""
    files: int = 200_000
    """Files, folders and links that were written, where disk is limited by a tmpfs."""
    wall_s: float = 120.0
    """Default time limit of one command."""
    output_bytes: int = 2**20
    """Bytes kept of stdout and of stderr each; the rest is read, counted and discarded. A command that writes 64 times
    as much is killed (OUTPUT_LIMIT), unless its caller takes the output as it comes (`on_output`)."""
    transfer_bytes: int = 256 * 2**20
    """Bytes of one put or get, of a tree as well."""


DEFAULT_WORKSPACE_LIMITS = WorkspaceLimits()


class NetworkMode(StrEnum):
    NONE = "none"  # no network at all
    LOOPBACK = "loopback"  # only the workspace's own 127.0.0.1
    ALLOWLIST = "allowlist"  # loopback, and a proxy to the hosts of a list: HTTP_PROXY and HTTPS_PROXY are set


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What a workspace can reach. Names resolve only in the proxy, and nothing but the proxy leads out."""

    mode: NetworkMode = NetworkMode.LOOPBACK
    allowed_hosts: tuple[str, ...] = ()
    """For ALLOWLIST: host names; "*.example.org" allows every name below example.org; "host:443" only that port; "*"
    is every host with a public address."""
    own_hosts: tuple[str, ...] = ()
    """For ALLOWLIST: further hosts, which may have private addresses, as the user himself names them. "127.0.0.1:PORT"
    is a port of this machine: the same port of the workspace's 127.0.0.1 leads there."""
    mirrors: tuple[tuple[str, str], ...] = ()
    """For ALLOWLIST: caches of packages and their URLs, see `contrib.workspaces.machines.mirrors`."""
    listeners: tuple[int, ...] = ()
    """Ports of the workspace's 127.0.0.1 that the caller serves: `Workspace.listener`. Not with NONE."""

    @property
    def is_public(self) -> bool:
        """Whether it leads to every public host."""
        return self.mode is NetworkMode.ALLOWLIST and "*" in self.allowed_hosts


LOOPBACK = Network()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceCapabilities:
    """What a backend enforces on this machine, as measured at its start."""

    backend: str
    root_is_unprivileged: bool = False
    """Whether root in a workspace is an ordinary user outside of it."""
    users: bool = False
    """Whether commands can run as any user; otherwise only as root of the workspace."""
    seccomp: bool = False
    capabilities_dropped: bool = False
    """Whether root in a workspace has only the capabilities that installing packages takes, none over the machine."""
    memory_limit: str = "none"
    """"cgroup_v1", "cgroup_v2" and "engine" limit all processes together, "rlimit" each of them."""
    process_limit: str = "none"
    """As `memory_limit`."""
    cpu_limit: bool = False
    disk_limit: bool = False
    disk_in_memory: bool = False
    network_modes: tuple[NetworkMode, ...] = ()
    """The modes that can be had; others are refused with a UserError."""
    listeners: bool = False
    snapshots: bool = False
    missing: tuple[str, ...] = ()
    """What this machine does not provide, each with its remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a command ended. `status` is never SANDBOX_ERROR: that raises SandboxError."""

    status: ExecStatus
    exit_code: int | None = None
    """None after a signal, and after a timeout."""
    started: bool = True
    """False: no program ran. `exit_code` is 127 if there is none, else 126, and `stderr` says why."""
    signal: int | None = None
    stdout: str = ""
    """UTF-8; what is no text is replaced. Fetch binary data with `get`."""
    stderr: str = ""
    truncated_stdout: bool = False
    truncated_stderr: bool = False
    stdout_bytes: int = 0
    """Bytes written in all, with those that were discarded."""
    stderr_bytes: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """Of the process and the children that it waited for; 0 for a command of a shell."""
    state_lost: bool = False
    """In a shell: it ended in or before this command, so variables, functions and the working directory are gone. In a
    workspace: it has ended (for lack of memory, for example), and only `close` is left."""
    in_new_shell: bool = False
    """In a shell: it had ended before this command, which ran in a new one."""

    @property
    def ok(self) -> bool:
        return self.status is ExecStatus.OK


class WorkspaceFileError(ValueError):
    """A file cannot be written or read: the fault of the caller or of the code inside, not of the workspace."""

    errno: int = 0
    """Number of the error that the workspace met; 0 if it met none."""


class Shell(Protocol):
    """A shell that keeps its working directory, variables, functions and background processes.

    Commands run one after another. A command gets no standard input. One that passes its time limit is killed with
    every process below the shell; the shell itself goes on, unless it is the shell that hangs.
    """

    async def run(self, command: str, *, timeout_s: float | None = None) -> CommandResult:
        """Run a command line, or several lines. The command cannot make it raise.

        Raises:
            SandboxError: the workspace failed, or is closed.
        """
        ...

    async def close(self) -> None:
        """End the shell and the processes of its session. Idempotent."""
        ...


class Snapshot(Protocol):
    """The files of a workspace at one moment, to open further workspaces from (`Workspaces.open`).

    It holds what was written, until it is closed and every workspace opened from it is closed, too.
    """

    @property
    def image(self) -> UnpackedImage:
        """The image below it."""
        ...

    async def close(self) -> None:
        """Idempotent. Workspaces that were opened from it go on."""
        ...


class Workspace(Protocol):
    """A file system from an image, and the processes in it. For use by coroutines of one event loop."""

    @property
    def image(self) -> UnpackedImage: ...

    @property
    def capabilities(self) -> WorkspaceCapabilities: ...

    @property
    def limits(self) -> WorkspaceLimits: ...

    @property
    def unreached(self) -> tuple[str, ...]:
        """What programs have asked the proxy of an allowlist for in vain, a sentence for each host."""
        ...

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float | None = None,
        user: str | int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | str | int = b"",
        on_output: Callable[[str, bytes], None] | None = None,
    ) -> CommandResult:
        """Run a program and wait for it. The program cannot make it raise.

        Background processes live on, but what they write to the output of the command is lost. At the time limit, and
        when the call is cancelled, the program and every process of its session and below it are killed.

        Args:
            command: the program and its arguments; a string runs as `/bin/sh -c STRING`.
            timeout_s: time limit; `WorkspaceLimits.wall_s` by default.
            user: name, number or "USER:GROUP"; the image's user by default.
            env: added to the environment of the image.
            cwd: the image's working directory by default. It must exist.
            stdin: what it reads; or the descriptor of a pipe or socket of the caller, who may write while it runs.
            on_output: called with "stdout" or "stderr" and each chunk as it comes; also with chunks that the
                result does not keep. It must not block or raise.

        Raises:
            UserError: there is no such user or folder in the workspace, or the backend has only one user.
            SandboxError: the workspace failed, or is closed.
        """
        ...

    async def open_shell(
        self,
        *,
        user: str | int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        on_output: Callable[[str, bytes], None] | None = None,
    ) -> Shell:
        """Open a shell: /bin/bash if the image has it, else /bin/sh. Arguments and exceptions as for `exec`."""
        ...

    async def put(self, path: str, data: bytes, *, mode: int = 0o644, user: str | int | None = None) -> None:
        """Write a file atomically; missing folders are created.

        Paths are resolved inside the workspace, links too; a link at the end of the path is replaced, not followed.

        Args:
            path: absolute, or relative to the image's working directory.
            user: the owner; root by default.

        Raises:
            WorkspaceFileError: the path leads nowhere, `data` has more than `transfer_bytes`, or the disk is full.
            SandboxError: the workspace failed, or is closed.
        """
        ...

    async def get(self, path: str, *, max_bytes: int | None = None) -> bytes:
        """Read a regular file. Links are not followed at the end of a path, and special files are refused.

        Raises: as `put`; WorkspaceFileError also for more than `max_bytes`, by default `transfer_bytes`.
        """
        ...

    async def put_tree(self, source: Path, path: str, *, user: str | int | None = None) -> None:
        """Copy a folder of this machine: its files, folders and links, with their modes, into the folder `path`.

        Existing files are replaced, and others stay. Links are copied as links. Raises as `put`.
        """
        ...

    async def get_tree(
        self,
        path: str,
        target: Path,
        *,
        max_bytes: int | None = None,
        max_files: int = 10_000,
        skip: bool = False,
        exclude: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Copy the regular files and folders below `path` into a new folder of this machine.

        Args:
            target: does not exist yet; files get this process's user, and modes 0o644 or 0o755.
            skip: leave out links and special files, and return their paths; otherwise they raise.
            exclude: patterns as of `tar --exclude`: an entry whose path below `path`, or the end of it from any "/" on,
                matches is left out with everything below it. "*" also matches "/".

        Raises:
            WorkspaceFileError: as `put`; also for links and special files, and for more than `max_files` entries.
        """
        ...

    async def export(self, target: Path, *, max_bytes: int | None = None) -> None:
        """Write all files of the workspace, also its image's, into a tar: with owners, modes, times and links.

        Left out are special files, and what is mounted: /proc and /dev.

        Args:
            target: a new file of this machine.
            max_bytes: `transfer_bytes` by default.

        Raises: as `put`.
        """
        ...

    async def take_over(
        self, other: Workspace, *, keep: Sequence[str] = (), work: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Give this workspace the files of another one with the same beginning, except what is kept.

        Owners, modes, times and links are as there; special files are left out. Call it when no process runs in either.

        Args:
            other: of the same backend; it is not changed.
            keep: absolute paths that stay as they are here, with all that is below them; "*" matches within a part.
            work: absolute paths that are taken over all the same; in them, what a longer path of `keep` names is kept.

        Returns: files that have changed in the other one and are kept here, a hundred at most.

        Raises: as `put`; WorkspaceFileError also for changed files with more than the `disk_bytes` of the other one.
        """
        ...

    async def end_processes(self) -> None:
        """Kill every process in the workspace; files stay. Shells are gone: their next command starts a new one."""
        ...

    async def snapshot(self) -> Snapshot:
        """Keep the files as they are now, and go on from them. **Every process of the workspace is killed first**: what
        a snapshot holds is at rest.

        Raises:
            SandboxError: the workspace failed, or is closed.
        """
        ...

    def listener(self, port: int) -> socket.socket:
        """Return the listening socket of a port in `Network.listeners`: the caller accepts what connects inside.

        Raises:
            UserError: the workspace was opened without that port.
        """
        ...

    async def close(self) -> None:
        """End every process and free every file of the workspace. Idempotent."""
        ...


class WorkspacePool(Protocol):
    """Warm workspaces of one image: one that is taken is new, and is closed at the end."""

    def take(self) -> AbstractAsyncContextManager[Workspace]:
        """Return a new workspace, already started if one is warm. Waits while `most` are in use.

        Raises:
            SandboxError: the pool is closed, or a workspace could not be started.
        """
        ...

    async def close(self) -> None:
        """Close every idle workspace; those in use are closed when they are given back. Idempotent."""
        ...


class Workspaces(Protocol):
    """An open backend, which starts workspaces in milliseconds. From `contrib.workspaces.open.open_workspaces`."""

    @property
    def capabilities(self) -> WorkspaceCapabilities: ...

    async def open(
        self,
        image: UnpackedImage | Snapshot,
        *,
        limits: WorkspaceLimits = DEFAULT_WORKSPACE_LIMITS,
        network: Network = LOOPBACK,
    ) -> Workspace:
        """Start a workspace; close it in a `finally`.

        Raises:
            UserError: the image is not there or for another architecture, a limit is out of range, or the backend
                cannot provide the network.
            SandboxError: the kernel or the engine failed, or this backend is closed.
        """
        ...

    async def open_pool(
        self,
        image: UnpackedImage | Snapshot,
        *,
        limits: WorkspaceLimits = DEFAULT_WORKSPACE_LIMITS,
        network: Network = LOOPBACK,
        warm: int = 2,
        most: int = 64,
        starts_per_s: float = 100.0,
    ) -> WorkspacePool:
        """Open a pool of workspaces, and wait until `warm` are started.

        Args:
            warm: workspaces that are kept started, beside those in use.
            most: workspaces at most, in use, idle and starting.
            starts_per_s: a bound on starts per second, on average; up to `warm` may start at once.

        Raises: as `open`.
        """
        ...

    async def close(self) -> None:
        """Close every workspace, snapshot and pool of this backend. Idempotent."""
        ...
