"""How a container is hardened: everything that the engine is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forge_env.core.sandbox import Capabilities, Limits
from sandboxes.docker.engine import Engine
from sandboxes.docker.owner import labels
from sandboxes.docker.profile import seccomp_profile

_OWN_MEMORY_BYTES = 64 * 2**20
"""What agent and zygote may need beside the snippet."""
_MAX_PROCESSES = 1024
"""Of a container; the agent sets the limit of the snippet."""
_LEAST_TMP_BYTES = 2 * 2**20
_AGENT_USER, _ROOT = "65532:65532", "0:0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How the containers of one sandbox are made."""

    image: str
    namespaces: bool
    """Whether the agent confines each snippet in namespaces of its own; if not, the container is all there is."""
    cpus: float
    runtime: str | None
    why_none: str = ""
    """Without namespaces: why."""
    proved: Capabilities | None = None
    """What a container of this recipe has proved."""


def memory_needed(limits: Limits) -> int:
    """Return the memory limit of a container for `limits`; the files of the snippet count as its memory."""
    return limits.memory_bytes + _OWN_MEMORY_BYTES


async def create(engine: Engine, recipe: Recipe, limits: Limits) -> str:
    """Create a container, which is not started, and return its id. Raises SandboxError."""
    api = engine.client.api
    host = api.create_host_config(**_settings(engine, recipe, limits))
    if recipe.namespaces:
        # A user namespace may mount a /proc only while it can see a whole one. The snippet sees its own processes only.
        host |= {"MaskedPaths": [], "ReadonlyPaths": []}
    made = await engine.call(
        api.create_container,
        recipe.image,
        command=["namespace" if recipe.namespaces else "plain", *(["proved"] if recipe.proved else [])],
        # Only root can have capabilities in a container; it has what it needs to become another user for good.
        user=_AGENT_USER if recipe.namespaces else _ROOT,
        hostname="sandbox",
        stdin_open=True,
        labels=labels(),
        host_config=host,
    )
    return str(made["Id"])


def _settings(engine: Engine, recipe: Recipe, limits: Limits) -> dict[str, Any]:
    tmp_bytes = max(limits.tmp_bytes, _LEAST_TMP_BYTES)
    settings: dict[str, Any] = {
        "auto_remove": True,
        "cap_drop": ["ALL"],
        "init": True,
        "ipc_mode": "private",
        "log_config": {"Type": "none"},
        "mem_limit": memory_needed(limits),
        "memswap_limit": memory_needed(limits),
        "nano_cpus": int(recipe.cpus * 1e9),
        "network_mode": "none",
        "pids_limit": _MAX_PROCESSES,
        "read_only": True,
        "security_opt": [
            "no-new-privileges",
            f"seccomp={seccomp_profile(engine.machine, namespaces=recipe.namespaces)}",
        ],
        "shm_size": tmp_bytes,
        "tmpfs": {"/tmp": f"size={tmp_bytes},nr_inodes=4096,mode=1777,nosuid,nodev,noexec"},
        "ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}, {"Name": "nofile", "Soft": 4096, "Hard": 4096}],
    }
    if recipe.runtime:
        settings["runtime"] = recipe.runtime
    if recipe.namespaces:
        # AppArmor's profile for containers forbids every mount; the seccomp filter of the snippet forbids them as well.
        settings["security_opt"].append("apparmor=unconfined")
    else:
        settings["cap_add"] = ["SETUID", "SETGID", "SETPCAP", "KILL"]
    return settings
