"""Runs pytest in forks of a process that has imported what is slow to import: torch takes longer than most tests.

The working directory is a copy of the tree, whose packages only the forks import. For each line of standard input, the
arguments of pytest and a file for its output as JSON, two lines are printed: the fork's process id, which is its group
too, when it has begun, and its exit code, negative for a signal, when it has ended.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import signal
import sys

PRELOADED = ("pytest", "_pytest.assertion.rewrite", "pytest_asyncio", "hypothesis", "numpy", "pydantic", "torch")
_PR_SET_PDEATHSIG = 1


def preload() -> None:
    """Import the packages that are installed."""
    for name in PRELOADED:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)


def run(arguments: list[str], output: str) -> int:
    """Run pytest in this process, a fork; returns its exit code."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody would wait for it
    for descriptor, path, flags in ((0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY | os.O_CREAT)):
        file = os.open(path, flags, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    os.dup2(1, 2)

    import pytest

    return int(pytest.main(arguments))


def main() -> None:
    preload()
    for line in sys.stdin:
        request = json.loads(line)
        process = os.fork()
        if process == 0:
            sys.exit(run(request["arguments"], request["output"]))
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
