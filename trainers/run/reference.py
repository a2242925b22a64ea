"""ReferenceActor: the frozen reference model of the KL penalty, in a process of its own.

It holds the policy that the run's reinforcement learning starts from: the model of `model.path`, or, where a warm-up
of the same run came first, the warmed-up weights, which are handed to it before the first step. They never change
afterwards. A run that is resumed reads them from `reference.safetensors` in its folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from forge_env.runtime.actor import ForgeActor, concurrent_endpoint

if TYPE_CHECKING:
    import numpy as np

    from forge_env.runtime.weights import WeightStore
    from trainers.batching.batch import Sample

T = TypeVar("T")
KEPT_AS = "reference.safetensors"


class ReferenceActor(ForgeActor):
    """Computes logprobs under weights that nobody trains.

    The model lives in one thread of its own, so that the actor answers while it computes.
    """

    idempotent = frozenset({"logprobs"})

    def __init__(self, *, model: str, settings: dict[str, Any], store: WeightStore, **base: Any) -> None:
        super().__init__(**base)
        self._store = store
        self._model = model
        self._settings = settings
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reference")
        self._reference: Any = None

    async def on_start(self) -> None:
        self._store.attach()
        self._reference = await self._run(_make_reference, self._model, self._settings)

    async def on_finish(self) -> None:
        if self._reference is not None:
            await self._run(self._reference.close)
        self._thread.shutdown(wait=False, cancel_futures=True)

    @concurrent_endpoint
    async def pull(self, version: int, keep: str, seconds: float = 300.0) -> None:
        """Take a published snapshot for good, and keep it in a file for `load`.

        Args:
            version: of the snapshot.
            keep: the file.
            seconds: that its checksum may take.
        """
        await self._store.verify(version, seconds=seconds)  # once in a run, for what is kept for good
        async with self._store.fetch(version) as state_dict:
            await self._run(self._reference.load, state_dict)
        await self._run(self._reference.save_file, keep)

    @concurrent_endpoint
    async def load(self, kept: str) -> None:
        """Take the weights of a file that `pull` kept."""
        await self._run(self._reference.load_file, kept)

    @concurrent_endpoint
    async def logprobs(self, samples: Sequence[Sample], temperature: float) -> list[np.ndarray]:
        """Logprobs of the sampled targets, per sample, in batches."""
        return await self._run(self._logprobs, samples, temperature)

    def _logprobs(self, samples: Sequence[Sample], temperature: float) -> list[np.ndarray]:
        from trainers.batching.packed_samples import as_arrays

        return as_arrays(self._reference.logprobs(samples, temperature))

    async def _run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: function(*args, **kwargs))


def _make_reference(model: str, settings: dict[str, Any]) -> Any:
    from trainers.titan.reference import TitanReference

    return TitanReference(model, **settings)
