"""ReferenceActor: the frozen reference model of the KL penalty, in processes of its own, one for each rank.

It holds the policy that the run's reinforcement learning starts from: the model of `model.path`, or, where a warm-up
of the same run came first, the warmed-up weights, which are handed to it before the first step. They never change
afterwards. The trainer writes such weights, exact, to `reference.safetensors` in the run's folder, where a run that is
resumed finds them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from forge_env.runtime.actor import ForgeActor, concurrent_endpoint

if TYPE_CHECKING:
    import numpy as np

    from trainers.batching.batch import Sample
    from trainers.titan.settings import TitanSettings

T = TypeVar("T")
KEPT_AS = "reference.safetensors"


class ReferenceActor(ForgeActor):
    """Computes logprobs under weights that nobody trains.

    In all endpoints the ranks wait for each other, so all of them are called, and the first one answers. The model
    lives in one thread of its own, so that the actor answers while it computes.
    """

    idempotent = frozenset({"logprobs"})

    def __init__(self, *, model: str, settings: TitanSettings, **base: Any) -> None:
        super().__init__(**base)
        self._model = model
        self._settings = settings
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reference")
        self._reference: Any = None

    async def on_start(self) -> None:
        self._reference = await self._run(_make_reference, self._model, self._settings)

    async def on_finish(self) -> None:
        # Of several ranks, one may wait for another for ever, and so would this. Their processes are ended next anyway.
        if self._reference is not None and self._reference.world_size == 1:
            await self._run(self._reference.close)
        self._thread.shutdown(wait=False, cancel_futures=True)

    @concurrent_endpoint
    async def load(self, kept: str) -> None:
        """Take the weights of a file that `TrainerActor.write_weights` wrote."""
        await self._run(self._reference.load_file, kept)

    @concurrent_endpoint
    async def logprobs(self, samples: Sequence[Sample], temperature: float) -> list[np.ndarray] | None:
        """Logprobs of the sampled targets, per sample, in batches."""
        found = await self._run(self._reference.logprobs, samples, temperature)
        return found if self.rank == 0 else None

    async def _run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: function(*args, **kwargs))


def _make_reference(model: str, settings: TitanSettings) -> Any:
    from trainers.titan.reference import TitanReference

    return TitanReference(model, settings)
