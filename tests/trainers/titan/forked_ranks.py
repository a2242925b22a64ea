"""Ranks for tests: forks of one process that has imported everything, which each would need seconds for."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from tests.helpers.ports import free_ports

ROOT = Path(__file__).resolve().parents[3]


def run_script(script: str, root: Path, *, world: int, seconds: float) -> None:
    """Run `python SCRIPT ROOT WORLD`, whose main part calls `fork_ranks`; nothing of it is alive afterwards."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, script, str(root), str(world)]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        errors = process.communicate(timeout=seconds)[1]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors


def fork_ranks(be_a_rank: Callable[[], None], world: int) -> None:
    """Fork so many ranks, with the environment that torch reads, and wait for all; one that fails ends this process."""
    (port,) = free_ports(1)
    os.environ |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    def run(rank: int) -> None:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        be_a_rank()

    fork = multiprocessing.get_context("fork")
    running: dict[Any, Any] = {}
    for rank in range(world):
        process = fork.Process(target=run, args=(rank,))
        process.start()
        running[process.sentinel] = process
    while running:
        for sentinel in wait(list(running)):
            process = running.pop(sentinel)
            process.join()
            if process.exitcode:
                os._exit(1)  # `run_script` ends the ranks that wait for this one
