"""The owner's side of the link to pid 1, whatever is at the other end."""

from __future__ import annotations

import asyncio
import socket

import pytest

from forge_env.core.workspace import WorkspaceLimits
from sandboxes.workspaces.box import Box, BoxEnd


class Keeper:
    """Notes that the box is to be killed, and then reports its end."""

    end_s = 30.0

    def __init__(self) -> None:
        self.ended: asyncio.Future[BoxEnd] = asyncio.get_running_loop().create_future()

    def kill(self, *, keep: int = 0) -> None:
        if not self.ended.done():
            self.ended.set_result(BoxEnd())

    def give_up(self) -> None:
        raise AssertionError("the end was reported")

    def on_link_end(self) -> None:
        self.kill()


@pytest.mark.parametrize(
    "message",
    [b"no json", b"[1]", b'"end"', b'{"end": []}', b'{"end": 1, "status": []}', b'{"refused": 1}', b"\xff\x00"],
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
