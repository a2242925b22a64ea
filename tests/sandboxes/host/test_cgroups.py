"""Control groups: what they stop as a whole, what is told apart by them, and that none is left behind.

Version 1 runs for real where this machine lets us. Version 2 is tested on ordinary folders with files of the kernel's
names, which shows that we read and write the right ones; that a kernel heeds them is NOT shown unless it runs here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from forge_env.core.sandbox import ExecRequest, ExecStatus, Limits, Sandbox
from sandboxes import open_sandbox
from sandboxes.host.cgroup_slots import SlotGroupV1, SlotGroupV2
from sandboxes.host.cgroups import CgroupFolders, Groups, find_groups, find_v1, find_v2, open_groups, reap
from tests.helpers.processes import control_groups
from tests.helpers.sandboxes import opened, owner_of, said_by

MEGABYTE = 2**20


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    """One that has groups."""
    async with opened(slots=1) as sandbox:
        if not sandbox.capabilities.memory_limit.startswith("cgroup"):
            pytest.skip("; ".join(sandbox.capabilities.missing))
        yield sandbox


def groups_of(pid: int) -> list[Path]:
    return [group for group in map(Path, control_groups(pid)) if group.name.startswith("forge_env-")]


TOGETHER = """
import os, signal
for _ in range(8):
    if not os.fork():
        x = bytearray(24 << 20)
        signal.pause()
print(os.waitstatus_to_exitcode(os.wait()[1]))
raise SystemExit(1)
"""
COPES = """
import mmap, os
if not os.fork():
    x = mmap.mmap(-1, 1 << 30)
    for i in range(0, len(x), 4096): x[i] = 1
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
FILES = "with open('x', 'wb') as f:\n    for _ in range(100): f.write(bytes(1 << 20))"
DIES = "import os; x = bytearray(1 << 26); os.kill(os.getpid(), 9)"
# Address space is not what is counted: twenty threads reserve far more of it than the limit. Their stacks are counted.
# From Python 3.13 on a thread that has ended keeps its stack until it is joined.
THREADS = """
import threading
threading.stack_size(1 << 20)
threads = [threading.Thread(target=lambda: None) for _ in range(20)]
for t in threads: t.start()
for t in threads: t.join()
print('ok')
"""
REFUSED = """
import os, signal
try:
    while True:
        if not os.fork(): signal.pause()
except OSError:
    os._exit(3)
"""
COUNTED = "import os\nn = 0\ntry:\n  while os.fork(): n += 1\n  os.kill(os.getpid(), 19)\nexcept OSError: print(n)"


@pytest.mark.parametrize(
    ("code", "limits", "status", "stdout", "peak"),
    [
        (TOGETHER, {"memory_bytes": 96 * MEGABYTE}, ExecStatus.MEMORY, "-9\n", (90, 120)),
        (COPES, {"memory_bytes": 64 * MEGABYTE}, ExecStatus.OK, "-9\n", None),
        (
            FILES,
            {"memory_bytes": 48 * MEGABYTE, "file_bytes": 2**28, "tmp_bytes": 2**28},
            ExecStatus.MEMORY,
            "",
            None,
        ),
        (DIES, {}, ExecStatus.SIGNALED, "", (60, 1024)),  # a death that no limit explains
        (THREADS, {"memory_bytes": 64 * MEGABYTE}, ExecStatus.OK, "ok\n", None),
        (REFUSED, {"processes": 6}, ExecStatus.PIDS, "", None),  # without the code's word
        (COUNTED, {"processes": 6}, ExecStatus.OK, "5\n", None),
    ],
    ids=["together", "copes", "files", "dies", "threads", "refused", "counted"],
)
async def test_how_code_ends(
    sandbox: Sandbox,
    code: str,
    limits: dict[str, int],
    status: ExecStatus,
    stdout: str,
    peak: tuple[int, int] | None,
) -> None:
    result = await sandbox.run(ExecRequest(code=code, limits=Limits(**limits, wall_s=20, cpu_s=20)))
    assert (result.status, result.stdout) == (status, stdout), result
    assert code is not DIES or result.signal == signal.SIGKILL
    assert code is not REFUSED or result.exit_code == 3
    assert peak is None or peak[0] * MEGABYTE < result.peak_memory_bytes < peak[1] * MEGABYTE
    again = await sandbox.run(ExecRequest(code="print(1)", limits=Limits(**limits)))
    assert (again.status, again.stdout) == (ExecStatus.OK, "1\n")


