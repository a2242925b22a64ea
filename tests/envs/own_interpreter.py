"""An interpreter with packages from the index that can import modules of the tests as well."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.helpers.own_environment import ROOT, python_with

__all__ = ["ROOT", "own_interpreter"]


def own_interpreter(*packages: str, paths: Sequence[Path] = ()) -> Path:
    """Return the Python of an environment that holds packages; the test is skipped where they cannot be installed.

    Args:
        packages: requirements, with versions.
        paths: folders whose modules it can import as well.
    """
    python = python_with(*packages)
    if paths:
        [site] = (python.parent.parent / "lib").glob("python*/site-packages")
        (site / "forge_env_tests.pth").write_text("".join(f"{path}\n" for path in paths))
    return python
