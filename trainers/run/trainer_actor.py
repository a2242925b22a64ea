"""TrainerActor: a TitanTrainer, or a frozen reference model, in processes of its own, one for each rank.

A script that trains on samples of its own (`trainers/batching/batch.py`)::

    async with Launcher(Path("logs")) as launcher:
        settings = TitanSettings(learning_rate=1e-5, tensor_parallel_degree=2)
        trainer = spawn_trainer(launcher, "path/to/qwen3", settings, procs=2)
        await launcher.start("trainer")
        metrics = await trainer.step.call_one(samples, GRPOLoss())
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from forge_env.core.errors import UserError
from forge_env.runtime.actor import ForgeActor, concurrent_endpoint
from forge_env.runtime.calls.endpoints import Endpoint
from forge_env.runtime.process.ranks import AllRanks
from forge_env.utils.quick_imports import quick_imports
from forge_env.utils.targets import load

if TYPE_CHECKING:
    from forge_env.runtime.launcher import Launcher
    from forge_env.runtime.weights import WeightStore
    from trainers.titan.settings import TitanSettings
    from trainers.titan.trainer import TitanTrainer
else:

    class _Methods:
        """Stands for a class with a module that is slow to import: its methods are looked up when they are called."""

        def __getattr__(self, name: str) -> Callable[..., Any]:
            return lambda trainer, *args, **kwargs: getattr(trainer, name)(*args, **kwargs)

    TitanTrainer = _Methods()  # it imports torch and TorchTitan, which the controller does without

P = ParamSpec("P")
R = TypeVar("R")


def spawn_trainer(
    launcher: Launcher,
    model: str,
    settings: TitanSettings,
    *,
    procs: int = 1,
    store: WeightStore | None = None,
    store_dtype: str = "float32",
    environ: Mapping[str, str] | None = None,
    num_hosts: int = 1,
    imports: str = "",
) -> AllRanks[TrainerActor]:
    """Spawn the trainer, named "trainer", on `procs` processes; returns the handle of all of them.

    Args:
        launcher: its `start("trainer")` waits until the model is loaded.
        procs: ranks, which is the product of the settings' degrees of data, tensor and context parallelism.
        store: of published weights.
        store_dtype: of the published weights; the engines must use the same.
        environ: of every process; CUDA_VISIBLE_DEVICES names the GPUs of all of them on one host, one for each.
        num_hosts: the first hosts of the launcher's, which share the processes.
        imports: a target in a file of the user's, which every process imports: it defines the class of the loss.
    """
    actor = launcher.spawn(
        "trainer",
        TrainerActor,
        procs=procs,
        environ=allocator() | dict(environ or {}),
        num_hosts=num_hosts,
        model=model,
        settings=settings,
        store=store,
        store_dtype=store_dtype,
        imports=imports,
    )
    return AllRanks(actor)


def allocator() -> dict[str, str]:
    """Environment that lets the GPU memory of torch's allocator grow in place, unless the user has set it.

    Micro-batches are of different lengths. Without this, blocks of the one length are of no use for the next: a run
    came to hold 51 GiB of a GPU, and less than 29 were in use.
    """
    if any(
        os.environ.get(name) for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    ):
        return {}
    return {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def _in_thread(method: Callable[Concatenate[TitanTrainer, P], R]) -> Endpoint[TrainerActor, P, R | None]:
    """Make a method of the trainer an endpoint. It runs in the actor's thread, and the first rank answers."""

    async def endpoint(self: TrainerActor, *args: P.args, **kwargs: P.kwargs) -> R | None:
        return await self.in_thread(lambda: method(self.trainer, *args, **kwargs))

    return Endpoint(endpoint)


