"""The self-test of workspaces: canaries that try to escape. It runs once per process, when the backend opens."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

from contrib.workspaces.contract import UnpackedImage, WorkspaceCapabilities, WorkspaceLimits
from contrib.workspaces.machines.backend import Workspaces
from contrib.workspaces.machines.command import run_command
from contrib.workspaces.machines.workspace import Workspace
from forge_env.core.errors import SandboxUnavailable
from forge_env.core.sandbox import ExecStatus
from sandboxes.host.cgroups import Groups
from sandboxes.host.controlled import GUEST
from sandboxes.host.selftest import CANARIES

LIMITS = WorkspaceLimits(
    memory_bytes=64 * 2**20, disk_bytes=8 * 2**20, processes=8, files=1000, wall_s=20.0, output_bytes=64 * 2**10
)
_NAMESPACES = ("pid", "mnt", "net", "ipc", "uts", "cgroup")
IMAGE = UnpackedImage(root=GUEST)
"""Any folder will do: the canaries run in pid 1."""
_LOOK = """
def look(secret, namespaces):
    libc = ctypes.CDLL(None)
    own = status()
    written = 0
    try:
        with open("/tmp/large", "wb", buffering=0) as file:
            for _ in range(32):
                written += file.write(bytes(2**20))
    except OSError:
        pass
    os.unlink("/tmp/large")
    return {
        "namespaces": {name: os.readlink("/proc/self/ns/" + name) for name in namespaces},
        "secret": readable(secret),
        "shadow": readable("/etc/shadow"),
        "connects": connects(),
        "processes": sorted(set(map(int, filter(str.isdigit, os.listdir("/proc")))) - {1, os.getpid()}),
        "forks": forks(40),
        "mounts": libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None) == 0,
        "unshares": libc.unshare(0x10000000) == 0,
        "written": written,
        "settings": os.access("/proc/sys/kernel/hostname", os.W_OK),
        "seccomp": own["Seccomp"],
        "no_new_privileges": own["NoNewPrivs"],
        "capabilities": int(own["CapBnd"], 16) | int(own["CapPrm"], 16),
        "watches": watches(libc),
        "outside": open("/proc/self/uid_map").read().split()[1],
    }
"""
_FILL = """
def look():
    import mmap
    held = mmap.mmap(-1, 1 << 28)
    for start in range(0, len(held), mmap.PAGESIZE):
        held[start] = 1
"""
_ALLOWED_CAPABILITIES = sum(1 << number for number in (0, 1, 3, 4, 5, 6, 7, 31))

_capabilities: dict[str, WorkspaceCapabilities] = {}


async def check_workspaces(workspaces: Workspaces, groups: Groups | str) -> WorkspaceCapabilities:
    """Return what the namespace backend enforces here. Raises SandboxUnavailable with every canary that escaped.

    A success is cached for the life of this process.
    """
    kind = groups if isinstance(groups, str) else groups.version
    if kind not in _capabilities:
        workspace = await workspaces.open(IMAGE, limits=LIMITS)
        try:
            _capabilities[kind] = await _measure(workspace, groups)
        finally:
            await workspace.close()
    return _capabilities[kind]


async def _measure(workspace: Workspace, groups: Groups | str) -> WorkspaceCapabilities:
    view = await look(workspace)
    require_no_escape(view)
    missing: tuple[str, ...] = ()
    version = "rlimit"
    if isinstance(groups, Groups):
        version = groups.version
        await require_memory_limit(workspace, version)
    else:
        missing = (f"memory and processes are limited per process only, as there is no control group: {groups}",)
    if os.geteuid() != 0:
        missing += ("commands run only as root of the workspace, who is the user of forge_env outside; run as root",)
    return capabilities_of(
        view,
        backend="namespace",
        users=os.geteuid() == 0,
        memory_limit=version,
        process_limit=version,
        cpu_limit=isinstance(groups, Groups) and groups.limits_cpu,
        disk_limit=True,
        disk_in_memory=True,
        missing=missing,
    )


def capabilities_of(view: dict[str, Any], **fields: Any) -> WorkspaceCapabilities:
    """Return the capabilities of a backend from which no canary got out."""
    return WorkspaceCapabilities(
        root_is_unprivileged=root_is_unprivileged(view),
        seccomp=True,
        capabilities_dropped=True,
        **fields,
    )


async def look(workspace: Workspace) -> dict[str, Any]:
    """Return what canaries got to see and do. Raises SandboxUnavailable if they could not run."""
    with tempfile.NamedTemporaryFile(dir="/tmp", prefix="forge-env-canary-") as secret:
        result = await _canary(workspace, CANARIES + _LOOK, [secret.name, _NAMESPACES])
    if result.status is not ExecStatus.OK:
        reason = result.stderr.strip().rpartition("\n")[2] or f"it ended with {result.status}"
        raise SandboxUnavailable(f"workspaces: the self-test could not run here: {reason}.")
    view: dict[str, Any] = json.loads(result.stdout)
    return view


async def require_memory_limit(workspace: Workspace, by: str) -> None:
    """Raises SandboxUnavailable if a command can use more memory than the workspace has."""
    full = await _canary(workspace, _FILL, [])
    if full.status is not ExecStatus.MEMORY:
        raise SandboxUnavailable(f"workspaces: {by} does not limit memory here: {full.status}.")


def root_is_unprivileged(view: dict[str, Any]) -> bool:
    return int(view["outside"]) not in (0, os.geteuid())


async def _canary(workspace: Workspace, code: str, arguments: list[Any]) -> Any:
    request = {"do": "look", "user": "", "facts": {"code": code, "arguments": arguments}}
    launch = workspace.launch
    return await run_command(launch.box, request, b"", LIMITS.wall_s, LIMITS, launch.counters)


def require_no_escape(view: dict[str, Any], *, disk: bool = True) -> None:
    """Raises SandboxUnavailable with everything that got out. Args: disk: whether the disk should be limited."""
    shared = [name for name, link in view["namespaces"].items() if link == os.readlink(f"/proc/self/ns/{name}")]
    escapes = {
        f"it shares namespaces of the host: {', '.join(shared)}": bool(shared),
        "it can read a private file of the host": view["secret"] or view["shadow"],
        "it can reach the network": view["connects"],
        "it can see other processes": bool(view["processes"]),
        "its processes are not limited": not 0 < view["forks"] < 4 * LIMITS.processes,
        "it can mount": view["mounts"],
        "it can make user namespaces": view["unshares"],
        "its disk is not limited": disk and view["written"] > LIMITS.disk_bytes,
        "it can change settings of the kernel": view["settings"],
        "its system calls are not filtered": view["seccomp"] != "2",
        "it may gain privileges": view["no_new_privileges"] != "1",
        "it has too many capabilities": bool(view["capabilities"] & ~_ALLOWED_CAPABILITIES),
        f"it can watch files, by {', '.join(view['watches'])}": bool(view["watches"]),
    }
    reasons = [reason for reason, is_out in escapes.items() if is_out]
    if reasons:
        raise SandboxUnavailable(
            f"workspaces: the self-test failed, because {'; '.join(reasons)}. This kernel does not isolate well "
            "enough; use a newer one (5.14 or later)."
        )
