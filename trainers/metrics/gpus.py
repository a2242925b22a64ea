"""The GPUs of a run on this machine, through NVML: what they do, how full and how warm they are."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from forge_env.runtime.process.visible_gpus import names_of


class Gpus:
    """Measures the GPUs of these numbers; without NVML (`nvidia-ml-py`), or without a GPU, there are none."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._handles: dict[int, Any] = {}
        self._nvml: Any = None
        if not numbers:
            return
        try:
            import pynvml
        except ImportError:
            return
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            self._nvml = pynvml
        for number, name in zip(numbers, names_of(numbers), strict=True):
            with suppress(pynvml.NVMLError):  # the plan for another machine may number more GPUs than this one has
                if name.isdecimal():
                    self._handles[number] = pynvml.nvmlDeviceGetHandleByIndex(int(name))
                else:
                    self._handles[number] = pynvml.nvmlDeviceGetHandleByUUID(name)

    def measure(self) -> dict[str, float]:
        """Of each GPU gpu/NUMBER/utilization_percent, memory_used_bytes, memory_total_bytes, power_watts and
        temperature_celsius, those that it tells."""
        metrics: dict[str, float] = {}
        for number, handle in self._handles.items():
            for names, read in self._readings(handle):
                with suppress(self._nvml.NVMLError):
                    values = read()
                    metrics |= {f"gpu/{number}/{name}": value for name, value in zip(names, values, strict=True)}
        return metrics

    def processes(self) -> dict[int, dict[int, float]]:
        """Bytes that each process has of each GPU, as the driver counts: GPU -> process id -> bytes.

        CUDA's context and what torch keeps unused are counted. A driver that does not tell, as in some containers,
        gives none.
        """
        found: dict[int, dict[int, float]] = {}
        for number, handle in self._handles.items():
            with suppress(self._nvml.NVMLError):
                running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                found[number] = {each.pid: float(each.usedGpuMemory) for each in running if each.usedGpuMemory}
        return found

    def sizes(self) -> dict[int, float]:
        """Bytes of each GPU's memory that processes can have, by its number; no context is made on a GPU for it."""
        sizes: dict[int, float] = {}
        for number, handle in self._handles.items():
            with suppress(self._nvml.NVMLError):
                info = self._nvml.nvmlDeviceGetMemoryInfo(handle, version=self._nvml.nvmlMemory_v2)
                sizes[number] = float(info.total - info.reserved)
        return sizes

    def close(self) -> None:
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._nvml, self._handles = None, {}

    def _readings(self, handle: Any) -> list[tuple[tuple[str, ...], Any]]:
        nvml = self._nvml

        def memory() -> tuple[float, float]:
            info = nvml.nvmlDeviceGetMemoryInfo(handle)
            return float(info.used), float(info.total)

        return [
            (("utilization_percent",), lambda: (float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),)),
            (("memory_used_bytes", "memory_total_bytes"), memory),
            (("power_watts",), lambda: (nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,)),
            (
                ("temperature_celsius",),
                lambda: (float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),),
            ),
        ]
