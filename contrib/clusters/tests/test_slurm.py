"""The submit script, with stand-ins for SLURM's own programs: it has not met a cluster."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.ports import free_ports

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "slurm_programs"
SUBMIT = ROOT / "examples" / "slurm" / "submit.sh"
NODES = ("127.0.0.1", "127.0.0.2")


def submit(*arguments: str, nodes: tuple[str, ...] = NODES, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run the script as SLURM would on the first node of an allocation."""
    (port,) = free_ports(1)
    allocation = {
        "SLURM_JOB_NODELIST": ",".join(nodes),
        "SLURM_JOB_NUM_NODES": str(len(nodes)),
        "SLURM_SUBMIT_DIR": str(ROOT),
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
        "PYTHON": sys.executable,  # `make test PYTHON=...` hands down the one that .venv was made with
        "PORT": str(port),
    }
    command = ["bash", str(SUBMIT), *arguments]
    return subprocess.run(
        command, env=os.environ | allocation, capture_output=True, text=True, timeout=seconds, cwd=ROOT
    )


@pytest.mark.parametrize("program", [SUBMIT, *sorted(PROGRAMS.iterdir())], ids=lambda path: path.name)
def test_the_programs_are_sound(program: Path) -> None:
    assert os.access(program, os.X_OK)
    subprocess.run(["bash", "-n", str(program)], check=True)
    if shutil.which("shellcheck"):
        checked = subprocess.run(["shellcheck", str(program)], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout


def test_without_a_config_it_says_how_it_is_used() -> None:
    ended = submit("nowhere.yaml")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("usage: sbatch [options] examples/slurm/submit.sh CONFIG.yaml")


def test_a_dry_run_names_the_hosts_of_the_allocation() -> None:
    ended = submit("recipes/tiny_cpu.yaml", "--dry-run")
    for host in ("host 0, CPU, 2 threads", "host 1, CPU, 1 thread"):  # the trainer, and the generator beside it
        assert host in ended.stdout
    assert ended.returncode == 0, ended.stderr


def test_a_mistake_is_the_exit_code_of_the_job() -> None:
    ended = submit("recipes/tiny_cpu.yaml", "--dry-run", "--launcher.hosts", "3")
    assert ended.returncode == 2
    assert "error: --launcher.hosts is 3, and there are 2: set it to 2, or to 0" in ended.stderr


@pytest.mark.slow
def test_a_run_trains_on_both_nodes_and_the_hosts_end_with_it(tmp_path: Path) -> None:
    small = ["--steps=2", "--warmup.steps=2", "--warmup.until_success=1", "--dataset.held_out=4"]
    small += ["--warmup.probe_tasks=4", "--training.batch_size=2", "--grpo.n_samples=2"]
    small += ["--training.entropy_coef=0.01"]  # so that each step trains, whatever its rewards
    folder = tmp_path / "run"
    ended = submit("recipes/tiny_cpu.yaml", f"--output={folder}", *small, seconds=420.0)
    assert ended.returncode == 0, ended.stderr
    assert f"2 hosts: 0 on {socket.gethostname()}, 1 on {socket.gethostname()}" in ended.stdout
    assert json.loads((folder / "summary.json").read_text())
    # srun's tasks have this script's standard output: `submit` would not have returned with one of them left.
