"""The owner's side of a controlled process: messages that wait for room, and how its death is told."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from forge_env.core.errors import SandboxError, SandboxUnavailable
from sandboxes.host.controlled import Controlled
from sandboxes.host.restarted import Restarted
from tests.helpers.waiting import DEADLINE_S

COUNT = 50


@dataclass(frozen=True, kw_only=True)
class End:
    text: str = ""
    failure: str = ""


class Peer(Controlled[End]):
    """The test is the process: it has the other end of the socket."""

    program = Path()
    who = "the peer"
    end = End
    end_key = "ended"
    close_s = 1.0


Link = tuple[socket.socket, socket.socket]


@pytest.fixture
def link() -> Iterator[Link]:
    """The ends of the owner and of the process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel takes its least
    theirs.settimeout(DEADLINE_S)
    with theirs:
        yield ours, theirs


def peer_at(ours: socket.socket, *, code: int = 0) -> Peer:
    process = subprocess.Popen([sys.executable, "-c", f"import os; os._exit({code})"])
    return Peer(process, ours)


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def send_all(peer: Peer) -> list[asyncio.Future[End]]:
    """Send numbered orders with a file each that names its number, and a message without one after each."""
    ends = []
    for number in range(1, COUNT + 1):
        read, write = os.pipe()
        os.write(write, str(number).encode())
        ends.append(peer._work(number, {"open": number}, [read]))
        peer._send({"kill": number})
        os.close(read)
        os.close(write)
    return ends


def answer_all(theirs: socket.socket) -> list[str]:
    """Read every order, and report an end with what its file held; return the messages in their order."""
    seen: list[str] = []
    while len(seen) < 2 * COUNT:
        data, fds, _, _ = socket.recv_fds(theirs, 2**16, 4)
        message = json.loads(data)
        seen.append(next(iter(message)))
        for fd in fds:
            theirs.send(json.dumps({"ended": message["open"], "text": os.read(fd, 9).decode()}).encode())
            os.close(fd)
    return seen


@pytest.mark.parametrize("refusal", [0, errno.ETOOMANYREFS], ids=["full", "too many descriptors"])
async def test_orders_wait_for_room_in_order(link: Link, refusal: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = link
    peer, before, send = peer_at(ours), open_files(), socket.send_fds
    refusals = [OSError(refusal, "")] * 3 if refusal else []

    def refuse_some(*arguments: object) -> int:
        if refusals:
            raise refusals.pop()
        return send(*arguments)

    monkeypatch.setattr(socket, "send_fds", refuse_some)
    ends = send_all(peer)
    assert peer.alive and peer._unsent and open_files() > before
    seen = await asyncio.to_thread(answer_all, theirs)
    async with asyncio.timeout(DEADLINE_S):
        assert [(await end).text for end in ends] == [str(number) for number in range(1, COUNT + 1)]
    assert seen == ["open", "kill"] * COUNT and open_files() == before
    await peer.close()


async def test_what_cannot_be_sent_fails_alone(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = link
    peer = peer_at(ours)
    with monkeypatch.context() as patch:
        patch.setattr(socket, "send_fds", lambda *_: (_ for _ in ()).throw(OSError(errno.EBADF, "bad file")))
        refused = peer._work(1, {"open": 1}, [0])
    assert (await refused).failure == "the peer cannot be told: bad file" and peer.alive
    accepted = peer._work(2, {"open": 2}, [])
    theirs.send(b'{"ended": 2, "text": "yes"}')
    async with asyncio.timeout(DEADLINE_S):
        assert (await accepted).text == "yes"
    await peer.close()


@pytest.mark.parametrize("how", ["at the end of the socket", "at the next message"])
async def test_a_death_is_told_with_its_end_and_closes_what_waits(link: Link, how: str) -> None:
    ours, theirs = link
    before = open_files()
    peer = peer_at(ours, code=7)
    ends = send_all(peer)
    assert peer._unsent
    theirs.send(b'{"ended": 1, "text": "before"}')
    theirs.send(b'{"died": "KeyError: 5"}')
    socket.recv_fds(theirs, 2**16, 0)
    theirs.shutdown(socket.SHUT_RDWR)
    if how == "at the next message":
        peer._send_rest()
    async with asyncio.timeout(DEADLINE_S):
        first, *others = [await end for end in ends]
    assert first.text == "before"
    assert {end.failure for end in others} == {"the peer ended with exit code 7: KeyError: 5"} == {peer.reason}
    late = peer._work(99, {"open": 99}, [])
    assert (await late).failure == peer.reason
    await peer.close()
    assert open_files() < before, "and its own socket"


class Process:
    def __init__(self) -> None:
        self.alive, self.reason, self.closed = True, "it died", False

    async def close(self) -> None:
        self.alive, self.closed = False, True


async def test_a_dead_process_is_started_again_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Process] = []

    async def start() -> Process:
        await asyncio.sleep(0)
        started.append(Process())
        return started[-1]

    first = Process()
    kept = Restarted(first, start, closed="it is closed")
    assert await kept.live() is first
    first.alive = False
    assert set(await asyncio.gather(*(kept.live() for _ in range(5)))) == set(started) and len(started) == 1
    assert first.closed
    started[0].alive = False
    assert await kept.live() is started[1]
    started[1].alive = False
    with pytest.raises(SandboxError, match="^it died; that was the last of 3 deaths within 60 s"):
        await kept.live()
    assert len(started) == 2
    monkeypatch.setattr("sandboxes.host.restarted._STARTS_S", 0.0)
    assert await kept.live() is started[2], "later"
    await kept.close()
    with pytest.raises(SandboxError, match="it is closed"):
        await kept.live()
    assert len(started) == 3 and started[2].closed


@pytest.mark.parametrize("error", [SandboxUnavailable("no room"), OSError(errno.EMFILE, "no room")])
async def test_a_start_that_fails_is_a_fault(error: Exception) -> None:
    async def start() -> Process:
        raise error

    kept = Restarted(Process(), start, closed="it is closed")
    kept.process.alive = False
    with pytest.raises(SandboxError, match="no room"):
        await kept.live()
