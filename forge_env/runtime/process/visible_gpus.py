"""The GPUs that this process may use: all of the machine, or the ones in CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import os
from collections.abc import Sequence


def names_of(numbers: Sequence[int]) -> list[str]:
    """The names in CUDA_VISIBLE_DEVICES of GPUs that have torch's numbers of this process."""
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    visible = names if names[0] else []
    # For another host, more GPUs may be named than this machine has.
    return [visible[number] if number < len(visible) else str(number) for number in numbers]
