"""Another process that publishes or fetches weights, as a test tells it line by line; and the test's end of it.

publish VERSION SEED MIB    fetch VERSION    hold VERSION, then release
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import torch
from state_dicts import fingerprints, make_state_dict

from forge_env.core.errors import ServiceError
from forge_env.runtime.process.visible_gpus import names_of
from forge_env.runtime.weights import WeightStore
from tests.helpers.forks import Forked

Words = Mapping[str, Callable[[Any, int, Connection], None]]


class WeightsProcess(Forked):
    """A store in another process, which sees one GPU, or none."""

    words: ClassVar[Words] = {}
    """What else it may be told, with the function that gets its store, the version and its end of the connection."""

    def __init__(self, store: WeightStore, *, gpu: int | None = None) -> None:
        environ = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": _seen(gpu)}
        super().__init__(_serve, store, self.words, environ=environ, uses_gpu=gpu is not None)

    async def ask(self, line: str) -> Any:
        self.connection.send(line)
        return await asyncio.to_thread(self.answer)


def make_weights(seed: int, mib: int = 0) -> dict[str, Any]:
    """The same in every process; with one large tensor among the small ones, of so many MiB."""
    large = torch.arange(seed, seed + mib * 2**18, dtype=torch.int32).view(mib, 2**18)
    return make_state_dict(seed) | ({"large": large} if mib else {})


def _seen(gpu: int | None) -> str:
    return "" if gpu is None else names_of([gpu])[0]


def _serve(connection: Connection, store: WeightStore, words: Words) -> None:
    asyncio.run(_answer(connection, store, words))


async def _answer(connection: Connection, store: WeightStore, words: Words) -> None:
    if torch.cuda.is_available():
        torch.cuda.init()
    while True:
        word, version, *more = (await asyncio.to_thread(connection.recv)).split()
        try:
            if word == "publish":
                state_dict = make_weights(*map(int, more))
                if torch.cuda.is_available():
                    state_dict = {name: tensor.cuda() for name, tensor in state_dict.items()}
                await store.publish(int(version), state_dict)
                connection.send("published")
            elif word in words:
                words[word](store, int(version), connection)
            else:
                await _fetch(store, int(version), connection, hold=word == "hold")
        except ServiceError as error:
            connection.send(str(error))


async def _fetch(store: WeightStore, version: int, connection: Connection, *, hold: bool) -> None:
    started = time.perf_counter()
    async with store.fetch(version) as found:
        if torch.cuda.is_available():
            found = {name: tensor.cuda() for name, tensor in found.items()}
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        if hold:
            connection.send("held")
            await asyncio.to_thread(connection.recv)
        devices = sorted({tensor.device.type for tensor in found.values()})
        prints = fingerprints({name: tensor.cpu() for name, tensor in found.items()})
        connection.send({"devices": devices, "fingerprints": prints, "seconds": seconds})
