"""The GPUs that this process may use: all of the machine, or those that CUDA_VISIBLE_DEVICES names."""

from __future__ import annotations

import os
from collections.abc import Sequence


def names_of(numbers: Sequence[int]) -> list[str]:
    """What CUDA_VISIBLE_DEVICES calls GPUs that are counted as torch counts them in this process."""
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    seen = named if named[0] else []
    # Of a host elsewhere more may be wanted than this machine has.
    return [seen[number] if number < len(seen) else str(number) for number in numbers]
