"""TrainerActor: a TitanTrainer in a process of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from forge_env.runtime import weights
from forge_env.runtime.actor import ForgeActor, concurrent_endpoint

if TYPE_CHECKING:
    from torch import nn

    from trainers.batch import Sample

T = TypeVar("T")


class TrainerActor(ForgeActor):
    """Steps the model and publishes its weights.

    The model lives in one thread of its own, so that the actor answers while it computes.
    """

    def __init__(self, *, model: str, settings: dict[str, Any], **base: Any) -> None:
        super().__init__(**base)
        self._model = model
        self._settings = settings
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer")
        self._trainer: Any = None

    async def on_start(self) -> None:
        self._trainer = await self._run(_make_trainer, self._model, self._settings)

    async def on_finish(self) -> None:
        if self._trainer is not None:
            await self._run(self._trainer.close)
        self._thread.shutdown(wait=False, cancel_futures=True)

    @concurrent_endpoint
    async def begin(self, learning_rate: float, warmup_steps: int) -> None:
        """Begin a phase of training: a fresh optimizer and schedule on the present weights."""
        await self._run(self._trainer.begin, learning_rate=learning_rate, warmup_steps=warmup_steps)

    @concurrent_endpoint
    async def train_step(self, samples: Sequence[Sample], loss: nn.Module, temperature: float) -> dict[str, float]:
        """One optimizer step; returns its metrics."""
        return await self._run(self._trainer.train_step, samples, loss, temperature=temperature)

    @concurrent_endpoint
    async def logprobs(self, samples: Sequence[Sample], temperature: float) -> list[list[float]]:
        """Logprobs of the sampled tokens under the present weights, per sample."""
        return await self._run(self._trainer.logprobs, samples, temperature)

    @concurrent_endpoint
    async def publish(self, version: int) -> float:
        """Put the present weights into the store; returns seconds."""
        started = time.perf_counter()
        await weights.publish(version, await self._run(self._trainer.hf_state_dict))
        return time.perf_counter() - started

    @concurrent_endpoint
    async def save(self, folder: str, step: int, extra: dict[str, Any]) -> None:
        """Write a checkpoint."""
        await self._run(self._trainer.save, folder, step, extra)

    @concurrent_endpoint
    async def export_hf(self, folder: str) -> None:
        """Write the model as a Hugging Face folder."""
        await self._run(self._trainer.export_hf, folder)

    async def _run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: function(*args, **kwargs))


def _make_trainer(model: str, settings: dict[str, Any]) -> Any:
    from trainers.titan import TitanSettings, TitanTrainer

    return TitanTrainer(model, TitanSettings(**settings))
