"""vLLM's worker processes as forks of a server that has imported vLLM.

A process that vLLM spawns imports torch and vLLM again, after the engine has done so. The fork server imports them at
the same time as the engine. It never opens a GPU: forks of a process that has opened one could not use it.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import ModuleType
from typing import Any

from forge_env.runtime.process.children import die_with

logger = logging.getLogger(__name__)
_NOT_INITIALIZED = 3
"""CUDA_ERROR_NOT_INITIALIZED: cuInit's answer in a fork of a process that has called cuInit."""


class WorkerProcess(ForkServerProcess):
    """A process with the environment of its starter instead of the server's. It dies with its starter.

    vLLM sets environment variables after the server has started. Libraries read `LD_PRELOAD` and `OMP_*` only when they
    are loaded, so these two keep the server's values.
    """

    def start(self) -> None:
        self._starter = os.getpid()
        self._environment = dict(os.environ)
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # the fork would run a user's script, which it has no use for
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main

    def run(self) -> None:
        die_with(self._starter)
        # Only differences are written: vLLM writes the process's name over the place of the first environment.
        for name in os.environ.keys() - self._environment.keys():
            del os.environ[name]
        for name, value in self._environment.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        super().run()


class WorkerContext(ForkServerContext):
    """A context of multiprocessing that makes each process a `WorkerProcess`."""

    Process = WorkerProcess


def start(modules: Sequence[str] = ("agents.generator.worker_imports",)) -> None:
    """Start the fork server of this process, and return while it imports; it ends with this process and its forks."""
    multiprocessing.set_forkserver_preload(list(modules))
    forkserver.ensure_running()


@contextmanager
def vllm_forks() -> Iterator[None]:
    """In this context vLLM forks its workers from the server; if such a fork could not use the GPU, vLLM spawns them.

    vLLM has settings for fork and spawn only, so the function that gives vLLM its context is replaced. vLLM calls it
    when it knows its configuration: until then the server may import.
    """
    executor: Any = importlib.import_module("vllm.v1.executor.multiproc_executor")
    theirs = executor.get_mp_context

    @cache
    def ours() -> Any:
        if can_fork(context := WorkerContext()):
            return context
        logger.warning("the engine's worker processes import vLLM again: a fork could not use the GPU")
        return theirs()

    executor.get_mp_context = ours
    try:
        yield
    finally:
        executor.get_mp_context = theirs


def can_fork(context: WorkerContext) -> bool:
    """Whether the server is up, and its forks can use the GPU; waits until the server has imported its modules."""
    process = context.Process(target=_check_gpu)
    try:
        process.start()
    except (OSError, EOFError):
        return False
    process.join()
    return process.exitcode == 0


def _check_gpu() -> None:
    """Exit with 1 if the server has opened the GPU: torch or the driver then refuses it."""
    import torch

    if torch.cuda._is_in_bad_fork():  # the server has at least asked for the number of GPUs
        sys.exit(1)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return  # without a driver there is no GPU
    sys.exit(driver.cuInit(0) == _NOT_INITIALIZED)
