"""Control groups: memory, processes and CPU time of everything that one snippet starts, counted from outside.

Where the kernel offers version 2 with the memory and pids controllers and lets us make groups, that is taken, else
version 1 (which in practice needs root). The groups of one sandbox lie in a folder whose name says who owns it, next to
or below the group that this process is in, so that what limits this process limits the snippets too:

    forge_env-<pid namespace>-<pid>-<start time>-<number>/<slot>

They are removed when the sandbox is closed. Those of an owner that was killed are removed when the next sandbox opens.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from sandboxes.host.cgroup_slots import SlotV1, SlotV2

Version = Literal["cgroup_v1", "cgroup_v2"]
_PREFIX = "forge_env-"
_NEEDED = ("memory", "pids")
_numbers = itertools.count()
_REMOVE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where groups can be made: one folder for each controller (version 1), or one for all (version 2)."""

    version: Version
    folders: dict[str, Path] = field(default_factory=dict)


class Groups:
    """The groups of one sandbox. Make one with `open_groups()`; `close()` it when every process in them is gone."""

    def __init__(self, place: Place) -> None:
        self.version = place.version
        name = f"{_PREFIX}{_owner(os.getpid())}-{next(_numbers)}"
        self._folders = {controller: folder / name for controller, folder in place.folders.items()}
        self._slots: dict[int, SlotV1 | SlotV2] = {}
        wanted: list[str] = []
        try:
            for folder in set(self._folders.values()):  # controllers can share a hierarchy
                folder.mkdir()
            if self.version == "cgroup_v2":
                top = self._folders["memory"]
                wanted = [*_NEEDED, *({"cpu"} & set((top / "cgroup.controllers").read_text().split()))]
                (top / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
            self.slot(0, keep_open=True)
            self.limits_cpu = (self.version == "cgroup_v1" and "cpu" in self._folders) or "cpu" in wanted
        except OSError:
            self.close()
            raise

    def slot(self, number: int, *, keep_open: bool) -> SlotV1 | SlotV2:
        """Return the group of a slot, made at its first use and kept (`keep_open`: see `Slot`). Raises OSError."""
        if number not in self._slots:
            folders = {controller: folder / str(number) for controller, folder in self._folders.items()}
            if self.version == "cgroup_v1":
                self._slots[number] = SlotV1(folders, keep_open=keep_open)
            else:
                self._slots[number] = SlotV2(folders["memory"], keep_open=keep_open)
        return self._slots[number]

    def close(self) -> None:
        """Remove the groups. What the kernel still holds is left to the reaper of the next sandbox."""
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()
        deadline = time.monotonic() + _REMOVE_S
        for folder in set(self._folders.values()):
            # A process that has just ended can hold its group for a moment.
            while not _remove(folder) and time.monotonic() < deadline:
                time.sleep(0.005)


def open_groups() -> Groups | str:
    """Return groups to limit snippets with, or the sentence that says what is missing for them."""
    mounts, own = Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
    reasons = []
    for find in (find_v2, find_v1):
        place = find(mounts, own)
        if isinstance(place, str):
            reasons.append(place)
            continue
        reap(place)
        try:
            return Groups(place)
        except OSError as error:
            reasons.append(f"{place.version.replace('_', ' ')}: {error}")
    return "; ".join(reasons)


def find_v2(mounts: str, own: str) -> Place | str:
    """Return the nearest folder of version 2 in which we may make groups that have controllers, or why there is none.

    Args: mounts, own: the text of /proc/self/mountinfo and /proc/self/cgroup.
    """
    mount = next((found for found in _mounts(mounts) if found.kind == "cgroup2"), None)
    path = next((line.partition("::")[2] for line in own.splitlines() if line.startswith("0::")), None)
    if mount is None or path is None:
        return "cgroup v2: it is not mounted"
    folder = _folder(mount, path)
    # A group that holds processes, as our own does, can have no groups with controllers; one above it can.
    for candidate in (folder, *folder.parents):
        if not candidate.is_relative_to(mount.point):
            break
        if _can_hold_groups(candidate):
            return Place(version="cgroup_v2", folders=dict.fromkeys(_NEEDED, candidate))
    return (
        f"cgroup v2: no group from {folder} upwards has the memory and pids controllers enabled for groups below it "
        "and lets this user make some (start it by `systemd-run --user --scope`, or as root)"
    )


def find_v1(mounts: str, own: str) -> Place | str:
    """Return the folders of the memory, pids and (where it may be used) cpu controllers of version 1, or why not."""
    paths: dict[str, str] = {}
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    folders: dict[str, Path] = {}
    for mount in _mounts(mounts):
        if mount.kind == "cgroup":
            here = {"memory", "pids", "cpu"} & set(mount.options) & paths.keys()
            folders |= {controller: _folder(mount, paths[controller]) for controller in sorted(here)}
    absent = [controller for controller in _NEEDED if controller not in folders]
    if absent:
        return f"cgroup v1: no {' and no '.join(absent)} controller is mounted"
    locked = [str(folders[controller]) for controller in _NEEDED if not os.access(folders[controller], os.W_OK)]
    if locked:
        return f"cgroup v1: this user may not make groups in {' and '.join(locked)} (run as root)"
    if "cpu" in folders and not os.access(folders["cpu"], os.W_OK):
        del folders["cpu"]
    return Place(version="cgroup_v1", folders=folders)


def reap(place: Place) -> None:
    """Remove the groups of owners in our pid namespace that do not live any more."""
    namespace = os.stat("/proc/self/ns/pid").st_ino
    for folder in set(place.folders.values()):
        # That owner may have been in a group beside ours, as with one group for each login or job.
        for group in itertools.chain(
            folder.glob(f"{_PREFIX}{namespace}-*"), folder.parent.glob(f"*/{_PREFIX}{namespace}-*")
        ):
            pid = group.name.removeprefix(_PREFIX).split("-")[1]
            if not group.name.startswith(f"{_PREFIX}{_owner(int(pid))}-"):
                _remove(group)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    kind: str
    root: str
    point: Path
    options: list[str]


def _mounts(text: str) -> Iterator[_Mount]:
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        root, point = before.split()[3:5]
        kind, _, options = after.split()[:3]
        yield _Mount(kind=kind, root=root, point=Path(point), options=options.split(","))


def _folder(mount: _Mount, path: str) -> Path:
    """Return the folder of the group `path`. In a container the mount may show only a part, or not our own."""
    inside = PurePosixPath(path)
    if inside.is_relative_to(mount.root):
        folder = mount.point / inside.relative_to(mount.root)
        if folder.is_dir():
            return folder
    return mount.point


def _can_hold_groups(folder: Path) -> bool:
    try:
        enabled = (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
    # To move a process, the kernel wants the right to write this file of the nearest group above both places.
    may_write = os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
    return may_write and set(_NEEDED) <= set(enabled)


def _owner(pid: int) -> str:
    """Return what names a process for as long as it lives, and never another one."""
    namespace = os.stat("/proc/self/ns/pid").st_ino
    try:
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        start = "gone"
    return f"{namespace}-{pid}-{start}"


def _remove(folder: Path) -> bool:
    """Remove a group and those below it; return whether it is gone. The files in it are the kernel's."""
    try:
        for below in folder.iterdir():
            if below.is_dir():
                below.rmdir()
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
