"""The control group of one slot, reused by its runs: set the limits, and read the kernel's counters."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forge_env.core.sandbox import Limits

_HELPER_BYTES = 16 * 2**20
"""Allowance for the sandbox's processes in the group: the slot's helper and the snippet's init."""
_GRAIN_BYTES = 2 * 2**20  # the kernel counts memory in per-CPU batches
_CPU_PERIOD_US = 100_000  # one CPU per slot: a snippet with many threads does not slow the other slots down


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUsage:
    """The kernel's counts between `begin` and `end`. Code inside the group cannot change them."""

    memory_exceeded: bool = False
    """A process was killed because the group was at its memory limit."""
    host_out_of_memory: bool = False
    """A process was killed for lack of memory although the group was within its limit: the machine has too little."""
    processes_exceeded: bool = False
    """A process or thread was refused because of the limit of the group."""
    peak_bytes: int = 0
    """Peak memory above the level at `begin`, with files in /tmp."""
    processes: int = 0


class SlotGroup:
    """The control group of a slot. The versions of control groups differ in their file names.

    Args:
        folders: the folders that processes join: one per controller (version 1), or one.
        keep_open: keep the files of every run open; it saves time for slots with many short runs.
    """

    def __init__(self, folders: list[Path], *, keep_open: bool) -> None:
        self._folders = folders
        self._keep_open = keep_open
        self._open: dict[str, int] = {}
        for folder in folders:
            folder.mkdir()
        self._set: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self._base_peak = 0

    def join_files(self) -> list[int]:
        """Return descriptors; a process joins by writing "0" to all of them. The caller closes them."""
        return [os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in self._folders]

    def begin(self, limits: Limits, *, extra_processes: int) -> None:
        """Set the limits and record the counters. Raises OSError."""
        new_limits = {"memory": limits.memory_bytes + _HELPER_BYTES, "processes": limits.processes + extra_processes}
        if new_limits != self._set:
            self._set_limits(new_limits["memory"], new_limits["processes"])
            self._set = new_limits
        self._base_peak = self._reset_peak()
        self._before = self._counters()

    def end(self) -> GroupUsage:
        """Return the usage since `begin`. Raises OSError."""
        now = self._counters()
        more = {name: count - self._before.get(name, 0) for name, count in now.items()}
        at_limit = self._met_limit(more)
        return GroupUsage(
            memory_exceeded=more["killed"] > 0 and at_limit,
            host_out_of_memory=more["killed"] > 0 and not at_limit,
            processes_exceeded=more["refused"] > 0,
            peak_bytes=max(0, self._peak() - self._base_peak),
            processes=self._processes(),
        )

    def allow_cpus(self, cpus: float) -> None:
        """Let the group use this number of CPUs at once; one by default. Without the cpu controller nothing changes."""
        raise NotImplementedError

    def close(self) -> None:
        """Remove the group if it is empty; otherwise a later reaper removes it."""
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()
        for folder in self._folders:
            try:
                folder.rmdir()
            except OSError:
                pass

    def _read(self, path: str) -> str:
        with self._file(path, os.O_RDONLY) as fd:
            return os.pread(fd, 4096, 0).decode()

    def _write(self, path: str, number: int) -> None:
        with self._file(path, os.O_RDWR) as fd:
            os.pwrite(fd, str(number).encode(), 0)

    def _fields(self, path: str) -> dict[str, int]:
        """Return the numbers of a file with lines "name number"; empty if the kernel lacks the file."""
        try:
            words = self._read(path).split()
        except FileNotFoundError:
            return {}
        return dict(zip(words[::2], map(int, words[1::2]), strict=True))

    @contextmanager
    def _file(self, path: str, flags: int) -> Iterator[int]:
        fd = self._open.get(path, -1)
        if fd >= 0:
            yield fd
            return
        fd = os.open(path, flags | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            if self._keep_open:
                self._open[path] = fd
            else:
                os.close(fd)

    def _set_limits(self, memory: int, processes: int) -> None:
        raise NotImplementedError

    def _reset_peak(self) -> int:
        raise NotImplementedError

    def _counters(self) -> dict[str, int]:
        """Return the counts of processes "killed" for memory and "refused" by the limit on processes."""
        raise NotImplementedError

    def _met_limit(self, more: dict[str, int]) -> bool:
        """Whether the group reached its memory limit. Args: more: the growth of the counters."""
        raise NotImplementedError

    def _peak(self) -> int:
        raise NotImplementedError

    def _processes(self) -> int:
        raise NotImplementedError


class SlotGroupV1(SlotGroup):
    """Args: folders: by controller: "memory", "pids" and perhaps "cpu"."""

    def __init__(self, folders: dict[str, Path], *, keep_open: bool) -> None:
        super().__init__(sorted(set(folders.values())), keep_open=keep_open)  # controllers can share a hierarchy
        memory, pids = str(folders["memory"]), str(folders["pids"])
        self._peak_file, self._oom_file = f"{memory}/memory.max_usage_in_bytes", f"{memory}/memory.oom_control"
        self._pids_file, self._events_file = f"{pids}/pids.current", f"{pids}/pids.events"
        self._max_processes = f"{pids}/pids.max"
        # The limit with swap must not be the smaller one. Kernels without swap accounting do not have it.
        self._limits = [f"{memory}/memory.limit_in_bytes", f"{memory}/memory.memsw.limit_in_bytes"]
        self._limits = [file for file in self._limits if os.path.exists(file)]
        self._cpu = str(folders.get("cpu", ""))
        if self._cpu:
            self._write(f"{self._cpu}/cpu.cfs_period_us", _CPU_PERIOD_US)
            self.allow_cpus(1.0)

    def allow_cpus(self, cpus: float) -> None:
        if self._cpu:
            self._write(f"{self._cpu}/cpu.cfs_quota_us", int(cpus * _CPU_PERIOD_US))

    def _set_limits(self, memory: int, processes: int) -> None:
        falls = memory <= self._set.get("memory", memory)  # a new group has no limit
        for file in self._limits if falls else reversed(self._limits):
            self._write(file, memory)
        self._write(self._max_processes, processes)

    def _reset_peak(self) -> int:
        self._write(self._peak_file, 0)
        return self._peak()

    def _counters(self) -> dict[str, int]:
        kills = self._fields(self._oom_file).get("oom_kill", 0)
        return {"killed": kills, "refused": self._fields(self._events_file).get("max", 0)}

    def _met_limit(self, more: dict[str, int]) -> bool:
        # Recent kernels do not count memory.failcnt, but version 1 can restart the peak for every run.
        return self._peak() >= self._set["memory"] - _GRAIN_BYTES

    def _peak(self) -> int:
        return int(self._read(self._peak_file))

    def _processes(self) -> int:
        return int(self._read(self._pids_file))


class SlotGroupV2(SlotGroup):
    """Args: folder: the group, with the memory and pids controllers and perhaps cpu."""

    def __init__(self, folder: Path, *, keep_open: bool) -> None:
        super().__init__([folder], keep_open=keep_open)
        self._folder = str(folder)
        self.allow_cpus(1.0)

    def allow_cpus(self, cpus: float) -> None:
        quota = Path(f"{self._folder}/cpu.max")
        if quota.exists():
            quota.write_text(f"{int(cpus * _CPU_PERIOD_US)} {_CPU_PERIOD_US}")

    def _set_limits(self, memory: int, processes: int) -> None:
        self._write(f"{self._folder}/memory.max", memory)
        if os.path.exists(f"{self._folder}/memory.swap.max"):
            self._write(f"{self._folder}/memory.swap.max", 0)
        self._write(f"{self._folder}/pids.max", processes)

    def _reset_peak(self) -> int:
        return 0

    def _counters(self) -> dict[str, int]:
        memory = self._fields(f"{self._folder}/memory.events")
        refusals = self._fields(f"{self._folder}/pids.events").get("max", 0)
        return {"killed": memory.get("oom_kill", 0), "at_limit": memory.get("oom", 0), "refused": refusals}

    def _met_limit(self, more: dict[str, int]) -> bool:
        return more["at_limit"] > 0

    def _peak(self) -> int:
        """Return 0 for unknown: memory.peak of a reused group covers all its runs."""
        return 0

    def _processes(self) -> int:
        return int(self._read(f"{self._folder}/pids.current"))
