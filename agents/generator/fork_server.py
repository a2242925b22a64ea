"""vLLM's worker processes as forks of a server that has imported vLLM.

A process that vLLM spawns imports torch and vLLM again, after the engine has done so. The fork server imports them
while the engine does. It never opens a GPU: a fork of a process that has could not use it.
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
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from forge_env.runtime.process.lifetime import die_with

logger = logging.getLogger(__name__)
MODULES = ("vllm.v1.executor.multiproc_executor", "vllm.v1.worker.gpu_worker")
"""What the server imports: vLLM imports the worker's class by its name, in the worker."""
_NOT_INITIALIZED = 3
"""CUDA_ERROR_NOT_INITIALIZED: cuInit's answer in a fork of a process that has called it."""


class WorkerProcess(ForkServerProcess):
    """A process that has the environment of the process that starts it, not that of the server, and dies with it.

    vLLM sets environment variables after the server has started. Only what libraries read as they are loaded,
    `LD_PRELOAD` and `OMP_*`, stays as it was then.
    """

    def start(self) -> None:
        self._starter = os.getpid()
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        die_with(self._starter)
        # Only what differs is written: vLLM's name for the process goes where the C library had the environment first.
        for name in os.environ.keys() - self._environment.keys():
            del os.environ[name]
        for name, value in self._environment.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        super().run()


class WorkerContext(ForkServerContext):
    """A context of multiprocessing whose processes are `WorkerProcess`."""

    Process = WorkerProcess


def start(modules: Sequence[str] = MODULES) -> None:
    """Start the fork server of this process, and return while it imports; it ends with this process and its forks."""
    multiprocessing.set_forkserver_preload(list(modules))
    forkserver.ensure_running()


@contextmanager
def vllm_forks() -> Iterator[None]:
    """Within, vLLM forks its workers from the server; it spawns them where such a fork could not use the GPU.

    vLLM has settings for fork and spawn only, so the function that it takes its context from is replaced.
    """
    executor: Any = importlib.import_module("vllm.v1.executor.multiproc_executor")
    context = WorkerContext()
    if not can_fork(context):
        logger.warning("the engine's worker processes import vLLM again: a fork could not use the GPU")
        yield
        return
    theirs = executor.get_mp_context
    executor.get_mp_context = lambda: context
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
    """Exit with 1 where the server has opened the GPU: torch refuses it then, or the driver."""
    import torch

    if torch.cuda._is_in_bad_fork():  # the server has asked for the number of GPUs, at least
        sys.exit(1)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return  # without a driver there is no GPU
    sys.exit(driver.cuInit(0) == _NOT_INITIALIZED)
