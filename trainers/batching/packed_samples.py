"""PackedSamples: the samples of a step in a message, as bytes that are made in a thread.

A message is made on the event loop of the sender, all at once. 256 samples of 32,000 tokens each take some tenths of a
second to pickle; bytes are only handed on. They become samples again in the thread that reads them first.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import overload

from forge_env.utils.threads import invoke
from trainers.batching.batch import Sample


class PackedSamples(Sequence[Sample]):
    """Samples that were packed, each on its own; a sequence of them like any other."""

    def __init__(self, packed: Sequence[bytes]) -> None:
        self._packed = list(packed)
        self._samples: list[Sample] | None = None

    @classmethod
    async def of(cls, samples: Sequence[Sample]) -> PackedSamples:
        """Pack samples in a thread."""
        return cls(await invoke(_pack, samples))

    async def free(self) -> None:
        """Give the memory back in a thread, one sample after the other: all at once would block the event loop."""
        await invoke(_free, self._packed)

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if self._samples is None:
            self._samples = [pickle.loads(packed) for packed in self._packed]
            self._packed = [b""] * len(self._packed)
        return self._samples[index]

    def __reduce__(self) -> tuple[type[PackedSamples], tuple[tuple[bytes, ...]]]:
        if self._samples is not None:
            return PackedSamples, (tuple(_pack(self._samples)),)
        return PackedSamples, (tuple(self._packed),)


def _free(packed: list[bytes]) -> None:
    while packed:
        packed.pop()


def _pack(samples: Sequence[Sample]) -> list[bytes]:
    return [pickle.dumps(sample, pickle.HIGHEST_PROTOCOL) for sample in samples]
