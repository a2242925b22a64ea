"""A Python that an ordinary user runs, for tests that root runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USER = 61234
"""An id of a user and a group that no machine has."""


@dataclass(frozen=True)
class OrdinaryPython:
    """`Popen([*command, "-c", code], env=environ, cwd="/")` runs code as the user; the process is Python's own."""

    command: list[str]
    environ: dict[str, str]


def ordinary_python() -> OrdinaryPython:
    """Return a system Python of this version with the project and all installed packages on its path.

    Skips the test if there is none, or if the user may not read the checkout or its packages.
    """
    python = shutil.which(f"python{sys.version_info.major}.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")
    if os.geteuid() != 0 or shutil.which("setpriv") is None or python is None:
        pytest.skip("it needs root, setpriv and a system Python of this version")
    path = [str(ROOT), *(entry for entry in sys.path if "site-packages" in entry)]
    environ = {"PYTHONPATH": os.pathsep.join(path), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", python]
    trial = subprocess.run([*command, "-c", "import pydantic, forge_env"], env=environ, cwd="/", capture_output=True)
    if trial.returncode:
        pytest.skip(f"an ordinary user cannot import the project here: {trial.stderr.decode().strip()[-200:]}")
    return OrdinaryPython(command, environ)
