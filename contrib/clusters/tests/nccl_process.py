"""Another process with an NcclStore, which can also be told to fail.

    die VERSION    stop VERSION    mortal 0

`die` and `stop` end this process, or stop it, in the middle of what comes; after `mortal` the next fetch of what it has
published ends it, in the middle of what it sends.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import torch
from weights_process import WeightsProcess, Words

from contrib.clusters.nccl.communicator import CHUNK_BYTES, PairCommunicator
from contrib.clusters.nccl.puller import PublisherLink
from contrib.clusters.nccl.store import NcclStore
from tests.helpers.forks import DEADLINE_S


def _break_off(how: signal.Signals, store: NcclStore, version: int, connection: Connection) -> None:
    """End this process, or stop it, when the first piece of several has come."""
    link = PublisherLink(store._prepared, version=version, gpu=0, seconds=DEADLINE_S)
    layout = link.request(version)
    assert layout.size > 2 * CHUNK_BYTES
    link.connection.send(ready=True)
    link._communicator.transfer(link._communicator.allocate(CHUNK_BYTES))
    connection.send("broken off")
    os.kill(os.getpid(), how)


def _die_while_sending(store: NcclStore, version: int, connection: Connection) -> None:
    """From now on, this process ends when it has sent the first piece of several."""
    transfer = PairCommunicator.transfer

    def send_one_piece(self: PairCommunicator, flat: torch.Tensor, *, after: Any = None) -> None:
        assert flat.numel() > 2 * CHUNK_BYTES
        transfer(self, flat[:CHUNK_BYTES], after=after)
        os.kill(os.getpid(), signal.SIGKILL)

    PairCommunicator.transfer = send_one_piece  # type: ignore[method-assign]
    connection.send("mortal")


class NcclProcess(WeightsProcess):
    words: ClassVar[Words] = {
        "die": partial(_break_off, signal.SIGKILL),
        "stop": partial(_break_off, signal.SIGSTOP),
        "mortal": _die_while_sending,
    }
