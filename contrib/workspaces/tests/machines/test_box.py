"""The owner's side of the link to pid 1, whatever is at the other end."""

from __future__ import annotations

import asyncio
import errno
import socket
from pathlib import Path

import pytest

from contrib.workspaces.contract import WorkspaceLimits
from contrib.workspaces.machines.box import Answer, Box, BoxEnd
from contrib.workspaces.machines.command import Outputs, Watched, result_of
from contrib.workspaces.machines.workspace import _require_done as require_done
from forge_env.core.errors import SandboxError
from forge_env.core.sandbox import ExecStatus
from tests.sandboxes.host.test_cgroups import FILES_V2, MEGABYTE, slot_v2


class Keeper:
    """Notes that the box is to be killed, and then reports its end."""

    end_s = 30.0

    def __init__(self) -> None:
        self.end: asyncio.Future[BoxEnd] = asyncio.get_running_loop().create_future()

    def kill(self, *, keep: int = 0) -> None:
        if not self.end.done():
            self.end.set_result(BoxEnd())

    def give_up(self) -> None:
        raise AssertionError("the end was reported")

    def on_link_end(self) -> None:
        self.kill()


@pytest.mark.parametrize(
    "message",
    [
        *(b"no json", b"[1]", b'"end"', b'{"end": []}', b'{"end": 1, "status": []}', b'{"refused": 1}', b"\xff\x00"),
        *(b'{"end": 1e400}', b"[" * 50_000),
    ],
    ids=lambda message: message[:24],
)
async def test_a_pid_1_that_breaks_the_protocol_is_killed(message: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        keeper = Keeper()
        box = Box(ours, keeper)
        _, answered = box.start({"argvs": [["true"]]}, [])
        theirs.send(message)
        async with asyncio.timeout(WorkspaceLimits().wall_s):
            assert await answered is None
        assert not box.alive and ours.fileno() < 0


async def test_a_request_that_cannot_be_sent_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        box = Box(ours, Keeper())
        monkeypatch.setattr(socket, "send_fds", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOBUFS, "no room")))
        with pytest.raises(SandboxError, match="the workspace cannot be told: no room"):
            box.start({"argvs": [["true"]]}, [])
        await box.end()


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.ENFILE])
async def test_only_a_limit_of_the_workspace_is_the_fault_of_a_command_that_did_not_start(
    tmp_path: Path, number: int
) -> None:
    limits = WorkspaceLimits()
    watched, answer = Watched(slot_v2(tmp_path / "0"), limits), Answer(start_errno=number)
    outputs = Outputs(limits, lambda: None)
    try:
        if number == errno.EAGAIN:
            assert result_of(answer, outputs, watched, timed_out=False, wall_s=0).status is ExecStatus.PIDS
            return
        with pytest.raises(SandboxError, match="the machine has no room for another process of the workspace: "):
            result_of(answer, outputs, watched, timed_out=False, wall_s=0)
        with pytest.raises(SandboxError, match="the machine has no room for another process of the workspace: "):
            require_done("/x", answer, "")
        (tmp_path / "0/memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\n")
        assert result_of(answer, outputs, watched, timed_out=False, wall_s=0).status is ExecStatus.MEMORY
    finally:
        outputs.close()


async def test_a_link_that_ends_is_the_end() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keeper = Keeper()
    box = Box(ours, keeper)
    beginning = asyncio.create_task(box.begin({}))
    await asyncio.sleep(0)
    theirs.close()
    async with asyncio.timeout(WorkspaceLimits().wall_s):
        assert (await beginning)["failed"] == "its first process was killed"
    assert not box.alive


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