class TrainerActor(ForgeActor):
    """One rank of a trainer, or of a frozen reference model.

    In most endpoints the ranks wait for each other, so all of them are called with the same arguments, in the same
    order: `AllRanks` does it. The first rank answers, and the others answer None. The trainer lives in one thread of
    its own, so that the actor answers while the model computes.

    Args:
        is_frozen: see `TitanTrainer`.
        store: of published weights.
        store_dtype: of those weights.
        imports: a target in a file of the user's, which is imported first; "" for none.
    """

    idempotent = frozenset({"logprobs", "top_logprobs"})
    trainer: TitanTrainer
    begin = _in_thread(TitanTrainer.begin)
    end_at = _in_thread(TitanTrainer.end_at)
    step = _in_thread(TitanTrainer.train_step)
    logprobs = _in_thread(TitanTrainer.logprobs)
    top_logprobs = _in_thread(TitanTrainer.top_logprobs)
    reference_logprobs = _in_thread(TitanTrainer.reference_logprobs)
    score = _in_thread(TitanTrainer.score)
    keep_reference = _in_thread(TitanTrainer.keep_reference)
    release_memory = _in_thread(TitanTrainer.release_memory)
    save = _in_thread(TitanTrainer.save)
    finish_saving = _in_thread(TitanTrainer.finish_saving)
    load = _in_thread(TitanTrainer.load)
    export_hf = _in_thread(TitanTrainer.export_hf)
    export_adapter = _in_thread(TitanTrainer.export_adapter)
    write_weights = _in_thread(TitanTrainer.write_weights)
    read_weights = _in_thread(TitanTrainer.read_weights)

    def __init__(
        self,
        *,
        model: str,
        settings: TitanSettings,
        is_frozen: bool = False,
        store: WeightStore | None = None,
        store_dtype: str = "float32",
        imports: str = "",
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self._arguments: dict[str, Any] = {"model_path": model, "settings": settings, "is_frozen": is_frozen}
        self._imports, self._store, self._store_dtype = imports, store, store_dtype
        self._copy: Any = None  # what `commit` commits
        self._layout: Any = None  # of every version
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._is_alone = False

    async def on_start(self) -> None:
        if self._store is not None:
            self._store.attach()
        with self.phase("import"), quick_imports():
            trainer_class = await self._run(load, "trainers.titan.trainer:TitanTrainer")
            if self._imports:
                await self._run(load, self._imports)
        with self.phase("load"):
            self.trainer = await self._run(partial(trainer_class, **self._arguments))
        self._is_alone = self.trainer.parallel.world_size == 1

    async def on_finish(self) -> None:
        # Of several ranks, one may wait for another for ever, and so would this. Their processes are ended next anyway.
        if self._is_alone:
            await self._run(self.trainer.close)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def in_thread(self, work: Callable[[], R]) -> R | None:
        """Run work in the trainer's thread; returns its result on the first rank, and None on the others."""
        result = await self._run(work)
        return result if self.rank == 0 else None

    async def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    @concurrent_endpoint
    async def take(self, version: int) -> float | None:
        """Copy the present weights for the store; returns seconds. The next step cannot change them any more."""
        start_time = time.perf_counter()
        await self.in_thread(lambda: self._take(version))
        return self._since(start_time)

    @concurrent_endpoint
    async def commit(self) -> float | None:
        """Let what was taken last be fetched, while steps go on; returns seconds."""
        started = time.perf_counter()
        copy, self._copy = self._copy, None
        if self._store is not None and copy is not None:
            await self._store.commit(copy)
        return self._since(started)

    def _take(self, version: int) -> None:
        """Copy the weights in the model's thread, in which no step can change them meanwhile."""
        import torch

        from forge_env.runtime.weights import TensorLayout, WeightStream

        if self._store is None:
            raise UserError("the trainer has no weight store: give it one with store= where it is spawned")
        weights, dtype = self.trainer.model.published_weights, getattr(torch, self._store_dtype)
        self._layout = self._layout or TensorLayout.of(weights.layout(dtype))
        with weights.stream(dtype) as tensors:  # all ranks gather them, one at a time; the first one keeps them
            if self.rank == 0:
                self._copy = self._store.take(version, WeightStream(self._layout, self.trainer.device, tensors))

    def _since(self, started: float) -> float | None:
        return time.perf_counter() - started if self.rank == 0 else None
