"""Control groups: what they stop as a whole, what is told apart by them, and that none is left behind.

Version 1 runs for real where this machine lets us. Version 2 is tested on ordinary folders with files of the kernel's
names, which shows that we read and write the right ones; that a kernel heeds them is NOT shown unless it runs here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from forge_env.core.errors import SandboxUnavailable
from forge_env.core.sandbox import ExecRequest, ExecStatus, Limits, Sandbox
from sandboxes import open_sandbox
from sandboxes.host.cgroup_slots import SlotGroupV1, SlotGroupV2
from sandboxes.host.cgroups import CgroupFolders, Groups, find_groups, find_v1, find_v2, open_groups, reap
from tests.helpers.processes import control_groups

ROOT = Path(__file__).parents[3]
MEGABYTE = 2**20


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    """One that has groups."""
    try:
        async with open_sandbox("namespace", slots=1) as opened:
            if not opened.capabilities.memory_limit.startswith("cgroup"):
                pytest.skip("; ".join(opened.capabilities.missing))
            yield opened
    except SandboxUnavailable as error:
        pytest.skip(str(error))


def groups_of(pid: int) -> list[Path]:
    return [group for group in map(Path, control_groups(pid)) if group.name.startswith("forge_env-")]


async def test_memory_of_all_processes_together_is_limited(sandbox: Sandbox) -> None:
    code = """
import os, signal
for _ in range(8):
    if not os.fork():
        x = bytearray(24 << 20)
        signal.pause()
print(os.waitstatus_to_exitcode(os.wait()[1]))
raise SystemExit(1)
"""
    limits = Limits(memory_bytes=96 * MEGABYTE, wall_s=20, cpu_s=20)
    result = await sandbox.run(ExecRequest(code=code, limits=limits))
    assert (result.status, result.stdout) == (ExecStatus.MEMORY, "-9\n"), result
    assert 90 * MEGABYTE < result.peak_memory_bytes < 120 * MEGABYTE
    again = await sandbox.run(ExecRequest(code="print(1)", limits=limits))
    assert (again.status, again.stdout) == (ExecStatus.OK, "1\n")


async def test_code_that_copes_with_a_killed_child_is_fine(sandbox: Sandbox) -> None:
    code = """
import mmap, os
if not os.fork():
    x = mmap.mmap(-1, 1 << 30)
    for i in range(0, len(x), 4096): x[i] = 1
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    result = await sandbox.run(ExecRequest(code=code, limits=Limits(memory_bytes=64 * MEGABYTE, wall_s=20, cpu_s=20)))
    assert (result.status, result.stdout) == (ExecStatus.OK, "-9\n"), result


async def test_files_count_as_memory(sandbox: Sandbox) -> None:
    code = "with open('x', 'wb') as f:\n    for _ in range(100): f.write(bytes(1 << 20))"
    limits = Limits(memory_bytes=48 * MEGABYTE, file_bytes=2**28, tmp_bytes=2**28, wall_s=20, cpu_s=20)
    assert (await sandbox.run(ExecRequest(code=code, limits=limits))).status is ExecStatus.MEMORY


async def test_a_death_that_no_limit_explains_is_no_memory_death(sandbox: Sandbox) -> None:
    result = await sandbox.run("import os; x = bytearray(1 << 26); os.kill(os.getpid(), 9)")
    assert (result.status, result.signal) == (ExecStatus.SIGNALED, signal.SIGKILL)
    assert result.peak_memory_bytes > 60 * MEGABYTE


async def test_refused_processes_are_told_without_the_codes_word(sandbox: Sandbox) -> None:
    code = """
import os, signal
try:
    while True:
        if not os.fork(): signal.pause()
except OSError:
    os._exit(3)
"""
    result = await sandbox.run(ExecRequest(code=code, limits=Limits(processes=6)))
    assert (result.status, result.exit_code) == (ExecStatus.PIDS, 3)
    counted = "import os\nn = 0\ntry:\n  while os.fork(): n += 1\n  os.kill(os.getpid(), 19)\nexcept OSError: print(n)"
    result = await sandbox.run(ExecRequest(code=counted, limits=Limits(processes=6)))
    assert (result.status, result.stdout) == (ExecStatus.OK, "5\n")


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


async def test_numpy_and_many_threads_fit(sandbox: Sandbox) -> None:
    """Address space is not what is counted: twenty threads reserve far more of it than the limit.

    Their stacks are counted. From Python 3.13 on a thread that has ended keeps its stack until it is joined.
    """
    code = "import threading\nthreading.stack_size(1 << 20)\n"
    code += "threads = [threading.Thread(target=lambda: None) for _ in range(20)]\n"
    code += "for t in threads: t.start()\nfor t in threads: t.join()\nprint('ok')"
    result = await sandbox.run(ExecRequest(code=code, limits=Limits(memory_bytes=64 * MEGABYTE)))
    assert (result.status, result.stdout) == (ExecStatus.OK, "ok\n"), result


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
    environ = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "PATH": os.environ["PATH"]}
    with subprocess.Popen([sys.executable, "-c", code], env=environ, text=True, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == "ready\n"
        assert groups_of(owner.pid)
        owner.kill()
        owner.wait()
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
