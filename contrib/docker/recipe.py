"""The hardening of a container: all settings that the engine gets."""

from __future__ import annotations

import errno
import json
from dataclasses import dataclass
from typing import Any

from contrib.docker.engine import Engine
from contrib.docker.owner import labels
from forge_env.core.sandbox import Capabilities, Limits
from sandboxes.guest.seccomp import DENIED_FCNTL, denied_calls

_OWN_MEMORY_BYTES = 64 * 2**20
"""Memory of agent and zygote, beside the snippet's."""
_MAX_PROCESSES = 1024
"""Limit on processes of a container; the agent sets the limit of the snippet."""
_LEAST_TMP_BYTES = 2 * 2**20
_AGENT_USER, _ROOT = "65532:65532", "0:0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of the containers of one sandbox."""

    image: str
    namespaces: bool
    """Whether the agent confines every snippet in its own namespaces; if not, only the container isolates."""
    cpus: float
    runtime: str | None
    why_none: str = ""
    """Why there are no namespaces."""
    capabilities: Capabilities | None = None
    """The result of the self-test of a container of this recipe."""


def memory_needed(limits: Limits) -> int:
    """Return the memory limit of a container for `limits`; the files of the snippet count as its memory."""
    return limits.memory_bytes + _OWN_MEMORY_BYTES


async def create(engine: Engine, recipe: Recipe, limits: Limits) -> str:
    """Create a container without starting it, and return its id. Raises SandboxError."""
    api = engine.client.api
    host = api.create_host_config(**_settings(engine, recipe, limits))
    if recipe.namespaces:
        # A user namespace may mount a /proc only while it sees a complete one. The snippet sees only its own processes.
        host |= {"MaskedPaths": [], "ReadonlyPaths": []}
    answer = await engine.call(
        api.create_container,
        recipe.image,
        command=["namespace" if recipe.namespaces else "plain", *(["proved"] if recipe.capabilities else [])],
        # Only root can have capabilities in a container; it has those for changing its user for good.
        user=_AGENT_USER if recipe.namespaces else _ROOT,
        hostname="sandbox",
        stdin_open=True,
        labels=labels(),
        host_config=host,
    )
    return str(answer["Id"])


def usual_settings(memory_bytes: int, cpus: float, processes: int, *, shm_bytes: int) -> dict[str, Any]:
    """Return what every container gets: limits, no network, no capabilities, nothing of it kept."""
    return {
        "auto_remove": True,
        "cap_drop": ["ALL"],
        "ipc_mode": "private",
        "log_config": {"Type": "none"},
        "mem_limit": memory_bytes,
        "memswap_limit": memory_bytes,
        "nano_cpus": int(cpus * 1e9),
        "network_mode": "none",
        "pids_limit": processes,
        "shm_size": shm_bytes,
    }


def _settings(engine: Engine, recipe: Recipe, limits: Limits) -> dict[str, Any]:
    tmp_bytes = max(limits.tmp_bytes, _LEAST_TMP_BYTES)
    settings = usual_settings(memory_needed(limits), recipe.cpus, _MAX_PROCESSES, shm_bytes=tmp_bytes) | {
        "init": True,
        "read_only": True,
        "security_opt": [
            "no-new-privileges",
            f"seccomp={seccomp_profile(engine.machine, namespaces=recipe.namespaces)}",
        ],
        "tmpfs": {"/tmp": f"size={tmp_bytes},nr_inodes=4096,mode=1777,nosuid,nodev,noexec"},
        "ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}, {"Name": "nofile", "Soft": 4096, "Hard": 4096}],
    }
    if recipe.runtime:
        settings["runtime"] = recipe.runtime
    if recipe.namespaces:
        # AppArmor's profile for containers forbids every mount; the snippet's seccomp filter forbids them, too.
        settings["security_opt"].append("apparmor=unconfined")
    else:
        settings["cap_add"] = ["SETUID", "SETGID", "SETPCAP", "KILL"]
    return settings


_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_FOR_NAMESPACES = {"mount", "mount_setattr", "pivot_root", "setns", "sethostname", "umount2", "unshare"}
_FOR_INPUT = {"memfd_create"}
_OTHER_FAMILIES = (0, 3, 4, 5, 6, 7, 8, 9)  # below 10, all but AF_UNIX and AF_INET; AF_INET6 is 10, and the last
_LOW_WORD = 0xFFFFFFFF
_NAMESPACE_FLAGS = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)


def seccomp_profile(machine: str, *, namespaces: bool) -> str:
    """Return the seccomp profile of a container as JSON text for the engine.

    It is the strict filter without the calls that the agent needs to confine a snippet. The snippet loads the strict
    filter on top, so it cannot make these calls.

    Args:
        machine: the engine's architecture, "x86_64" or "aarch64".
        namespaces: whether the agent creates namespaces.
    """
    exceptions = _FOR_INPUT | (_FOR_NAMESPACES if namespaces else set())
    rules: list[dict[str, Any]] = [
        _refuse(sorted(denied_calls(machine).keys() - exceptions), errno.EPERM),
        # glibc falls back to clone, and a filter can inspect its flags.
        _refuse(["clone3"], errno.ENOSYS),
        _refuse(["socket", "socketpair"], errno.EAFNOSUPPORT, {"value": 10, "op": "SCMP_CMP_GT"}),
    ]
    for family in _OTHER_FAMILIES:
        rules.append(_refuse(["socket", "socketpair"], errno.EAFNOSUPPORT, {"value": family, "op": "SCMP_CMP_EQ"}))
    for command in DENIED_FCNTL.values():
        # The kernel reads only the low word of a command.
        test = {"index": 1, "value": _LOW_WORD, "valueTwo": command, "op": "SCMP_CMP_MASKED_EQ"}
        rules.append(_refuse(["fcntl"], errno.EPERM, test))
    for flag in () if namespaces else _NAMESPACE_FLAGS:
        test = {"value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}
        rules.append(_refuse(["clone"], errno.EPERM, test))
    return json.dumps(
        {"defaultAction": "SCMP_ACT_ALLOW", "architectures": [_ARCHITECTURES[machine]], "syscalls": rules}
    )


def _refuse(names: list[str], number: int, test: dict[str, Any] | None = None) -> dict[str, Any]:
    rule: dict[str, Any] = {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": number}
    return rule | ({"args": [{"index": 0, **test}]} if test else {})
