"""The GPUs of a run on this machine, through NVML: load, memory, power and temperature."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from forge_env.runtime.process.visible_gpus import names_of


class Gpus:
    """Measures the GPUs with these numbers; there are none without a GPU or without NVML (`nvidia-ml-py`)."""

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
        """For each GPU gpu/NUMBER/utilization_percent, memory_used_bytes, memory_total_bytes, power_watts and
        temperature_celsius, if the driver reports them."""
        metrics: dict[str, float] = {}
        for number, handle in self._handles.items():
            for names, read in self._readings(handle):
                with suppress(self._nvml.NVMLError):
                    values = read()
                    metrics |= {f"gpu/{number}/{name}": value for name, value in zip(names, values, strict=True)}
        return metrics

    def processes(self) -> dict[int, dict[int, float]]:
        """Bytes of each process on each GPU, as the driver counts: GPU -> process id -> bytes.

        This includes CUDA's context and memory that torch holds unused. Some drivers, as in some containers, report
        none.
        """
        found: dict[int, dict[int, float]] = {}
        for number, handle in self._handles.items():
            with suppress(self._nvml.NVMLError):
                running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                found[number] = {each.pid: float(each.usedGpuMemory) for each in running if each.usedGpuMemory}
        return found

    def sizes(self) -> dict[int, float]:
        """Bytes of each GPU's memory that processes can have, by the GPU's number; makes no context on a GPU."""
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
