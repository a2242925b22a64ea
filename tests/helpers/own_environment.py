"""Environments of Python with packages from the index, for tests of what our own environment must not hold."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTALL_SECONDS = 400.0


@functools.cache
def python_with(*packages: str) -> Path:
    """Return the Python of an environment that holds the packages; made once, in .cache/. Skips where that fails.

    Example: ``python_with("ors-sdk==0.1.0")``
    """
    folder = ROOT / ".cache" / re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(packages))
    python, ready = folder / "bin" / "python", folder / ".ready"
    if ready.exists():
        return python
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not installed")
    environ = {"UV_CACHE_DIR": str(ROOT / ".cache" / "uv"), **os.environ}
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder],
        [uv, "pip", "install", "--quiet", "--python", python, *packages],
    ):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        if done.returncode:
            pytest.skip(f"{' '.join(packages)} cannot be installed: {done.stderr.strip()[-300:]}")
    ready.touch()
    return python
