"""The GPUs that this process may use: all of the machine, or those that CUDA_VISIBLE_DEVICES names."""

from __future__ import annotations

import os
from collections.abc import Sequence


def names_of(numbers: Sequence[int]) -> list[str]:
    """Return the names in CUDA_VISIBLE_DEVICES of GPUs that are numbered as torch numbers them in this process."""
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    visible = names if names[0] else []
    # For another host, more GPUs may be named than this machine has.
    return [visible[number] if number < len(visible) else str(number) for number in numbers]
