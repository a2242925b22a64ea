"""Another process that publishes or fetches weights, as a test tells it line by line; and the test's end of it.

    python weights_process.py PICKLED_STORE

    publish VERSION SEED MIB    fetch VERSION    hold VERSION, then release    die VERSION    stop VERSION    mortal 0

`die` and `stop` end this process, or stop it, in the middle of what comes through an NcclStore; after `mortal` the next
fetch of what it has published ends it, in the middle of what it sends.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from state_dicts import fingerprints, make_state_dict

from forge_env.core.errors import ServiceError
from forge_env.runtime.process.visible_gpus import names_of
from forge_env.runtime.weights import NcclStore, WeightStore
from forge_env.runtime.weights.nccl.communicator import CHUNK_BYTES, PairCommunicator
from forge_env.runtime.weights.nccl.puller import PublisherLink

ROOT = Path(__file__).parents[3]
DEADLINE_S = 120.0


class WeightsProcess:
    """A store in another process, which sees one GPU, or none."""

    def __init__(self, store: WeightStore, *, gpu: int | None = None) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
        environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": _seen(gpu)}
        command = [sys.executable, __file__, base64.b64encode(pickle.dumps(store)).decode()]
        self.process = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    async def answer(self) -> Any:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(asyncio.to_thread(self.process.stdout.readline), DEADLINE_S)
        return json.loads(line)

    async def ask(self, line: str) -> Any:
        self.tell(line)
        return await self.answer()

    async def ended(self) -> int:
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), DEADLINE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def make_weights(seed: int, mib: int = 0) -> dict[str, Any]:
    """The same in every process; with one large tensor among the small ones, of so many MiB."""
    large = torch.arange(seed, seed + mib * 2**18, dtype=torch.int32).view(mib, 2**18)
    return make_state_dict(seed) | ({"large": large} if mib else {})


def _seen(gpu: int | None) -> str:
    return "" if gpu is None else names_of([gpu])[0]


# ---- the other process ----


def _say(value: Any) -> None:
    print(json.dumps(value), flush=True)


async def _listen() -> str:
    return (await asyncio.to_thread(sys.stdin.readline)).strip()


async def _fetch(store: WeightStore, version: int, *, hold: bool) -> None:
    started = time.perf_counter()
    async with store.fetch(version) as found:
        if torch.cuda.is_available():
            found = {name: tensor.cuda() for name, tensor in found.items()}
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        if hold:
            _say("held")
            await _listen()
        devices = sorted({tensor.device.type for tensor in found.values()})
        prints = fingerprints({name: tensor.cpu() for name, tensor in found.items()})
        _say({"devices": devices, "fingerprints": prints, "seconds": seconds})


def _break_off(store: WeightStore, version: int, how: signal.Signals) -> None:
    """End this process, or stop it, when the first piece of several has come."""
    assert isinstance(store, NcclStore)
    link = PublisherLink(store._prepared, version=version, gpu=0, seconds=DEADLINE_S)
    layout = link.request(version)
    assert layout.size > 2 * CHUNK_BYTES
    link.connection.send(ready=True)
    link._communicator.transfer(link._communicator.allocate(CHUNK_BYTES))
    _say("broken off")
    os.kill(os.getpid(), how)


def _die_while_sending() -> None:
    """From now on, this process ends when it has sent the first piece of several."""
    transfer = PairCommunicator.transfer

    def send_one_piece(self: PairCommunicator, flat: torch.Tensor, *, after: Any = None) -> None:
        assert flat.numel() > 2 * CHUNK_BYTES
        transfer(self, flat[:CHUNK_BYTES], after=after)
        os.kill(os.getpid(), signal.SIGKILL)

    PairCommunicator.transfer = send_one_piece  # type: ignore[method-assign]


async def _main() -> None:
    store: WeightStore = pickle.loads(base64.b64decode(sys.argv[1]))
    if torch.cuda.is_available():
        torch.cuda.init()
    while line := await _listen():
        word, version, *more = line.split()
        try:
            if word == "publish":
                state_dict = make_weights(*map(int, more))
                if torch.cuda.is_available():
                    state_dict = {name: tensor.cuda() for name, tensor in state_dict.items()}
                await store.publish(int(version), state_dict)
                _say("published")
            elif word == "mortal":
                _die_while_sending()
                _say("mortal")
            elif word in ("die", "stop"):
                _break_off(store, int(version), signal.SIGKILL if word == "die" else signal.SIGSTOP)
            else:
                await _fetch(store, int(version), hold=word == "hold")
        except ServiceError as error:
            _say(str(error))


if __name__ == "__main__":
    asyncio.run(_main())
