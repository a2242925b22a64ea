"""What this process holds: file descriptors, threads, asyncio tasks, processes and temporary files."""

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

# Pools that outlive every episode on purpose: our own, the event loop's and anyio's. Idle threads end by themselves.
POOLS = ("forge_env", "asyncio_", "AnyIO worker thread")
NAMED = 4  # how many of the things that are left are named


@dataclass(frozen=True, kw_only=True)
class Resources:
    """A snapshot, of each kind a name by what tells one thing from another."""

    descriptors: Mapping[object, str]
    threads: Mapping[object, str]
    tasks: Mapping[object, str]
    processes: Mapping[object, str]
    files: Mapping[object, str]

    @classmethod
    def now(cls, folder: Path) -> Resources:
        """Look at this process; `folder` is where it keeps temporary files, and marks the processes that it started."""
        gc.collect()  # what nothing refers to any more is closed already, or is as good as closed
        return cls(
            descriptors=_descriptors(),
            threads={t: t.name for t in threading.enumerate() if not t.name.startswith(POOLS)},
            tasks={task: _task_name(task) for task in asyncio.all_tasks()},
            processes=_processes(str(folder)),
            files={path: str(path.relative_to(folder)) for path in folder.rglob("*")},
        )

    def left(self, before: Resources) -> list[str]:
        """What there is more of than there was, one sentence part for each kind."""
        kinds = (
            ("file descriptors", "close them in close()", self.descriptors, before.descriptors),
            ("threads", "end and join them in close()", self.threads, before.threads),
            ("asyncio tasks", "cancel and await them in close()", self.tasks, before.tasks),
            ("child processes", "end and await them in close()", self.processes, before.processes),
            ("temporary files", "delete them in close()", self.files, before.files),
        )
        return [_more(what, advice, now, then) for what, advice, now, then in kinds if len(now) > len(then)]


@contextmanager
def own_temp_folder() -> Iterator[Path]:
    """Let this process and its children keep temporary files in a folder of their own for a while."""
    made = tempfile.TemporaryDirectory(prefix="forge_check_", ignore_cleanup_errors=True)
    with made as folder, temporary_files_in(folder):
        yield Path(folder)


def _more(what: str, advice: str, now: Mapping[object, str], then: Mapping[object, str]) -> str:
    names = sorted(name for key, name in now.items() if key not in then)
    more = ", ..." if len(names) > NAMED else ""
    return f"{len(now) - len(then)} more {what} ({', '.join(names[:NAMED])}{more}): {advice}"


def _task_name(task: asyncio.Task[object]) -> str:
    return getattr(task.get_coro(), "__qualname__", task.get_name())


def _descriptors() -> dict[object, str]:
    found: dict[object, str] = {}
    for name in os.listdir("/dev/fd"):
        try:
            target = os.readlink(f"/dev/fd/{name}")
        except OSError:  # the one that listed the folder
            continue
        found[name, target] = target
    return found


def _processes(mark: str) -> dict[object, str]:
    """The processes below this one, and those that left it and still have `mark` in their environment, by id."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    marked: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = entry.joinpath("stat").read_text(errors="replace").rpartition(")")
            number = int(entry.name)
            names[number] = name.partition("(")[2]
            parents[number] = int(rest.split()[1])
            if mark.encode() in entry.joinpath("environ").read_bytes():
                marked.add(number)
        except OSError:  # it ended meanwhile, or is somebody else's
            continue
    me = os.getpid()
    below = {number for number in parents if me in _ancestors(number, parents)}
    return {number: f"{names[number]} {number}" for number in (below | marked) - {me}}


def _ancestors(number: int, parents: Mapping[int, int]) -> Iterator[int]:
    while number in parents and number != 0:
        number = parents[number]
        yield number
