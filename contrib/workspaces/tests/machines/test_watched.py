"""The group of a workspace: what counts as its memory, and what it has used."""

from __future__ import annotations

from pathlib import Path

from contrib.workspaces.contract import WorkspaceLimits
from contrib.workspaces.machines.command import Watched
from tests.sandboxes.host.test_cgroups import FILES_V2, MEGABYTE, slot_v2


def test_a_workspace_counts_its_disk_as_memory_in_version_2(tmp_path: Path) -> None:
    slot = slot_v2(tmp_path / "0")
    watched = Watched(
        slot, WorkspaceLimits(memory_bytes=100 * MEGABYTE, disk_bytes=50 * MEGABYTE, processes=9, cpus=0.5)
    )
    read = {name: (tmp_path / "0" / name).read_text() for name in FILES_V2}
    assert read["memory.max"] == str(166 * MEGABYTE) and read["pids.max"].startswith("10")
    assert read["cpu.max"] == "50000 100000"
    assert not watched.usage().memory_exceeded
    (tmp_path / "0/memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\n")
    assert watched.usage().memory_exceeded and not watched.usage().memory_exceeded, "counted once"
