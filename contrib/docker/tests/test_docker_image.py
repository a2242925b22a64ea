"""What goes into the image of the docker sandbox. Needs no engine."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from contrib.docker.image import agent_files, build_context

ROOT = Path(__file__).parents[3]


def test_the_context_is_the_same_for_the_same_files() -> None:
    assert build_context() == build_context()


def test_the_context_holds_the_agent_and_nothing_of_the_host_side() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in agent_files()}
    assert {
        "contrib/docker/agent.py",
        "sandboxes/guest/guest.py",
        "contrib/docker/guest_plain.py",
        "forge_env/core/sandbox.py",
    } <= files
    assert not files & {"contrib/docker/backend.py", "contrib/docker/engine.py", "forge_env/__init__.py"}
    assert not any(name.startswith(("envs/", "agents/", "trainers/", "forge_env/runtime")) for name in files)


def test_the_agent_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(build_context())) as tar:
        tar.extractall(tmp_path, filter="data")
    python = getattr(sys, "_base_executable", None) or sys.executable
    code = "import contrib.docker.agent as a, sandboxes.host.namespace; print(a.__file__)"
    environ = {"PYTHONPATH": str(tmp_path / "agent"), "PATH": os.environ.get("PATH", "")}
    command = [python, "-P", "-s", "-S", "-B", "-c", code]
    done = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "agent/contrib/docker/agent.py")


def test_the_dockerfile_takes_the_base_image_as_an_argument() -> None:
    with tarfile.open(fileobj=io.BytesIO(build_context())) as tar:
        member = tar.extractfile("Dockerfile.sandbox")
        assert member is not None
        lines = member.read().decode().splitlines()
    assert "ARG BASE_IMAGE=python:3.12-slim" in lines and "FROM ${BASE_IMAGE}" in lines
