"""Calls of one moment to long endpoints: one message, and each has an end of its own."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from runtime_actors import Choir

from forge_env.core.errors import PolicyError, ReplicaDied, ServiceError
from forge_env.runtime.calls.gathered import Gathered
from forge_env.runtime.launcher import Launcher


def sing(service: Any, *args: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(service.route(Choir.sing, *args))


async def test_calls_of_one_moment_are_one_message_and_each_has_its_own_end(launcher: Launcher) -> None:
    service = await Choir.options().as_service()
    calls = [sing(service, number) for number in range(5)]
    answers = await asyncio.gather(*calls[:4], return_exceptions=True)
    assert answers[:3] == [(0, 1), (1, 1), (2, 1)]
    assert isinstance(answers[3], PolicyError) and str(answers[3]) == "3 is hoarse"
    calls[4].cancel()
    with pytest.raises(asyncio.CancelledError):
        await calls[4]
    assert await asyncio.gather(*(sing(service, number) for number in (7, 8))) == [(7, 2), (8, 2)]
    # What cannot travel ends its call, and no later one.
    for args in ((5,), (6,), (7, threading.Lock())):  # the answer, reading it, and an argument
        for _ in range(2):
            with pytest.raises(ServiceError, match=r"^choir.sing failed: "):
                await service.route(Choir.sing, *args)
        assert (await service.route(Choir.sing, 1))[0] == 1
    assert service.deaths == []


async def test_all_calls_of_a_replica_that_dies_end_or_are_made_again(launcher: Launcher) -> None:
    service = await Choir.options(num_replicas=2).as_service()
    first = await service.session("a").route(Choir.pid)
    view = service.session("a")
    again = [asyncio.create_task(view.route(Choir.outlive, first)) for _ in range(3)]
    lost = [asyncio.create_task(view.route(Choir.sing, 4)) for _ in range(3)]
    assert await view.route(Choir.sing, 1) == (1, 1), "all of them have arrived"
    os.kill(first, signal.SIGKILL)
    assert first not in await asyncio.gather(*again)
    errors = await asyncio.gather(*lost, return_exceptions=True)
    assert all(isinstance(error, ReplicaDied) and "SIGKILL" in str(error) for error in errors)
    assert service.client.retries == 3


class Silent:
    """A replica that writes down which calls were sent to it, and never answers."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.begin_calls = SimpleNamespace(call_one=self._begin)
        self.gone = asyncio.get_running_loop().create_future()
        self.gathered = Gathered(self, self.gone)
        self.gathered._port = "port"

    async def _begin(self, calls: Any, port: Any) -> None:
        self.sent.append([id for id, *_ in calls])
        await asyncio.get_running_loop().create_future()

    def call(self, id: str) -> asyncio.Task[Any]:
        return asyncio.create_task(self.gathered.call((id, "sing", (), {})))


@pytest.mark.parametrize("passes", [1, 2])
async def test_a_call_that_is_cancelled_before_it_is_sent_does_not_travel(passes: int) -> None:
    replica = Silent()
    calls = [replica.call("a"), replica.call("b")]
    for _ in range(passes):
        await asyncio.sleep(0)
    assert replica.sent == []
    calls[0].cancel()
    calls.append(replica.call("c"))
    while not replica.sent:
        await asyncio.sleep(0)
    assert all("a" not in ids and "b" in ids for ids in replica.sent)
    replica.gone.set_result("over")
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert list(map(type, ends)) == [asyncio.CancelledError, ReplicaDied, ReplicaDied]


async def test_nothing_is_sent_if_all_calls_of_a_pass_were_cancelled() -> None:
    replica = Silent()
    call = replica.call("a")
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    while replica.gathered._next or replica.gathered._sending:
        await asyncio.sleep(0)
    assert replica.sent == []


async def test_a_message_on_its_way_is_not_collected_and_ends_with_its_replica() -> None:
    replica = Silent()
    call = replica.call("a")
    while not replica.sent:
        await asyncio.sleep(0)
    gc.collect()
    (sending,) = replica.gathered._sending
    assert not sending.done()
    replica.gone.set_result("it was killed")
    with pytest.raises(ReplicaDied, match="it was killed"):
        await call
    await asyncio.gather(sending, return_exceptions=True)
    assert sending.cancelled() and not replica.gathered._sending
