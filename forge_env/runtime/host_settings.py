"""The hosts of a run: the settings, and the names of hosts that were started by somebody else."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from forge_env.core.errors import UserError

PORT = 22222
"""Where the program of a host listens, unless it is told otherwise."""
MOST_HOSTS = 4096


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """Which hosts a run has, and how long they may be silent: options of its section `launcher`."""

    kind: Literal["local", "processes", "workers", "slurm"] = "local"
    """"local" is this machine, "workers" names machines on which the program of a host waits, "slurm" is the
    nodes of the allocation that examples/slurm/submit.sh asks for, and "processes" tries out what several machines do
    with processes on this one."""
    hosts: Annotated[int, Interval(ge=0, le=MOST_HOSTS)] = 0
    """How many hosts; 0 is as many as are named or allocated, and one for the other kinds."""
    workers: str = ""
    """For "workers": NAME or NAME:PORT of each, with commas between them."""
    port: Annotated[int, Interval(ge=1, le=65535)] = PORT
    """Port of the hosts that name none."""
    silence_seconds: Annotated[float, Ge(2)] = 10.0
    """A host that does not answer within this time is given up."""
    lease_seconds: Annotated[float, Ge(5)] = 60.0
    """A host that hears nothing of the run for this time ends the run's processes on it."""

    @property
    def count(self) -> int:
        """How many hosts; of a SLURM allocation that is not there yet, as many as are expected."""
        if self.kind == "workers":
            return max(1, len(self.workers.replace(",", " ").split()))
        if self.kind == "slurm":
            return int(os.environ.get("SLURM_JOB_NUM_NODES", self.hosts or 1))
        return self.hosts or 1

    def check(self) -> None:
        """Check which hosts are named. A start sees whether they answer, and whether it is in a SLURM allocation."""
        if self.kind == "local" and self.hosts > 1:
            raise UserError(
                f"--launcher.hosts is {self.hosts} and --launcher.kind is local, which is this machine alone: set the "
                "kind to workers, slurm or processes"
            )
        if self.workers and self.kind != "workers":
            what = f"--launcher.workers names hosts and --launcher.kind is {self.kind}"
            raise UserError(f"{what}: --launcher.kind workers")
        if self.kind == "workers":
            find_workers(self)
        if self.hosts not in (0, self.count):
            remedy = f"set it to {self.count}, or to 0"
            raise UserError(f"--launcher.hosts is {self.hosts}, and there are {self.count}: {remedy}")


def find_workers(settings: HostSettings) -> list[tuple[str, int]]:
    """Name and port of every host that somebody else started."""
    names = slurm_nodes() if settings.kind == "slurm" else settings.workers.replace(",", " ").split()
    if not names:
        raise UserError("launcher.workers is empty: name every host, as in --launcher.workers one,two:22223")
    addresses = [_name_and_port(name, settings.port) for name in names]
    if twice := next((each for each in addresses if addresses.count(each) > 1), None):
        raise UserError(f"launcher.workers names {twice[0]}:{twice[1]} twice: name every host once")
    return addresses


def _name_and_port(text: str, default_port: int) -> tuple[str, int]:
    name, _, port = text.removeprefix("tcp://").partition(":")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name) or (port and not port.isdigit()):
        raise UserError(f"launcher.workers has {text!r}, which is not a host: write NAME or NAME:PORT")
    if port and not 0 < int(port) < 65536:
        raise UserError(f"launcher.workers has {text!r}, and a port is from 1 to 65535: write NAME or NAME:PORT")
    return name, int(port or default_port)


def slurm_nodes() -> list[str]:
    """The names of the nodes of this process's allocation, the first node first."""
    nodes = os.environ.get("SLURM_JOB_NODELIST", "")
    if not nodes:
        raise UserError(
            "launcher.kind is slurm, and this is not inside of a SLURM allocation: submit the run with "
            "sbatch examples/slurm/submit.sh"
        )
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"scontrol show hostnames failed: {error}"
        raise UserError(f"SLURM does not say which nodes {nodes} are: {reason}") from None
