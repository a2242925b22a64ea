"""Routes: the experts that an engine chose for consecutive tokens of a row, in a mixture-of-experts model."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Routes:
    """Numbers of the chosen experts, as bytes: 48 layers with 8 experts take 384 of them for a token.

    Example: ``Routes.of(3, np.zeros((5, 2, 8), dtype=np.uint8))`` has tokens 3 to 7 of the row, of 2 layers.
    """

    start: int
    """Number of tokens of the row before the first one that is here."""
    layers: int
    """Layers that have experts, in order; layers without are not counted."""
    active: int
    """Experts of a token and layer; they differ from each other, and their order means nothing."""
    width: int
    """Bytes of a number: 1 up to 256 experts, else 2."""
    data: bytes

    @staticmethod
    def of(start: int, experts: np.ndarray) -> Routes:
        """Pack an array.

        Args:
            experts: (tokens, layers, active) uint8 or uint16.
        """
        _, layers, active = experts.shape
        return Routes(start, layers, active, experts.itemsize, experts.tobytes())

    @staticmethod
    def of_text(text: str) -> Routes:
        *numbers, data = text.split(" ")
        start, layers, active, width = map(int, numbers)
        return Routes(start, layers, active, width, zlib.decompress(base64.b64decode(data)))

    @property
    def text(self) -> str:
        """The four numbers, and the data as base64 of zlib's bytes, for a file."""
        data = base64.b64encode(zlib.compress(self.data)).decode()
        return f"{self.start} {self.layers} {self.active} {self.width} {data}"

    def within(self, first: int, end: int) -> Routes:
        """The experts of tokens `first` to `end - 1` of the row, as far as they are here."""
        first = max(first, self.start)
        row = self.layers * self.active * self.width
        data = self.data[(first - self.start) * row : max(0, end - self.start) * row]
        return Routes(first, self.layers, self.active, self.width, data)

    @property
    def end(self) -> int:
        """Number of tokens of the row up to the last one that is here."""
        return self.start + self.tokens

    @property
    def tokens(self) -> int:
        return len(self.data) // (self.layers * self.active * self.width)

    @property
    def experts(self) -> np.ndarray:
        """(tokens, layers, active) uint8 or uint16; it cannot be written to."""
        import numpy as np

        kind = np.uint8 if self.width == 1 else np.uint16
        return np.frombuffer(self.data, dtype=kind).reshape(-1, self.layers, self.active)
