"""TrainerActor: a TitanTrainer in processes of its own, one for each rank.

A script that trains on batches of its own, in torchforge's form (see trainers/objective/torchforge_batch.py)::

    async with Launcher(Path("logs")) as launcher:
        settings = TitanSettings(learning_rate=1e-5, tensor_parallel_degree=2)
        trainer = spawn_trainer(launcher, "path/to/qwen3", settings, loss=GRPOLoss(), procs=2)
        await launcher.start("trainer")
        loss = await trainer.train_step.call(inputs, targets)

A run gives whole episodes instead, and wants to know more than the loss: `step`.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from forge_env.core.errors import UserError
from forge_env.runtime.actor import ForgeActor, concurrent_endpoint
from forge_env.runtime.process.ranks import AllRanks
from forge_env.utils.targets import load

if TYPE_CHECKING:
    import numpy as np

    from forge_env.runtime.launcher import Launcher
    from forge_env.runtime.weights import WeightStore
    from trainers.batching.batch import Sample
    from trainers.objective.loss_call import Loss
    from trainers.titan.settings import TitanSettings

T = TypeVar("T")


def spawn_trainer(
    launcher: Launcher,
    model: str,
    settings: TitanSettings,
    *,
    procs: int = 1,
    loss: Loss | None = None,
    store: WeightStore | None = None,
    store_dtype: str = "float32",
    environ: Mapping[str, str] | None = None,
    num_hosts: int = 1,
    imports: str = "",
) -> AllRanks:
    """Spawn the trainer, named "trainer", on `procs` processes; returns the handle of all of them.

    Args:
        launcher: its `start("trainer")` waits until the model is loaded.
        model: a Hugging Face folder.
        settings: of the trainer.
        procs: ranks, which is the product of the settings' degrees of data, tensor and context parallelism.
        loss: of `train_step`; see `TrainerActor.set_loss`.
        store: where `publish` puts the weights.
        store_dtype: of the published weights: that of the engines that fetch them.
        environ: of every process; CUDA_VISIBLE_DEVICES names the GPUs of all of them on one host, one for each.
        num_hosts: the first hosts of the launcher's, which share the processes.
        imports: a target in a file of the user's, which every process imports: it defines the class of the loss.
    """
    environ = allocator() | dict(environ or {})
    where: dict[str, Any] = {"procs": procs, "environ": environ, "num_hosts": num_hosts}
    options: dict[str, Any] = {"model": model, "settings": settings, "loss": loss}
    options |= {"store": store, "store_dtype": store_dtype, "imports": imports}
    return AllRanks(launcher.spawn("trainer", TrainerActor, **where, **options))


def allocator() -> dict[str, str]:
    """Environment by which torch's allocator lets its GPU memory grow in place, unless the user has set it up.

    Micro-batches are of different lengths. Without this, blocks of the one length are of no use for the next: a GPU of
    which a run came to hold 51 GiB then had less than 29 in use.
    """
    if any(
        os.environ.get(name) for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    ):
        return {}
    return {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


class TrainerActor(ForgeActor):
    """One rank of the trainer: steps the model and publishes its weights.

    In most endpoints the ranks wait for each other, so all of them are called with the same arguments, in the same
    order: `AllRanks` does it. The first rank answers, and the others answer None. The model lives in one thread of its
    own, so that the actor answers while it computes.
    """

    def __init__(
        self,
        *,
        model: str,
        settings: TitanSettings,
        loss: Loss | None = None,
        store: WeightStore | None = None,
        store_dtype: str = "float32",
        imports: str = "",
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self._model = model
        self._settings = settings
        self._loss = loss
        self._store = store
        self._store_dtype = store_dtype
        self._imports = imports
        self._taken: Any = None  # what `commit` commits
        self._temperature = 1.0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer")
        self._trainer: Any = None

    async def on_start(self) -> None:
        if self._store is not None:
            self._store.attach()
        with self.phase("import"):
            await self._in_thread(importlib.import_module, "trainers.titan.trainer")
            if self._imports:
                await self._in_thread(load, self._imports)
        with self.phase("load"):
            self._trainer = await self._in_thread(_make_trainer, self._model, self._settings)

    async def on_finish(self) -> None:
        # Of several ranks, one may wait for another for ever, and so would this. Their processes are ended next anyway.
        if self._trainer is not None and self._trainer.parallel.world_size == 1:
            await self._in_thread(self._trainer.close)
        self._thread.shutdown(wait=False, cancel_futures=True)

    @concurrent_endpoint
    async def begin(self, **changes: Any) -> None:
        """Begin a phase of training: a fresh optimizer and schedule on the present weights.

        `TitanTrainer.begin` says what may change.
        """
        await self._run(self._trainer.begin, **changes)

    @concurrent_endpoint
    async def step(
        self,
        samples: Sequence[Sample],
        loss: Loss,
        temperature: float,
        old_is_present: bool = False,
        compare_replay: bool = False,
    ) -> dict[str, float] | None:
        """One optimizer step on whole episodes, see `TitanTrainer.train_step`; returns its metrics."""
        options = {
            "temperature": temperature,
            "old_is_present": old_is_present,
            "compare_replay": compare_replay,
        }
        return await self._run(self._trainer.train_step, samples, loss, **options)

    @concurrent_endpoint
    async def set_loss(self, loss: Loss, temperature: float = 1.0) -> None:
        """Set the loss of `train_step`, and the temperature at which its tokens were sampled."""
        self._loss, self._temperature = loss, temperature

    @concurrent_endpoint
    async def train_step(
        self, inputs: Sequence[Mapping[str, Any]], targets: Sequence[Mapping[str, Any]]
    ) -> float | None:
        """One optimizer step on a batch in torchforge's form; returns the loss over all of it.

        Args:
            inputs: [{"tokens": (B, S) int64}], a dict for each data-parallel rank.
            targets: [{"response": (B, R), "ref_logprobs": (B, R), "advantages": (B, 1), "padding_mask": (B, R)}].

        Raises:
            UserError: the batch is not of that form (`trainers.objective.torchforge_batch` says it in full), or there
            is no loss.
        """
        return await self._run(self._train_step, inputs, targets)

    @concurrent_endpoint
    async def logprobs(self, samples: Sequence[Sample], temperature: float) -> list[np.ndarray] | None:
        """Logprobs of the sampled tokens under the present weights, per sample."""
        return await self._run(self._trainer.logprobs, samples, temperature)

    @concurrent_endpoint
    async def reference_logprobs(self, samples: Sequence[Sample], temperature: float) -> list[np.ndarray] | None:
        """Logprobs under the model that the adapters started from, see `TitanTrainer.reference_logprobs`."""
        return await self._run(self._trainer.reference_logprobs, samples, temperature)

    @concurrent_endpoint
    async def score(self, token_ids: Sequence[int], of_folder: bool = False) -> np.ndarray | None:
        """Logprobs of a row under the present weights, see `TitanTrainer.score`."""
        return await self._run(self._trainer.score, token_ids, of_folder=of_folder)

    @concurrent_endpoint
    async def keep_reference(self, folder: str, is_written: bool) -> None:
        """Make adapters those of `reference_logprobs`, see `TitanTrainer.keep_reference`."""
        await self._run(self._trainer.keep_reference, folder, is_written=is_written)

    @concurrent_endpoint
    async def publish(self, version: int) -> float | None:
        """Put the present weights into the store, `take` and `commit` in one; returns seconds."""
        started = time.perf_counter()
        await self._take_weights(version)
        await self._commit_weights()
        return time.perf_counter() - started if self.rank == 0 else None

    @concurrent_endpoint
    async def take(self, version: int) -> float | None:
        """Copy the present weights for the store; returns seconds. The next step cannot change them any more."""
        started = time.perf_counter()
        await self._take_weights(version)
        return time.perf_counter() - started if self.rank == 0 else None

    @concurrent_endpoint
    async def commit(self) -> float | None:
        """Let what was taken last be fetched, while steps go on; returns seconds."""
        started = time.perf_counter()
        await self._commit_weights()
        return time.perf_counter() - started if self.rank == 0 else None

    @concurrent_endpoint
    async def release_memory(self) -> None:
        """Give GPU memory that no tensor uses back, for who shares the GPU."""
        await self._run(self._trainer.release_memory)

    @concurrent_endpoint
    async def save(
        self,
        folder: str,
        step: int,
        extra: dict[str, Any],
        texts: dict[str, Sequence[bytes]] | None = None,
        asynchronous: bool = False,
        keep_last: int = 0,
    ) -> None:
        """Write a checkpoint, see `TitanTrainer.save`."""
        options = {"texts": texts, "asynchronous": asynchronous, "keep_last": keep_last}
        await self._run(self._trainer.save, folder, step, extra, **options)

    @concurrent_endpoint
    async def finish_saving(self) -> None:
        """Wait until an asynchronous checkpoint is written."""
        await self._run(self._trainer.finish_saving)

    @concurrent_endpoint
    async def load(self, folder: str) -> dict[str, Any] | None:
        """Go on from a checkpoint; returns the `extra` that was saved with it."""
        return await self._run(self._trainer.load, folder)

    @concurrent_endpoint
    async def export_hf(self, folder: str, texts: dict[str, str]) -> None:
        """Write the model as a Hugging Face folder, and files of text into it."""
        await self._run(self._trainer.export_hf, folder, texts=texts)

    @concurrent_endpoint
    async def export_adapter(self, folder: str, base: str, texts: dict[str, str]) -> None:
        """Write the adapters as a PEFT folder, and files of text into it."""
        await self._run(self._trainer.export_adapter, folder, base=base, texts=texts)

    @concurrent_endpoint
    async def write_weights(self, path: str) -> None:
        """Write the weights, exact, as one file, see `TitanTrainer.write_weights`."""
        await self._run(self._trainer.write_weights, path)

    def _train_step(self, inputs: Sequence[Mapping[str, Any]], targets: Sequence[Mapping[str, Any]]) -> float:
        from trainers.objective.torchforge_batch import loss_for, to_samples

        if self._loss is None:
            raise UserError("the trainer has no loss: give it one with set_loss(loss), or loss= where it is spawned")
        trainer = self._trainer
        samples = to_samples(inputs, targets, ranks=trainer.data_ranks, vocabulary=trainer.model.config.vocab_size)
        metrics = trainer.train_step(samples, loss_for(self._loss, targets), temperature=self._temperature)
        return float(metrics["loss"])

    async def _take_weights(self, version: int) -> None:
        if self._store is None:
            raise UserError("the trainer has no weight store: give it one with store= where it is spawned")
        # Copied in the model's thread, where no step can change what is being copied.
        self._taken = await self._in_thread(self._take, self._store, version)

    def _take(self, store: WeightStore, version: int) -> Any:
        import torch

        from forge_env.runtime.weights import TensorLayout, WeightStream

        model, dtype = self._trainer.model, getattr(torch, self._store_dtype)
        published = model.published
        layout = TensorLayout.of(published.layout(dtype))
        with published.stream(dtype) as tensors:  # all ranks gather them, one at a time; the first one keeps them
            return store.take(version, WeightStream(layout, model.device, tensors)) if self.rank == 0 else None

    async def _commit_weights(self) -> None:
        taken, self._taken = self._taken, None
        if self._store is not None and taken is not None:
            await self._store.commit(taken)

    async def _run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T | None:
        """Run in the model's thread; only the first rank keeps the result."""

        def run() -> T | None:
            result = function(*args, **kwargs)
            return result if self.rank == 0 else None

        return await self._in_thread(run)

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)


def _make_trainer(model: str, settings: TitanSettings) -> Any:
    from trainers.titan.trainer import TitanTrainer

    return TitanTrainer(model, settings)
