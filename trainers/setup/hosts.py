"""The hosts of a run, as its config names them."""

from __future__ import annotations

import os

from forge_env.core.errors import UserError
from forge_env.runtime.hosts import HostSettings, find_workers
from trainers.config import RunConfig


def count_hosts(config: RunConfig) -> int:
    """How many hosts a run has; of a SLURM allocation that is not there yet, as many as the config expects."""
    launcher = config.launcher
    if launcher.kind == "workers":
        return max(1, len(launcher.workers.replace(",", " ").split()))
    if launcher.kind == "slurm":
        return int(os.environ.get("SLURM_JOB_NUM_NODES", launcher.hosts or 1))
    return launcher.hosts or 1


def host_settings(config: RunConfig) -> HostSettings | None:
    """How the hosts of a run are reached; None where this machine is the only one."""
    launcher = config.launcher
    if launcher.kind == "local":
        return None
    return HostSettings(
        kind=launcher.kind,
        count=count_hosts(config),
        workers=launcher.workers,
        port=launcher.port,
        silence_s=launcher.silence_seconds,
        lease_s=launcher.lease_seconds,
    )


def check_hosts(config: RunConfig) -> None:
    """Check which hosts are named; whether they answer is seen when the run starts.

    Raises:
        UserError: for hosts that the kind of launcher does not have, or not so many.
    """
    launcher = config.launcher
    if launcher.kind == "local" and launcher.hosts > 1:
        raise UserError(
            f"--launcher.hosts is {launcher.hosts} and --launcher.kind is local, which is this machine alone: set the "
            "kind to workers, slurm or processes"
        )
    if launcher.workers and launcher.kind != "workers":
        raise UserError(
            f"--launcher.workers names hosts and --launcher.kind is {launcher.kind}: --launcher.kind workers"
        )
    settings = host_settings(config)
    if settings is not None and settings.kind != "processes":
        find_workers(settings)
    count = count_hosts(config)
    if launcher.hosts not in (0, count):
        raise UserError(f"--launcher.hosts is {launcher.hosts}, and there are {count}: set it to {count}, or to 0")
