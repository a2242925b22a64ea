"""The self-test of a sandbox: canaries that try to escape. It runs once per process, when a sandbox opens."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from typing import Any

from forge_env.core.errors import SandboxUnavailable
from forge_env.core.sandbox import Call, Capabilities, ExecRequest, ExecStatus, Limits, Sandbox
from sandboxes.host.cgroups import Groups

LIMITS = Limits(wall_s=20.0, cpu_s=20.0, processes=8, memory_bytes=128 * 2**20)
_NAMESPACES = ("pid", "mnt", "net", "ipc", "uts")
_LIMITED = {"core", "cpu", "fsize", "memlock", "msgqueue", "nice", "nofile", "nproc", "rtprio", "sigpending", "stack"}
"""Resource limits of every snippet; "data" or "as", the memory of a process, comes on top."""

# Every canary returns its observation; the host judges. workspaces/selftest.py runs them, too.
CANARIES = """
import ctypes, os, resource, signal, socket

def readable(path):
    try:
        with open(path, "rb"):
            return True
    except OSError:
        return False

def forks(wanted):
    children = []
    try:
        for _ in range(wanted):
            pid = os.fork()
            if not pid:
                signal.pause()
                os._exit(0)
            children.append(pid)
    except OSError:
        pass
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return len(children)

def allocates(size):
    try:
        return len(bytearray(size)) == size
    except MemoryError:
        return False

def connects():
    try:
        with socket.create_connection((b"192.0.2.1", 53), timeout=1):  # bytes need no codec of host names
            return True
    except TimeoutError:
        return True
    except OSError:
        return False

def status():
    with open("/proc/self/status") as lines:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

def limited():
    names = []
    for name in filter(lambda name: name.startswith("RLIMIT_") and name != "RLIMIT_OFILE", dir(resource)):
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            try:
                resource.setrlimit(kind, (hard, hard + 1))
            except (OSError, ValueError):
                names.append(name[len("RLIMIT_"):].lower())
    return names

def watches(libc):
    shared = os.open("/", os.O_RDONLY)
    own = os.open("/tmp/leased", os.O_RDONLY | os.O_CREAT)
    os.unlink("/tmp/leased")
    tried = {"inotify": lambda: libc.inotify_init1(0), "dnotify": lambda: libc.fcntl(shared, 1026, 1),
             "fanotify": lambda: libc.fanotify_init(0x200, 0), "leases": lambda: libc.fcntl(own, 1024, 0)}
    return [name for name, call in tried.items() if call() >= 0]

