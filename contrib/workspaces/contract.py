"""What a workspace is given, and what it answers with: image, limits, network, results.

A workspace is a machine for an agent. Its files come from an unpacked image (`UnpackedImage`) and change only for
itself; its processes live until they end, or the workspace is closed. The machines are in `machines/`.

A result describes the *command*: it exited with 1, it timed out. A failure of the workspace itself raises SandboxError.
Nothing that comes out of a workspace is a verdict: whoever controls it can forge every output. Grade in a fresh one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

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
    """For ALLOWLIST: caches of packages and their URLs, see `contrib.workspaces.machines.proxy`."""
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
    """UTF-8; what is not text is replaced. Fetch binary data with `get`."""
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
