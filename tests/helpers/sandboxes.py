"""Sandboxes of tests, and processes that own one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from forge_env.core.errors import SandboxUnavailable
from sandboxes import open_sandbox

ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def opened(name: str = "namespace", **settings: Any) -> AsyncIterator[Any]:
    """A sandbox; the test is skipped if it cannot isolate here."""
    try:
        async with open_sandbox(name, **settings) as sandbox:
            yield sandbox
    except SandboxUnavailable as error:
        pytest.skip(str(error))


@contextmanager
def owner_of(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `code` with the modules of this checkout; it is killed at the end, if it lives then."""
    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if "site-packages" in entry)])
    environ = {"PYTHONPATH": path, "PATH": os.environ.get("PATH", "")}
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, cwd="/", env=environ, text=True, stdout=subprocess.PIPE) as owner:
        try:
            yield owner
        finally:
            owner.kill()


def said_by(owner: subprocess.Popen[str]) -> str:
    """The next line of a process."""
    assert owner.stdout is not None
    return owner.stdout.readline()
