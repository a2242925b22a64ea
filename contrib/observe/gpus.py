"""The GPUs of a run on this machine, through NVML: load, memory, power and temperature."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from trainers.metrics.gpus import Gpus


class MeasuredGpus(Gpus):
    """Measures the GPUs with these numbers."""

    def measure(self) -> dict[str, float]:
        """For each GPU gpu/NUMBER/utilization_percent, memory_used_bytes, memory_total_bytes, power_watts and
        temperature_celsius, if the driver reports them."""
        metrics: dict[str, float] = {}
        for number, handle in self.handles.items():
            for names, read in self._readings(handle):
                with suppress(self.nvml.NVMLError):
                    values = read()
                    metrics |= {f"gpu/{number}/{name}": value for name, value in zip(names, values, strict=True)}
        return metrics

    def processes(self) -> dict[int, dict[int, float]]:
        """Bytes of each process on each GPU, as the driver counts: GPU -> process id -> bytes.

        This includes CUDA's context and memory that torch holds unused. Some drivers, as in some containers, report
        none.
        """
        found: dict[int, dict[int, float]] = {}
        for number, handle in self.handles.items():
            with suppress(self.nvml.NVMLError):
                running = self.nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                found[number] = {each.pid: float(each.usedGpuMemory) for each in running if each.usedGpuMemory}
        return found

    def _readings(self, handle: Any) -> list[tuple[tuple[str, ...], Any]]:
        nvml = self.nvml

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
