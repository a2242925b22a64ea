"""Another process that publishes or fetches weights, as a test tells it line by line; and the test's end of it.

    publish VERSION SEED MIB    fetch VERSION    hold VERSION, then release    die VERSION    stop VERSION    mortal 0

`die` and `stop` end this process, or stop it, in the middle of what comes through an NcclStore; after `mortal` the next
fetch of what it has published ends it, in the middle of what it sends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from state_dicts import fingerprints, make_state_dict

from forge_env.core.errors import ServiceError
from forge_env.runtime.process.visible_gpus import names_of
from forge_env.runtime.weights import NcclStore, WeightStore
from forge_env.runtime.weights.nccl.communicator import CHUNK_BYTES, PairCommunicator
from forge_env.runtime.weights.nccl.puller import PublisherLink
from tests.helpers.forks import DEADLINE_S, Forked


class WeightsProcess(Forked):
    """A store in another process, which sees one GPU, or none."""

    def __init__(self, store: WeightStore, *, gpu: int | None = None) -> None:
        environ = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": _seen(gpu)}
        super().__init__(_serve, store, environ=environ, uses_gpu=gpu is not None)

    async def ask(self, line: str) -> Any:
        self.connection.send(line)
        return await asyncio.to_thread(self.answer)


def make_weights(seed: int, mib: int = 0) -> dict[str, Any]:
    """The same in every process; with one large tensor among the small ones, of so many MiB."""
    large = torch.arange(seed, seed + mib * 2**18, dtype=torch.int32).view(mib, 2**18)
    return make_state_dict(seed) | ({"large": large} if mib else {})


def _seen(gpu: int | None) -> str:
    return "" if gpu is None else names_of([gpu])[0]


# ---- the other process ----


def _serve(connection: Connection, store: WeightStore) -> None:
    asyncio.run(_answer(connection, store))


async def _answer(connection: Connection, store: WeightStore) -> None:
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
            elif word == "mortal":
                _die_while_sending()
                connection.send("mortal")
            elif word in ("die", "stop"):
                _break_off(store, int(version), connection, signal.SIGKILL if word == "die" else signal.SIGSTOP)
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


def _break_off(store: WeightStore, version: int, connection: Connection, how: signal.Signals) -> None:
    """End this process, or stop it, when the first piece of several has come."""
    assert isinstance(store, NcclStore)
    link = PublisherLink(store._prepared, version=version, gpu=0, seconds=DEADLINE_S)
    layout = link.request(version)
    assert layout.size > 2 * CHUNK_BYTES
    link.connection.send(ready=True)
    link._communicator.transfer(link._communicator.allocate(CHUNK_BYTES))
    connection.send("broken off")
    os.kill(os.getpid(), how)


def _die_while_sending() -> None:
    """From now on, this process ends when it has sent the first piece of several."""
    transfer = PairCommunicator.transfer

    def send_one_piece(self: PairCommunicator, flat: torch.Tensor, *, after: Any = None) -> None:
        assert flat.numel() > 2 * CHUNK_BYTES
        transfer(self, flat[:CHUNK_BYTES], after=after)
        os.kill(os.getpid(), signal.SIGKILL)

    PairCommunicator.transfer = send_one_piece  # type: ignore[method-assign]
