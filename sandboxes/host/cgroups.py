"""Control groups: they limit and count memory, processes and CPU share of all processes of a snippet.

Version 2 is used if the kernel has its memory and pids controllers and lets this user create groups, else version 1
(which in practice needs root). The groups of one sandbox are in a folder named after the owner. It is beside or below
the group of this process, so the limits of this process apply to the snippets, too:

    forge_env-<pid namespace>-<pid>-<start time>-<number>/<slot>

They are removed when the sandbox is closed. Groups of a killed owner are removed when the next sandbox opens.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from sandboxes.host.cgroup_slots import SlotGroupV1, SlotGroupV2

Version = Literal["cgroup_v1", "cgroup_v2"]
_PREFIX = "forge_env-"
_NEEDED = ("memory", "pids")
_numbers = itertools.count()
_REMOVE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupFolders:
    """Folders in which groups can be created: one per controller (version 1), or one for all (version 2)."""

    version: Version
    folders: dict[str, Path] = field(default_factory=dict)


class Groups:
    """The groups of one sandbox, from `open_groups()`. Call `close()` after the last process in them has ended."""

    def __init__(self, folders: CgroupFolders) -> None:
        self.version = folders.version
        name = f"{_PREFIX}{owner_name(os.getpid())}-{next(_numbers)}"
        self._folders = {controller: folder / name for controller, folder in folders.folders.items()}
        self._slots: dict[int, SlotGroupV1 | SlotGroupV2] = {}
        controllers: list[str] = []
        try:
            for folder in set(self._folders.values()):  # controllers can share a hierarchy
                folder.mkdir()
            if self.version == "cgroup_v2":
                top = self._folders["memory"]
                controllers = [*_NEEDED, *({"cpu"} & set((top / "cgroup.controllers").read_text().split()))]
                (top / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
            self.slot(0, keep_open=True)
            self.limits_cpu = (self.version == "cgroup_v1" and "cpu" in self._folders) or "cpu" in controllers
        except OSError:
            self.close()
            raise

    def slot(self, number: int, *, keep_open: bool) -> SlotGroupV1 | SlotGroupV2:
        """Return the group of a slot, created at its first use (`keep_open`: see `SlotGroup`). Raises OSError."""
        if number not in self._slots:
            folders = {controller: folder / str(number) for controller, folder in self._folders.items()}
            try:
                if self.version == "cgroup_v1":
                    self._slots[number] = SlotGroupV1(folders, keep_open=keep_open)
                else:
                    self._slots[number] = SlotGroupV2(folders["memory"], keep_open=keep_open)
            except OSError:
                for folder in folders.values():
                    with contextlib.suppress(OSError):
                        folder.rmdir()
                raise
        return self._slots[number]

    def drop(self, number: int) -> None:
        if (slot := self._slots.pop(number, None)) is not None:
            slot.close()

    @property
    def tops(self) -> list[Path]:
        return sorted(set(self._folders.values()))

    def close(self) -> None:
        """Remove the groups. The next sandbox reaps a group that the kernel still holds."""
        for number in tuple(self._slots):
            self.drop(number)  # another thread may drop it, too
        deadline = time.monotonic() + _REMOVE_S
        for folder in set(self._folders.values()):
            # A process that has just ended can hold its group for milliseconds; on a busy machine, for longer.
            while not _remove(folder) and time.monotonic() < deadline:
                time.sleep(0.005)


def open_groups() -> Groups | str:
    """Return the groups, or a sentence with the reason for having none."""
    mounts, membership = Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
    reasons = []
    for find in (find_v2, find_v1):
        folders = find(mounts, membership)
        if isinstance(folders, str):
            reasons.append(folders)
            continue
        reap(folders)
        try:
            return Groups(folders)
        except OSError as error:
            reasons.append(f"{folders.version.replace('_', ' ')}: {error}")
    return "; ".join(reasons)


def find_v2(mounts: str, membership: str) -> CgroupFolders | str:
    """Return the nearest folder of version 2 for groups with controllers, or the reason for having none.

    Args: mounts, membership: the text of /proc/self/mountinfo and /proc/self/cgroup.
    """
    mount = next((mount for mount in _mounts(mounts) if mount.kind == "cgroup2"), None)
    path = _paths(membership).get("")
    if mount is None or path is None:
        return "cgroup v2: it is not mounted"
    folder = _folder(mount, path)
    # A group with processes, as this process's group, cannot hold groups with controllers; one above it can.
    for candidate in (folder, *folder.parents):
        if not candidate.is_relative_to(mount.point):
            break
        if _can_hold_groups(candidate):
            return CgroupFolders(version="cgroup_v2", folders=dict.fromkeys(_NEEDED, candidate))
    return (
        f"cgroup v2: no group from {folder} upwards has the memory and pids controllers enabled for groups below it "
        "and lets this user make some (start it by `systemd-run --user --scope`, or as root)"
    )


def find_v1(mounts: str, membership: str) -> CgroupFolders | str:
    """Return the folders of the memory, pids and (if usable) cpu controllers of version 1, or the reason against it."""
    paths = _paths(membership)
    folders: dict[str, Path] = {}
    for mount in _mounts(mounts):
        if mount.kind == "cgroup":
            here = {"memory", "pids", "cpu"} & set(mount.options) & paths.keys()
            folders |= {controller: _folder(mount, paths[controller]) for controller in sorted(here)}
    absent = [controller for controller in _NEEDED if controller not in folders]
    if absent:
        return f"cgroup v1: no {' and no '.join(absent)} controller is mounted"
    read_only = [str(folders[controller]) for controller in _NEEDED if not os.access(folders[controller], os.W_OK)]
    if read_only:
        return f"cgroup v1: this user may not make groups in {' and '.join(read_only)} (run as root)"
    if "cpu" in folders and not os.access(folders["cpu"], os.W_OK):
        del folders["cpu"]
    return CgroupFolders(version="cgroup_v1", folders=folders)


def groups_of(pid: int) -> dict[str, Path]:
    """Return the folders of the groups "memory" and "pids" of any process, as far as they are visible here."""
    try:
        membership = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return {}
    return find_groups(Path("/proc/self/mountinfo").read_text(), membership)


def find_groups(mounts: str, membership: str) -> dict[str, Path]:
    """The groups of `groups_of`. Args: as for `find_v2`, the membership of any process."""
    paths = {controller: PurePosixPath(path) for controller, path in _paths(membership).items()}
    folders: dict[str, Path] = {}
    for mount in _mounts(mounts):
        if mount.kind not in ("cgroup", "cgroup2"):
            continue
        for name in _NEEDED:
            in_v1 = mount.kind == "cgroup" and name in mount.options
            path_of_it = paths.get(name if in_v1 else "") if in_v1 or mount.kind == "cgroup2" else None
            if path_of_it is None or ".." in path_of_it.parts or not path_of_it.is_relative_to(mount.root):
                continue
            folder = mount.point / path_of_it.relative_to(mount.root)
            if (folder / ("memory.oom_control" if in_v1 and name == "memory" else f"{name}.events")).exists():
                folders[name] = folder
    return folders


def reap(folders: CgroupFolders) -> None:
    """Remove the groups of dead owners in this pid namespace."""
    namespace = os.stat("/proc/self/ns/pid").st_ino
    for folder in set(folders.folders.values()):
        # The owner may have been in a group beside this one: systems make one per login or job.
        name = f"{_PREFIX}{namespace}-*"
        for group in itertools.chain(folder.glob(name), folder.parent.glob(f"*/{name}")):
            pid = group.name.removeprefix(_PREFIX).split("-")[1]
            if not group.name.startswith(f"{_PREFIX}{owner_name(int(pid))}-"):
                _remove(group)


def _paths(membership: str) -> dict[str, str]:
    """The path of the group by controller; "" is version 2."""
    lines = (line.split(":", 2) for line in membership.splitlines())
    return {name: path for _, controllers, path in lines for name in controllers.split(",")}


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
    """Return the folder of the group `path`. In a container the mount may not show it: then the mount point."""
    inside = PurePosixPath(path)
    folder = mount.point / inside.relative_to(mount.root) if inside.is_relative_to(mount.root) else mount.point
    return folder if folder.is_dir() else mount.point


def _can_hold_groups(folder: Path) -> bool:
    try:
        controllers = (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
    # To move a process, the kernel requires write access to this file of the nearest common group.
    may_write = os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)
    return may_write and set(_NEEDED) <= set(controllers)


def owner_name(pid: int) -> str:
    """Return a name that is unique to a process: pid namespace, pid and start time."""
    namespace = os.stat("/proc/self/ns/pid").st_ino
    try:
        start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        start = "gone"
    return f"{namespace}-{pid}-{start}"


def _remove(folder: Path) -> bool:
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