def look(secret, size, namespaces):
    libc = ctypes.CDLL(None)
    own = status()
    return {
        "namespaces": {name: os.readlink("/proc/self/ns/" + name) for name in namespaces},
        "secret": readable(secret),
        "shadow": readable("/etc/shadow"),
        "connects": connects(),
        "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
        "forks": forks(20),
        "allocates": allocates(size),
        "mounts": libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None) == 0,
        "writes_root": os.access("/", os.W_OK) or os.access("/usr", os.W_OK),
        "seccomp": own["Seccomp"],
        "no_new_privileges": own["NoNewPrivs"],
        "capabilities": {name: own[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")},
        "limited": limited(),
        "watches": watches(libc),
        "uid": os.getuid(),
    }
"""

# Memory that no resource limit counts unless address space is limited: only the control group stops it.
_SHARED_MEMORY = f"""
import mmap
held = mmap.mmap(-1, {LIMITS.memory_bytes + 64 * 2**20})
for start in range(0, len(held), mmap.PAGESIZE):
    held[start] = 1
"""

_results: dict[str, Capabilities] = {}


async def check_isolation(sandbox: Sandbox, groups: Groups | str) -> Capabilities:
    """Return what the namespace backend enforces here. Raises SandboxUnavailable with every canary that escaped.

    A success is cached for the life of this process.

    Args: groups: the control groups of the sandbox, or the reason for having none.
    """
    kind = groups if isinstance(groups, str) else groups.version
    if kind not in _results:
        capabilities = _judge(await look(sandbox))
        _results[kind] = await with_limits(capabilities, sandbox, groups)
    return _results[kind]


async def with_limits(capabilities: Capabilities, sandbox: Sandbox, groups: Groups | str) -> Capabilities:
    if isinstance(groups, str):
        missing = f"memory and processes are limited per process only, as there is no control group: {groups}"
        return replace(capabilities, missing=(*capabilities.missing, missing))
    result = await sandbox.run(ExecRequest(code=_SHARED_MEMORY, limits=LIMITS))
    if result.status is not ExecStatus.MEMORY:
        raise SandboxUnavailable(
            f"{groups.version} does not limit the memory of a snippet here: the canary ended with {result.status} "
            f"{result.error}".rstrip()
        )
    version = groups.version
    return replace(capabilities, memory_limit=version, process_limit=version, cpu_share=groups.limits_cpu)


async def look(sandbox: Sandbox) -> dict[str, Any]:
    # In a folder that every user may enter, so only its mode and the sandbox protect it.
    with tempfile.NamedTemporaryFile(dir="/tmp", prefix="forge-env-canary-") as secret:
        call = Call(function="look", args=[secret.name, 2 * LIMITS.memory_bytes, _NAMESPACES])
        result = await sandbox.run(ExecRequest(code=CANARIES, call=call, limits=LIMITS))
    if result.status is not ExecStatus.OK or result.value is None:
        reason = result.error or result.stderr.strip().rpartition("\n")[2] or f"it ended with {result.status}"
        raise SandboxUnavailable(f"namespace sandbox: the self-test could not run here: {reason}.")
    view: dict[str, Any] = json.loads(result.value)
    return view


def _judge(view: dict[str, Any]) -> Capabilities:
    shared = [name for name, link in view["namespaces"].items() if link == os.readlink(f"/proc/self/ns/{name}")]
    escapes = {
        f"it shares namespaces of the host: {', '.join(shared)}": bool(shared),
        "it can read a private file of the host": view["secret"] or view["shadow"],
        "it can see other processes": any(pid > 2 for pid in view["processes"]),
        **privileges_of(view),
    }
    reasons = [reason for reason, is_true in escapes.items() if is_true]
    if reasons:
        raise SandboxUnavailable(
            f"namespace sandbox: the self-test failed, because {'; '.join(reasons)}. This kernel does not isolate well "
            "enough; use a newer one (5.14 or later), or run as root."
        )
    return Capabilities(
        backend="namespace",
        pid_namespace=True,
        mount_namespace=True,
        network_namespace=True,
        ipc_namespace=True,
        seccomp=True,
        uid_drop=os.geteuid() == 0 and view["uid"] != 0,
        memory_limit="rlimit",
        **denials_of(view),
    )


def privileges_of(view: dict[str, Any]) -> dict[str, bool]:
    """Return privileges that no snippet may have on any backend: by sentence, whether the snippet has it."""
    capabilities = [name for name, value in view["capabilities"].items() if name != "CapBnd" and int(value, 16)]
    without_limit = sorted(_LIMITED - set(view["limited"]))
    return {
        "it can reach the network": view["connects"],
        "its processes are not limited": not 0 < view["forks"] < LIMITS.processes,
        "its memory is not limited": view["allocates"],
        "it can mount": view["mounts"],
        "it can write to its root": view["writes_root"],
        "its system calls are not filtered": view["seccomp"] != "2",
        "it may gain privileges": view["no_new_privileges"] != "1",
        f"it has capabilities ({', '.join(capabilities)})": bool(capabilities),
        f"it can watch files that it shares with the host, by {', '.join(view['watches'])}": bool(view["watches"]),
        f"nothing limits its {', '.join(without_limit)}": bool(without_limit),
    }


def denials_of(view: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `Capabilities` on denials; call it only if `privileges_of` reports no privilege."""
    has_no_capability = int(view["capabilities"]["CapBnd"], 16) == 0
    missing = (
        "the bounding set of capabilities is not empty, since emptying it takes CAP_SETPCAP; only no_new_privs protects"
    )
    return {
        "capabilities_dropped": has_no_capability,
        "host_watch_denied": True,
        "limits": tuple(sorted(view["limited"])),
        "missing": () if has_no_capability else (missing,),
    }
