"""The self-test of a sandbox: canaries that try to get out, run once per process when a sandbox opens."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from typing import Any

from forge_env.errors import SandboxUnavailable
from forge_env.sandbox import Call, Capabilities, ExecRequest, ExecStatus, Limits, Sandbox
from sandboxes.cgroups import Groups

LIMITS = Limits(wall_s=20.0, cpu_s=20.0, processes=8, memory_bytes=128 * 2**20)
_NAMESPACES = ("pid", "mnt", "net", "ipc", "uts")

# Every canary returns what it saw; the judgement is the host's.
_CANARIES = """
import ctypes, os, signal, socket

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
        with socket.create_connection(("192.0.2.1", 53), timeout=1):
            return True
    except TimeoutError:
        return True
    except OSError:
        return False

def status(field):
    with open("/proc/self/status") as lines:
        return next(line.split()[1] for line in lines if line.startswith(field + ":"))

def look(secret, size, namespaces):
    libc = ctypes.CDLL(None)
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
        "seccomp": status("Seccomp"),
        "capabilities": status("CapEff"),
        "uid": os.getuid(),
    }
"""

# Memory that no resource limit of the process counts once address space is left out: only the group stops it.
_SHARED_MEMORY = f"""
import mmap
held = mmap.mmap(-1, {LIMITS.memory_bytes + 64 * 2**20})
for start in range(0, len(held), mmap.PAGESIZE):
    held[start] = 1
"""

_passed: dict[str, Capabilities] = {}


async def check_isolation(sandbox: Sandbox, groups: Groups | str) -> Capabilities:
    """Return what the namespace backend enforces here. Raises SandboxUnavailable and names each canary that got out.

    A success is remembered for the life of this process.

    Args: groups: the control groups of the sandbox, or why it has none.
    """
    kind = groups if isinstance(groups, str) else groups.version
    if kind not in _passed:
        capabilities = _judge(await look(sandbox))
        _passed[kind] = await with_limits(capabilities, sandbox, groups)
    return _passed[kind]


async def with_limits(capabilities: Capabilities, sandbox: Sandbox, groups: Groups | str) -> Capabilities:
    if isinstance(groups, str):
        lost = f"memory and processes are limited per process only, as there is no control group: {groups}"
        return replace(capabilities, missing=(lost,))
    result = await sandbox.run(ExecRequest(code=_SHARED_MEMORY, limits=LIMITS))
    if result.status is not ExecStatus.MEMORY:
        raise SandboxUnavailable(
            f"{groups.version} does not limit the memory of a snippet here: the canary ended with {result.status} "
            f"{result.error}".rstrip()
        )
    version = groups.version
    return replace(capabilities, memory_limit=version, process_limit=version, cpu_share=groups.limits_cpu)


async def look(sandbox: Sandbox) -> dict[str, Any]:
    # Lies where any user may pass, so that only its mode and the sandbox protect it.
    with tempfile.NamedTemporaryFile(dir="/tmp", prefix="forge-env-canary-") as secret:
        call = Call(function="look", args=[secret.name, 2 * LIMITS.memory_bytes, _NAMESPACES])
        result = await sandbox.run(ExecRequest(code=_CANARIES, call=call, limits=LIMITS))
    if result.status is not ExecStatus.OK or result.value is None:
        reason = result.error or result.stderr.strip().rpartition("\n")[2] or f"it ended with {result.status}"
        raise SandboxUnavailable(f"namespace sandbox: the self-test could not run here: {reason}.")
    seen: dict[str, Any] = json.loads(result.value)
    return seen


def _judge(seen: dict[str, Any]) -> Capabilities:
    shared = [name for name, link in seen["namespaces"].items() if link == os.readlink(f"/proc/self/ns/{name}")]
    escapes = {
        f"it shares namespaces of the host: {', '.join(shared)}": bool(shared),
        "it can read a private file of the host": seen["secret"] or seen["shadow"],
        "it can reach the network": seen["connects"],
        "it can see other processes": any(pid > 2 for pid in seen["processes"]),
        "its processes are not limited": not 0 < seen["forks"] < LIMITS.processes,
        "its memory is not limited": seen["allocates"],
        "it can mount": seen["mounts"],
        "it can write to its root": seen["writes_root"],
        "its system calls are not filtered": seen["seccomp"] != "2",
        "it has capabilities": int(seen["capabilities"], 16) != 0,
    }
    found = [text for text, escaped in escapes.items() if escaped]
    if found:
        raise SandboxUnavailable(
            f"namespace sandbox: the self-test failed, because {'; '.join(found)}. This kernel does not isolate well "
            "enough; use a newer one (5.14 or later), or run as root."
        )
    return Capabilities(
        backend="namespace",
        pid_namespace=True,
        mount_namespace=True,
        network_namespace=True,
        ipc_namespace=True,
        seccomp=True,
        uid_drop=os.geteuid() == 0 and seen["uid"] != 0,
        memory_limit="rlimit",
    )
