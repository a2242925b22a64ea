"""The script that a helper process runs: `python -P worker.py LIBRARY_FILE`; `HelperProcess` starts it.

It loads the library file by its path, confines itself, and then answers requests, one line of JSON each, on standard
output. A library file is a Python file with

    PACKAGES                    names of the packages that it reads after the confinement
    open_library(run_forked)    imports what it needs; returns a function from a request to a response, JSON objects

Text of models decides how long a library works and what it does. So the process gives up its rights before it reads any
such text, and the library handles each text in `run_forked`; the kernel limits its time and memory. With "try" as a
second argument the script confines itself, prints what that denies, and ends. Standard library only.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Request = dict[str, Any]
Write = Callable[[Any], None]
RunForked = Callable[..., tuple[list[Any], int]]


def main(library_file: str, *, is_trial: bool) -> None:
    library = _load(library_file)
    if is_trial:
        print(json.dumps(_confine(library.PACKAGES)))
        return
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    # Keep what the packages print out of the channel.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    try:
        answer = library.open_library(run_forked)
    except BaseException as error:
        channel.write(json.dumps({"failed": _describe(error)}) + "\n")
        raise SystemExit(1) from error
    channel.write(json.dumps({"enforced": _confine(library.PACKAGES)}) + "\n")
    for line in sys.stdin:
        try:
            response = json.dumps(answer(json.loads(line)), default=float)  # NumPy's numbers
        except Exception as error:
            response = json.dumps({"error": _describe(error)})
        channel.write(response + "\n")


def run_forked(
    work: Callable[[Write], None],
    *,
    cpu_seconds: float,
    wall_seconds: float,
    memory_bytes: int,
    control: Callable[[Write], None] | None = None,
) -> tuple[list[Any], int]:
    """Run `work` in a fork, and return the JSON values that it wrote and its exit code; a signal's is negative.

    Args:
        cpu_seconds: processor time; a fork that needs more ends with SIGPROF.
        wall_seconds: time on the clock, however busy the machine; it ends with SIGALRM.
        control: the same work without what the model has done, run if `work` raises. If it raises, too, the library is
            broken, which is an error here; else it is the model that the library has failed on.
    """
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, wall_seconds)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            with os.fdopen(writable, "w", buffering=1) as pipe:
                work(lambda value: print(json.dumps(value), file=pipe))
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writable)
    with os.fdopen(readable) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    values, exit_code = [json.loads(line) for line in text.split("\n")[:-1]], os.waitstatus_to_exitcode(status)
    if control is not None and (exit_code > 0 or (exit_code == 0 and not values)):
        limits = {"cpu_seconds": cpu_seconds, "wall_seconds": wall_seconds, "memory_bytes": memory_bytes}
        if exit_code == 0 or run_forked(control, **limits)[1] != 0:  # type: ignore[arg-type]
            raise RuntimeError(f"its fork ended with exit code {exit_code}")
    return values, exit_code


def _load(file: str) -> Any:
    spec = importlib.util.spec_from_file_location("library", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _confine(packages: Sequence[str]) -> dict[str, Any]:
    """Take from this process and its forks what the packages have no use for; return what is enforced."""
    folder = str(Path(__file__).parents[2] / "sandboxes" / "guest")
    sys.path.insert(0, folder)
    try:
        guest = importlib.import_module("guest_worker")
    finally:
        sys.path.remove(folder)
    specs = [importlib.util.find_spec(name) for name in packages]
    denials: dict[str, Any] = guest.confine([spec.origin for spec in specs if spec is not None and spec.origin])
    return denials


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main(sys.argv[1], is_trial=sys.argv[2:] == ["try"])