async def test_a_slot_gets_one_cpu_however_many_processes_it_has(sandbox: Sandbox) -> None:
    if not sandbox.capabilities.cpu_share or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs the cpu controller and two CPUs")
    code = """
import os, time
end = time.monotonic() + 0.5
for _ in range(3):
    if not os.fork():
        while time.monotonic() < end: pass
        os._exit(0)
for _ in range(3): os.wait()
used = os.times()
print(used.children_user + used.children_system)
"""
    result = await sandbox.run(ExecRequest(code=code, limits=Limits(wall_s=20, cpu_s=20)))
    assert float(result.stdout) < 0.75  # of CPU time, in half a second


async def test_groups_that_do_not_limit_are_done_without(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel takes the limits but does not heed them, the sandbox opens and says so."""
    monkeypatch.setattr("sandboxes.host.selftest._results", {})
    monkeypatch.setattr(type(open_and_close_groups()), "_set_limits", lambda *_: None)
    async with open_sandbox("namespace", slots=1) as other:
        assert other.capabilities.memory_limit == "rlimit"
        assert "control groups do not work here" in other.capabilities.missing[0]
        limits = Limits(memory_bytes=64 * MEGABYTE)
        result = await other.run(ExecRequest(code="x = bytearray(1 << 28)", limits=limits))
        assert result.status is ExecStatus.MEMORY


def open_and_close_groups() -> SlotGroupV1 | SlotGroupV2:
    groups = open_groups()
    assert isinstance(groups, Groups)
    slot = groups.slot(0, keep_open=False)
    groups.close()
    return slot


async def test_memory_death_of_a_session_is_told_and_it_starts_afresh(sandbox: Sandbox) -> None:
    session = await sandbox.open_session(limits=Limits(memory_bytes=64 * MEGABYTE, wall_s=20, cpu_s=20))
    try:
        code = "import mmap\nx = mmap.mmap(-1, 1 << 28)\nfor i in range(0, len(x), 4096): x[i] = 1"
        result = await session.run(code)
        assert (result.status, result.signal, result.state_lost) == (ExecStatus.MEMORY, signal.SIGKILL, True)
        assert (await session.run("print(1)")).stdout == "1\n"
    finally:
        await session.close()


async def test_groups_are_made_reused_and_removed(sandbox: Sandbox) -> None:
    mine = set(groups_of(os.getpid()))
    async with open_sandbox("namespace", slots=1) as other:
        for _ in range(3):
            await other.run("pass")
        made = set(groups_of(os.getpid())) - mine
        assert made and all(sum(path.is_dir() for path in group.iterdir()) == 1 for group in made)
    assert set(groups_of(os.getpid())) == mine


async def test_groups_of_a_killed_owner_are_removed_by_the_next_sandbox(sandbox: Sandbox) -> None:
    code = """
import asyncio
from sandboxes import open_sandbox
async def main():
    async with open_sandbox("namespace") as sandbox:
        await asyncio.gather(*(sandbox.run("pass") for _ in range(4)), sandbox.open_session())
        print("ready", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
    with owner_of(code) as owner:
        assert said_by(owner) == "ready\n" and groups_of(owner.pid)
    deadline = time.monotonic() + 20
    while groups_of(owner.pid):  # its last processes may take a moment to end
        assert time.monotonic() < deadline
        async with open_sandbox("namespace"):
            await asyncio.sleep(0.05)
    assert (await sandbox.run("print(1)")).stdout == "1\n"  # ours are still there


async def test_without_groups_it_says_so(sandbox: Sandbox) -> None:
    async with open_sandbox("namespace", cgroups=False) as other:
        assert (other.capabilities.memory_limit, other.capabilities.process_limit) == ("rlimit", "rlimit")
        assert "per process only" in other.capabilities.missing[0] and not other.capabilities.cpu_share
        limits = Limits(memory_bytes=64 * MEGABYTE)
        result = await other.run(ExecRequest(code="x = bytearray(1 << 28)", limits=limits))
        assert result.status is ExecStatus.MEMORY


MOUNTS_V1 = """\
24 18 0:21 / {root}/memory rw,relatime - cgroup cgroup rw,memory
25 18 0:22 / {root}/pids rw,relatime - cgroup cgroup rw,pids
26 18 0:23 / {root}/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
27 18 0:24 / {root}/unified rw,relatime - cgroup2 cgroup2 rw
"""
OWN_V1 = "4:memory:/a/b\n3:pids:/\n2:cpu,cpuacct:/gone\n0::/a/b\n"


def test_version_1_is_found_below_the_own_group(tmp_path: Path) -> None:
    for name in ("memory/a/b", "pids", "cpu", "unified/a/b"):
        (tmp_path / name).mkdir(parents=True)
    mounts = MOUNTS_V1.format(root=tmp_path)
    place = find_v1(mounts, OWN_V1)
    assert isinstance(place, CgroupFolders) and place.version == "cgroup_v1"
    folders = {"memory": tmp_path / "memory/a/b", "pids": tmp_path / "pids", "cpu": tmp_path / "cpu"}
    assert place.folders == folders
    assert "memory and pids controllers" in str(find_v2(mounts, OWN_V1))  # mounted, but without controllers
    without = "\n".join(line for line in mounts.splitlines() if "pids" not in line)
    assert find_v1(without, OWN_V1) == "cgroup v1: no pids controller is mounted"


MOUNTS_V2 = "30 18 0:26 {inside} {root} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.fixture
def unified(tmp_path: Path) -> Iterator[Path]:
    """A stand-in for a cgroup v2 hierarchy as systemd makes it: controllers are enabled down to app.slice."""
    folder = tmp_path
    for name, enabled in (("", "cpu memory pids"), ("user", "cpu memory pids"), ("app", "memory pids"), ("scope", "")):
        folder = folder / name
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.subtree_control").write_text(enabled)
        (folder / "cgroup.procs").write_text("")
    yield tmp_path


def test_version_2_is_found_above_the_own_group(unified: Path) -> None:
    place = find_v2(MOUNTS_V2.format(inside="/", root=unified), "0::/user/app/scope\n")
    assert isinstance(place, CgroupFolders) and place.version == "cgroup_v2"
    assert set(place.folders.values()) == {unified / "user/app"}
    # In a container whose mount shows only a part of the tree.
    place = find_v2(MOUNTS_V2.format(inside="/user", root=unified / "user"), "0::/user/app/scope\n")
    assert isinstance(place, CgroupFolders) and set(place.folders.values()) == {unified / "user/app"}


def test_version_2_is_not_taken_above_the_mount_or_without_controllers(unified: Path) -> None:
    for name in ("user/app", "user"):
        (unified / name / "cgroup.subtree_control").write_text("memory")
    refused = find_v2(MOUNTS_V2.format(inside="/user", root=unified / "user"), "0::/user/app/scope\n")
    assert "systemd-run" in str(refused) and "memory and pids" in str(refused)
    assert find_v2("", "0::/\n") == "cgroup v2: it is not mounted"


def test_the_groups_of_any_process_are_found_where_they_are_visible(tmp_path: Path) -> None:
    for name in ("memory/x/y/memory.oom_control", "pids/x/pids.events", "x/memory.oom_control"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    mounts = MOUNTS_V1.format(root=tmp_path)
    both = {"memory": tmp_path / "memory/x/y", "pids": tmp_path / "pids/x"}
    assert find_groups(mounts, "4:memory:/x/y\n3:pids:/x\n0::/gone\n") == both
    assert find_groups(mounts, "4:memory:/../x\n3:pids:/y\n0::/\n") == {}
    (tmp_path / "unified/x").mkdir(parents=True)
    for name in ("memory.events", "pids.events"):
        (tmp_path / "unified/x" / name).touch()
    v2 = MOUNTS_V2.format(inside="/", root=tmp_path / "unified")
    assert find_groups(v2, "0::/x\n") == dict.fromkeys(("memory", "pids"), tmp_path / "unified/x")
    inside = MOUNTS_V2.format(inside="/x", root=tmp_path / "unified/x")
    assert find_groups(inside, "0::/x\n") == dict.fromkeys(("memory", "pids"), tmp_path / "unified/x")
    assert find_groups(inside, "0::/other\n") == {}


FILES_V2 = {
    "cgroup.procs": "", "memory.max": "max", "memory.swap.max": "max", "pids.max": "max", "cpu.max": "max 100000",
    "memory.events": "low 0\nhigh 0\nmax 3\noom 0\noom_kill 0\n", "pids.events": "max 0\n", "pids.current": "1\n",
}  # fmt: skip


def slot_v2(folder: Path) -> SlotGroupV2:
    slot = SlotGroupV2(folder, keep_open=False)
    for name, text in FILES_V2.items():
        (folder / name).write_text(text)
    return slot


def test_version_2_limits_and_counters(tmp_path: Path) -> None:
    slot = slot_v2(tmp_path / "0")
    slot.begin(Limits(memory_bytes=100 * MEGABYTE, processes=30), extra_processes=2)
    read = {name: (tmp_path / "0" / name).read_text() for name in FILES_V2}
    assert read["memory.max"] == str(116 * MEGABYTE) and read["pids.max"].startswith("32")
    assert read["memory.swap.max"].startswith("0")
    calm = slot.end()
    assert not (calm.memory_exceeded or calm.host_out_of_memory or calm.processes_exceeded) and calm.processes == 1

    slot.begin(Limits(), extra_processes=2)
    (tmp_path / "0/memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 2\n")
    (tmp_path / "0/pids.events").write_text("max 4\n")
    use = slot.end()
    assert use.memory_exceeded and use.processes_exceeded and not use.host_out_of_memory

    slot.begin(Limits(), extra_processes=2)
    (tmp_path / "0/memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 3\n")
    use = slot.end()
    assert use.host_out_of_memory and not use.memory_exceeded and not use.processes_exceeded


def test_join_files_are_those_of_the_group(tmp_path: Path) -> None:
    for fd in slot_v2(tmp_path / "0").join_files():
        os.write(fd, b"0")
        os.close(fd)
    assert (tmp_path / "0/cgroup.procs").read_text() == "0"


def test_version_2_groups_enable_their_controllers(unified: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel fills a new group with files; here its mkdir does."""
    make = Path.mkdir

    def mkdir(path: Path, *arguments: object, **named: object) -> None:
        make(path)
        (path / "cgroup.controllers").write_text("cpu memory pids hugetlb")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    app = unified / "user/app"
    groups = Groups(CgroupFolders(version="cgroup_v2", folders={"memory": app, "pids": app}))
    (made,) = app.glob("forge_env-*")
    assert (made / "cgroup.subtree_control").read_text() == "+memory +pids +cpu" and groups.limits_cpu
    assert (made / "0").is_dir()


def test_reaper_takes_the_dead_and_leaves_the_living(tmp_path: Path) -> None:
    namespace = os.stat("/proc/self/ns/pid").st_ino
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead = [f"forge_env-{namespace}-{ended.pid}-123-0", f"forge_env-{namespace}-{os.getpid()}-{int(start) - 1}-0"]
    living = [f"forge_env-{namespace}-{os.getpid()}-{start}-0", "forge_env-1-1-1-1", "other"]
    for name in (*dead, *living):
        (tmp_path / "own" / name / "0").mkdir(parents=True)
    (tmp_path / "beside" / dead[0] / "3").mkdir(parents=True)
    reap(CgroupFolders(version="cgroup_v2", folders={"memory": tmp_path / "own"}))
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == sorted(living)
    assert list((tmp_path / "beside").iterdir()) == []


def test_slots_of_version_1_follow_the_limits_up_and_down() -> None:
    groups = open_groups()
    if isinstance(groups, str):
        pytest.skip(groups)
    try:
        slot = groups.slot(5, keep_open=False)
        if not isinstance(slot, SlotGroupV1):
            pytest.skip("this machine has version 2")
        for megabytes in (64, 512, 32, 32, 900):
            slot.begin(Limits(memory_bytes=megabytes * MEGABYTE), extra_processes=2)
            assert slot.end().processes == 0
    finally:
        groups.close()
    assert groups_of(os.getpid()) == []
