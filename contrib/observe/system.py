"""System metrics: the run's use of this machine, every few seconds, as the phase "system".

| name | is |
|---|---|
| cpu_percent | of the machine: 100 is all cores |
| memory_used_bytes, memory_available_bytes | of the machine |
| disk_free_bytes | of the disk that the run's folder is on |
| run/cpu_percent | of all processes of the run: 100 is one core |
| run/memory_bytes | of all processes of the run: the memory that each has alone, and the largest part that one shares |
| run/processes | the number of processes |
| run/open_files | of the controller |
| cpu_percent/SERVICE, memory_bytes/SERVICE | of a service with its children; its memory includes what it shares |
| gpu/N/... | see `MeasuredGpus` |
| gpu/N/memory_bytes/SERVICE | of a service with its children on this GPU, as the driver counts |
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from contrib.common.guard import parents_of_processes
from trainers.metrics.gpus import Gpus
from trainers.metrics.observer import Observer
from trainers.run.run import Run

Say = Callable[[str], None]


class SystemMetrics:
    """Measures this machine and the descendants of this process.

    Args:
        folder: of the run.
        services: the process ids of each replica; other descendants belong to the controller.
        gpus: numbers of the run's GPUs on this machine.
    """

    def __init__(self, folder: Path, services: Callable[[], Mapping[str, Sequence[int]]], gpus: Sequence[int]) -> None:
        self._folder = folder
        self._services = services
        self._gpus = MeasuredGpus(gpus)
        self._process_cache: dict[int, psutil.Process] = {}  # for the CPU time since the last sample

    def measure(self) -> dict[str, float]:
        """Measure once. CPU figures cover the time since the last call in this thread, and are 0 at the first."""
        memory = psutil.virtual_memory()
        processes = self._processes()
        return {
            "cpu_percent": psutil.cpu_percent(),
            "memory_used_bytes": float(memory.used),
            "memory_available_bytes": float(memory.available),
            "disk_free_bytes": float(shutil.disk_usage(self._folder).free),
            **self._measure_run(processes),
            **self._gpus.measure(),
            **_by_service(self._gpus.processes(), {process.pid: service for service, process in processes}),
        }

    def close(self) -> None:
        self._gpus.close()

    def _measure_run(self, processes: Sequence[tuple[str, psutil.Process]]) -> dict[str, float]:
        cpu: dict[str, float] = defaultdict(float)
        memory: dict[str, float] = defaultdict(float)
        private_bytes, largest_shared, count = 0.0, 0.0, 0
        for service, process in processes:
            try:
                with process.oneshot():
                    memory_info, share = process.memory_info(), process.cpu_percent()
            except psutil.Error:
                continue  # it has just ended
            count += 1
            cpu[service] += share
            memory[service] += memory_info.rss
            private_bytes += memory_info.rss - memory_info.shared
            largest_shared = max(largest_shared, memory_info.shared)
        return {
            "run/cpu_percent": sum(cpu.values()),
            "run/memory_bytes": private_bytes + largest_shared,
            "run/processes": float(count),
            "run/open_files": float(len(os.listdir("/proc/self/fd"))),
            **{f"cpu_percent/{service}": value for service, value in sorted(cpu.items())},
            **{f"memory_bytes/{service}": value for service, value in sorted(memory.items())},
        }

    def _processes(self) -> list[tuple[str, psutil.Process]]:
        # Replicas are NAME_0, NAME_1 and so on, and one service.
        services = {pid: re.sub(r"_\d+$", "", name) for name, pids in self._services().items() for pid in pids}
        services[os.getpid()] = "controller"
        parents = parents_of_processes()
        names = {os.getpid(): "controller"}

        def service_of(pid: int) -> str:
            if pid not in names:
                above = service_of(parents[pid]) if pid in parents else ""
                names[pid] = above and services.get(pid, above)
            return names[pid]

        services = {pid: name for pid in parents if (name := service_of(pid))}
        processes = {}
        for pid in services:
            with suppress(psutil.Error):  # it has just ended
                known_as = self._process_cache.get(pid)
                processes[pid] = known_as if known_as is not None and known_as.is_running() else psutil.Process(pid)
        self._process_cache = processes
        return [(services[pid], process) for pid, process in processes.items()]


class Sampler:
    """Measures every `interval` seconds in a thread of its own, until it is closed.

    A sample that raises ends the sampling and nothing else, with one warning.
    """

    def __init__(
        self, metrics: SystemMetrics, interval: float, take: Callable[[Mapping[str, float]], None], say: Say
    ) -> None:
        self._metrics, self._interval, self._take, self._say = metrics, interval, take, say
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        try:
            self._metrics.measure()  # CPU figures cover the time since the last call in the same thread
            while not self._end.wait(self._interval):
                self._take(self._metrics.measure())
        except OSError:
            pass  # a full disk: the run notices it and says so
        except Exception as error:
            self._say(f"warning: system metrics are switched off: {type(error).__name__}: {error}")
        finally:
            self._metrics.close()


class SystemObserver(Observer):
    """Logs what a run uses of its machine, every `metrics.system_seconds`; summary.json has the peaks."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._peaks: dict[str, float] = {}
        self._sampler: Sampler | None = None

    def begin(self, run: Run) -> None:
        record = run.record
        if interval := run.plan.config.metrics.system_seconds:
            metrics = SystemMetrics(self.folder, run.launcher.pids, run.plan.placement.gpus_of_this_machine)

            def take(values: Mapping[str, float]) -> None:
                record.metrics("system", round(record.console.seconds()), values)

            self._sampler = Sampler(metrics, interval, take, record.warn)

    def stop(self) -> None:
        if self._sampler is not None:
            self._sampler.close()

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        if phase == "system":
            for name, value in values.items():
                self._peaks[name] = max(self._peaks.get(name, value), value)

    def summary(self) -> dict[str, float]:
        """The largest measured values of the run's memory and of its GPUs."""
        names = {"run/memory_bytes": "peak_memory_bytes"}
        names |= {name: f"peak_{name}" for name in self._peaks if re.fullmatch(r"gpu/\d+/(?!memory_total).*", name)}
        return {title: self._peaks[name] for name, title in names.items() if name in self._peaks}


def _by_service(on_gpus: Mapping[int, Mapping[int, float]], services: Mapping[int, str]) -> dict[str, float]:
    """gpu/N/memory_bytes/SERVICE of the run's own processes; other processes on the same GPU are left out."""
    sizes: dict[str, float] = defaultdict(float)
    for number, processes in on_gpus.items():
        for pid, size in processes.items():
            if pid in services:
                sizes[f"gpu/{number}/memory_bytes/{services[pid]}"] += size
    return dict(sorted(sizes.items()))


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
        sizes: dict[int, dict[int, float]] = {}
        for number, handle in self.handles.items():
            with suppress(self.nvml.NVMLError):
                running = self.nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                sizes[number] = {each.pid: float(each.usedGpuMemory) for each in running if each.usedGpuMemory}
        return sizes

    def _readings(self, handle: Any) -> list[tuple[tuple[str, ...], Any]]:
        nvml = self.nvml
        celsius = nvml.NVML_TEMPERATURE_GPU

        def memory() -> tuple[float, float]:
            info = nvml.nvmlDeviceGetMemoryInfo(handle)
            return float(info.used), float(info.total)

        return [
            (("utilization_percent",), lambda: (float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),)),
            (("memory_used_bytes", "memory_total_bytes"), memory),
            (("power_watts",), lambda: (nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,)),
            (("temperature_celsius",), lambda: (float(nvml.nvmlDeviceGetTemperature(handle, celsius)),)),
        ]
