"""The resources of this process: file descriptors, threads, asyncio tasks, child processes and temporary files."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forge_env.utils.temporary import temporary_files_in

# Thread pools that outlive episodes on purpose: ours, the event loop's and anyio's. Idle threads end by themselves.
POOL_PREFIXES = ("forge_env", "asyncio_", "AnyIO worker thread")
MAX_NAMED = 4  # how many leaked items a phrase names


@dataclass(frozen=True, kw_only=True)
class Resources:
    """A snapshot: for each kind of resource, a mapping from identity to display name."""

    descriptors: Mapping[object, str]
    threads: Mapping[object, str]
    tasks: Mapping[object, str]
    processes: Mapping[object, str]
    files: Mapping[object, str]

    @classmethod
    def now(cls, folder: Path) -> Resources:
        """Take a snapshot; a process with the folder's path in its environment was started by this one."""
        gc.collect()  # an object without references is no leak, even if it has not been collected yet
        return cls(
            descriptors=_descriptors(),
            threads={t: t.name for t in threading.enumerate() if not t.name.startswith(POOL_PREFIXES)},
            tasks={t: getattr(t.get_coro(), "__qualname__", t.get_name()) for t in asyncio.all_tasks()},
            processes=_processes(str(folder)),
            files={path: str(path.relative_to(folder)) for path in folder.rglob("*")},
        )

    def more_than(self, before: Resources) -> list[str]:
        """Return what there is more of than before, one phrase for each kind, with the remedy."""
        kinds = (
            ("file descriptors", "close them in close()", self.descriptors, before.descriptors),
            ("threads", "end and join them in close()", self.threads, before.threads),
            ("asyncio tasks", "cancel and await them in close()", self.tasks, before.tasks),
            ("child processes", "end and await them in close()", self.processes, before.processes),
            ("temporary files", "delete them in close()", self.files, before.files),
        )
        return [_more(kind, remedy, now, then) for kind, remedy, now, then in kinds if len(now) > len(then)]


@contextmanager
def private_temp_folder() -> Iterator[Path]:
    """Within the block, this process and its children keep temporary files in a new folder, which is then deleted."""
    temporary = tempfile.TemporaryDirectory(prefix="forge_check_", ignore_cleanup_errors=True)
    with temporary as folder, temporary_files_in(folder):
        yield Path(folder)


def _more(kind: str, remedy: str, now: Mapping[object, str], then: Mapping[object, str]) -> str:
    names = sorted(name for key, name in now.items() if key not in then)
    more = ", ..." if len(names) > MAX_NAMED else ""
    return f"{len(now) - len(then)} more {kind} ({', '.join(names[:MAX_NAMED])}{more}): {remedy}"


def _descriptors() -> dict[object, str]:
    descriptors: dict[object, str] = {}
    for name in os.listdir("/dev/fd"):
        try:
            target = os.readlink(f"/dev/fd/{name}")
        except OSError:  # the descriptor that listed the folder is closed by now
            continue
        descriptors[name, target] = target
    return descriptors


def _processes(mark: str) -> dict[object, str]:
    """Return the descendants of this process, and orphans that have `mark` in their environment, by process id."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    marked: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = entry.joinpath("stat").read_text(errors="replace").rpartition(")")
            pid = int(entry.name)
            names[pid] = name.partition("(")[2]
            parents[pid] = int(rest.split()[1])
            if mark.encode() in entry.joinpath("environ").read_bytes():
                marked.add(pid)
        except OSError:  # it has ended, or belongs to another user
            continue
    me = os.getpid()
    descendants = {pid for pid in parents if me in _ancestors(pid, parents)}
    return {pid: f"{names[pid]} {pid}" for pid in (descendants | marked) - {me}}


def _ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    while pid in parents and pid != 0:
        pid = parents[pid]
        yield pid
