"""Describes what a benchmark ran on, so that a result can be read later."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainers.run.run_record import machine, versions

REPOSITORY = Path(__file__).parents[1]
_GPUS = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,pstate", "--format=csv,noheader"]
_CODE = [".", ":!benchmarks/results", ":!docs"]
"""What a change of the tree can change figures with: a benchmark itself writes results and pictures."""


def describe() -> dict[str, Any]:
    """Processor, cores, memory, system, package versions, GPUs with their driver, and the commit of the tree.

    "-dirty" behind the commit says that the code was changed after it. In a tree without git, the environment variable
    COMMIT names the commit.
    """
    return {**machine(), "versions": versions(), "gpus": _said(_GPUS).splitlines(), "commit": _commit()}


def _commit() -> str:
    git = ["git", "-C", str(REPOSITORY)]
    changed = _said([*git, "status", "--porcelain", "--untracked-files=no", "--", *_CODE])
    head = _said([*git, "rev-parse", "--short", "HEAD"])
    return (f"{head}-dirty" if changed else head) or os.environ.get("COMMIT", "")


def _said(command: Sequence[str]) -> str:
    """What a command prints; nothing if it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
