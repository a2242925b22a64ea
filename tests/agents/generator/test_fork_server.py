"""Processes forked from the server: they see today's environment, and none outlives the process that started them.

The server imports small modules here: how vLLM's workers come of it is in tests/agents/test_vllm_parallel.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[3]
TELLER = """
import os, sys, time

def tell(connection):
    connection.send((os.getppid(), "fractions" in sys.modules, os.environ.get("LATE"), os.environ.get("EARLY")))
    time.sleep(3600)
"""
STARTER = """
import os, time
from agents.generator import fork_server
from teller import tell

os.environ["EARLY"] = "1"
fork_server.start(["fractions"])
context = fork_server.WorkerContext()
del os.environ["EARLY"]
os.environ["LATE"] = "2"
ours, theirs = context.Pipe()
process = context.Process(target=tell, args=(theirs,))
process.start()
print(process.pid, *ours.recv(), flush=True)
time.sleep(3600)
"""
"""A user's script, without a guard: a fork that ran it would start processes of its own."""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "starter.py"
    path.write_text(STARTER)
    (tmp_path / "teller.py").write_text(TELLER)
    return path


def test_a_fork_has_the_modules_of_the_server_and_the_environment_of_its_starter_and_dies_with_it(script: Path) -> None:
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(ROOT)}) as starter:
        try:
            assert starter.stdout is not None
            pid, parent, *rest = starter.stdout.readline().split()
            assert rest == ["True", "2", "None"]
            everyone = psutil.Process(starter.pid).children(recursive=True)
            assert {int(pid), int(parent)} < {process.pid for process in everyone}
        finally:
            starter.kill()
    assert not psutil.wait_procs(everyone, timeout=30)[1]


def test_a_server_that_cannot_import_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "broken_at_import.py").write_text("raise RuntimeError")
    (script := tmp_path / "starter.py").write_text("""
from agents.generator import fork_server

if __name__ == "__main__":
    fork_server.start(["broken_at_import"])
    print(fork_server.can_fork(fork_server.WorkerContext()))
""")
    environ = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environ, timeout=120)
    assert done.stdout.split() == ["False"], done.stderr
