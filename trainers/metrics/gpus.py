"""The GPUs of this machine, through NVML."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from forge_env.runtime.process.visible_gpus import names_of


def count_gpus() -> int | None:
    """The GPUs that torch would find; None if only torch can tell, whose import takes seconds."""
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [] if variable is None else variable.split(",")
    torch = find_spec("torch")  # imports nothing
    if not torch or not Path(torch.origin or "").with_name("lib").joinpath("libtorch_cuda.so").exists():
        return None
    if len(set(names)) < len(names) or not all(map(str.isdecimal, names)):
        return None
    gpus = Gpus(range(len(names) or 64))
    count = next(number for number in itertools.count() if number not in gpus.handles)
    gpus.close()
    return count or None


class Gpus:
    """The GPUs with these numbers; there are none without a GPU or without NVML (`nvidia-ml-py`)."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.handles: dict[int, Any] = {}
        self.nvml: Any = None
        if not numbers:
            return
        try:
            import pynvml
        except ImportError:
            return
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            self.nvml = pynvml
        for number, name in zip(numbers, names_of(numbers), strict=True):
            with suppress(pynvml.NVMLError):  # the plan for another machine may number more GPUs than this one has
                if name.isdecimal():
                    self.handles[number] = pynvml.nvmlDeviceGetHandleByIndex(int(name))
                else:
                    self.handles[number] = pynvml.nvmlDeviceGetHandleByUUID(name)

    def sizes(self) -> dict[int, float]:
        """Bytes of each GPU's memory that processes can have, by the GPU's number; makes no context on a GPU."""
        sizes: dict[int, float] = {}
        for number, handle in self.handles.items():
            with suppress(self.nvml.NVMLError):
                info = self.nvml.nvmlDeviceGetMemoryInfo(handle, version=self.nvml.nvmlMemory_v2)
                sizes[number] = float(info.total - info.reserved)
        return sizes

    def close(self) -> None:
        if self.nvml is not None:
            with suppress(self.nvml.NVMLError):
                self.nvml.nvmlShutdown()
            self.nvml, self.handles = None, {}
