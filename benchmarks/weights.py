"""Weights from one process to another: shared memory against plain memory copies, and against TorchStore's RPC path.

    python -m benchmarks.weights [--gib 1] [--json FILE]

A state dict of float32 matrices is published by one actor and fetched by another, into tensors that are there already,
as an engine's are. Copies of the same tensors inside of the publishing and of the fetching process, measured between
the others, are what memory gives at that time. Everything is taken in turns, best of the rounds; each process has one
thread. `first` are the publishes that make the memory, one for each segment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.machine import describe
from forge_env.runtime.actor import ForgeActor, concurrent_endpoint
from forge_env.runtime.launcher import Launcher, within
from forge_env.runtime.weights import SharedMemoryStore, TorchStoreWeights, WeightStore

if TYPE_CHECKING:
    from torch import Tensor

TENSORS, ROUNDS, RPC_ROUNDS, SEGMENTS = 256, 7, 3, 2
DEADLINE_S = 300.0


class Holder(ForgeActor):
    """Holds the weights, and copies of them."""

    def __init__(self, *, nbytes: int, stores: dict[str, WeightStore], **base: Any) -> None:
        super().__init__(**base)
        self._nbytes = nbytes
        self._stores = stores
        self._weights: dict[str, Tensor] = {}
        self._copies: dict[str, Tensor] = {}

    async def on_start(self) -> None:
        import torch

        torch.set_num_threads(1)
        for store in self._stores.values():
            store.attach()
        width = self._nbytes // TENSORS // 4096
        for index in range(TENSORS):
            self._weights[str(index)] = torch.full((1024, width), float(index))
            self._copies[str(index)] = torch.zeros(1024, width)

    @concurrent_endpoint
    async def copy(self) -> float:
        """Seconds of a copy from private memory into private memory."""
        return self._timed(lambda: self._take(self._weights))

    @concurrent_endpoint
    async def publish(self, store: str, version: int) -> float:
        """Seconds until the version can be fetched."""
        started = time.perf_counter()
        await self._stores[store].publish(version, self._weights)
        return time.perf_counter() - started

    @concurrent_endpoint
    async def fetch(self, store: str, version: int) -> float:
        """Seconds until the weights are in tensors of this process."""
        started = time.perf_counter()
        async with self._stores[store].fetch(version) as state_dict:
            self._take(state_dict)
        seconds = time.perf_counter() - started
        assert all(float(tensor[-1, -1]) == float(name) for name, tensor in self._copies.items())
        return seconds

    def _take(self, state_dict: dict[str, Tensor]) -> None:
        for name, tensor in state_dict.items():
            self._copies[name].copy_(tensor)

    def _timed(self, work: Callable[[], None]) -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started


async def measure(nbytes: int) -> dict[str, Any]:
    stores: dict[str, WeightStore] = {"shared_memory": SharedMemoryStore(), "torchstore": TorchStoreWeights()}
    with tempfile.TemporaryDirectory(prefix="forge_env_bench_") as folder:
        try:
            async with Launcher(Path(folder)) as launcher:
                trainer, engine = (
                    launcher.spawn(name, Holder, nbytes=nbytes, stores=stores) for name in ("trainer", "engine")
                )
                processes = launcher.processes("store", ForgeActor)
                await asyncio.gather(*(launcher.start(name) for name in ("trainer", "engine", "store")))
                for store in stores.values():
                    await store.open(processes)
                return await launcher.guard(_measure(trainer, engine, nbytes))
        finally:
            for store in stores.values():
                await store.close()


async def _measure(trainer: Any, engine: Any, nbytes: int) -> dict[str, Any]:
    async def ask(call: Any) -> float:
        seconds: float = await within(DEADLINE_S, call, "the benchmark's actor")
        return seconds

    seconds: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        seconds.setdefault(name, []).append(value)

    for version in range(SEGMENTS + ROUNDS):
        warm = "first " if version < SEGMENTS else ""
        note("copy in the trainer", await ask(trainer.copy.call_one()))
        note(f"{warm}publish", await ask(trainer.publish.call_one("shared_memory", version)))
        note("copy in the engine", await ask(engine.copy.call_one()))
        note(f"{warm}fetch", await ask(engine.fetch.call_one("shared_memory", version)))
    for version in range(RPC_ROUNDS):
        note("rpc publish", await ask(trainer.publish.call_one("torchstore", version)))
        note("rpc fetch", await ask(engine.fetch.call_one("torchstore", version)))
    best = {name: min(values) for name, values in seconds.items()}
    return {
        "bytes": nbytes,
        "seconds": seconds,
        "gb_per_second": {name: nbytes / value / 1e9 for name, value in best.items()},
        "publish_share_of_memcpy": best["copy in the trainer"] / best["publish"],
        "fetch_share_of_memcpy": best["copy in the engine"] / best["fetch"],
        "times_faster_than_rpc": (best["rpc publish"] + best["rpc fetch"]) / (best["publish"] + best["fetch"]),
    }


def main() -> None:
    """Print the figures, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    width = 4096 * TENSORS  # bytes of one more column in every matrix
    results = asyncio.run(measure(int(options.gib * 2**30) // width * width))
    for name, value in results.items():
        print(name, f"{value:.3f}" if isinstance(value, float) else value)
    if options.json:
        options.json.write_text(json.dumps({"machine": describe(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
