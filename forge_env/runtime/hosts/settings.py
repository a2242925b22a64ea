"""The hosts of a run: the settings, and the names of hosts that were started by somebody else."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from typing import Literal

from forge_env.core.errors import UserError

PORT = 22222
"""The default port of a host's program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """The hosts, and how long they may be silent.

    The kinds differ in who starts the program of a host:
        processes   this process, on this machine, as a Monarch ProcessJob: to try out what several hosts do
        workers     a person, with `python -m forge_env.runtime.host` on each machine
        slurm       a submit script, with srun on each node of this process's allocation
    """

    kind: Literal["processes", "workers", "slurm"]
    count: int = 0
    """Hosts to start, for "processes"; the other kinds count the existing hosts."""
    workers: str = ""
    """For "workers": NAME or NAME:PORT of each host, with commas or spaces between them."""
    port: int = PORT
    """The port of a host that names none."""
    connect_s: float = 120.0
    """Seconds for the program of a host to come up."""
    silence_s: float = 10.0
    """A host that has not answered for this number of seconds is given up."""
    lease_s: float = 60.0
    """A host that has heard nothing of the controller for this number of seconds ends the processes of the run. It is
    long because a controller that imports something large sends nothing meanwhile."""


def find_workers(settings: HostSettings) -> list[tuple[str, int]]:
    """Name and port of every host that somebody else started.

    Raises:
        UserError: a host is not NAME or NAME:PORT, there is no host at all, or no SLURM allocation.
    """
    names = slurm_nodes() if settings.kind == "slurm" else settings.workers.replace(",", " ").split()
    if not names:
        raise UserError("launcher.workers is empty: name every host, as in --launcher.workers one,two:22223")
    found = [_name_and_port(name, settings.port) for name in names]
    if twice := next((each for each in found if found.count(each) > 1), None):
        raise UserError(f"launcher.workers names {twice[0]}:{twice[1]} twice: name every host once")
    return found


def _name_and_port(text: str, default_port: int) -> tuple[str, int]:
    name, _, port = text.removeprefix("tcp://").partition(":")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name) or (port and not port.isdigit()):
        raise UserError(f"launcher.workers has {text!r}, which is not a host: write NAME or NAME:PORT")
    if port and not 0 < int(port) < 65536:
        raise UserError(f"launcher.workers has {text!r}, and a port is from 1 to 65535: write NAME or NAME:PORT")
    return name, int(port or default_port)


def slurm_nodes() -> list[str]:
    """The names of the nodes of this process's allocation, the first node first.

    Raises:
        UserError: this process is in no allocation.
    """
    nodes = os.environ.get("SLURM_JOB_NODELIST", "")
    if not nodes:
        raise UserError(
            "launcher.kind is slurm, and this is not inside of a SLURM allocation: submit the run with "
            "sbatch examples/slurm/submit.sh"
        )
    try:
        listed = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(
            f"SLURM does not say which nodes {nodes} are: scontrol show hostnames failed: {error}"
        ) from None
    return listed.stdout.split()
