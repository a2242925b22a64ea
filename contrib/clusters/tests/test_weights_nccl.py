"""The store that sends weights by NCCL, here between processes on the CPU by gloo: the same code but for the library.

What is fetched is what was published, nobody waits for a dead or a slow one, and nothing stays.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from forge_env.core.errors import InvariantError, ServiceError

pytest.importorskip("torch")

import torch
from nccl_process import NcclProcess
from state_dicts import failing_half_way, fingerprints, make_state_dict
from weights_process import make_weights

from contrib.clusters.nccl.communicator import (
    CHUNK_BYTES,
    SENDER,
    PairCommunicator,
    Rendezvous,
)
from contrib.clusters.nccl.connection import Connection
from contrib.clusters.nccl.publisher import KEY, Publisher
from contrib.clusters.nccl.puller import PublisherLink
from contrib.clusters.nccl.store import SECONDS, NcclStore
from forge_env.runtime.weights import WeightStream
from forge_env.runtime.weights.tensor_layout import TensorLayout
from tests.helpers.waiting import is_stopped, until

DEADLINE_S = 60.0
LARGE = 3 * CHUNK_BYTES // 2**20  # MiB, which are at least four pieces with the small tensors


class Run:
    """A store as the controller has it, and copies of it as it travelled."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.store = NcclStore(seconds=seconds)
        self.travelled: list[NcclStore] = []
        self.processes: list[NcclProcess] = []

    async def __aenter__(self) -> Run:
        await self.store.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.processes:
            process.close()
        for store in [*self.travelled, self.store]:
            await store.close()

    def copy(self) -> NcclStore:
        """The store as another process has it."""
        self.travelled.append(pickle.loads(pickle.dumps(self.store)))
        return self.travelled[-1]

    def process(self) -> NcclProcess:
        self.processes.append(NcclProcess(self.store))
        return self.processes[-1]


@pytest_asyncio.fixture
async def run() -> AsyncIterator[Run]:
    async with Run() as run:
        yield run


async def fetched(store: NcclStore, version: int) -> dict[str, str]:
    async with store.fetch(version) as state_dict:
        return fingerprints(state_dict)


def told(seed: int, mib: int = 0) -> dict[str, str]:
    return fingerprints(make_weights(seed, mib))


def publisher_of(store: NcclStore) -> Publisher:
    assert store._publisher is not None
    return store._publisher


# ---- what is published ----


async def test_every_dtype_and_shape_comes_to_other_processes_bit_for_bit(run: Run) -> None:
    publisher, *pullers = (run.process() for _ in range(3))
    for version in range(3):
        assert await publisher.ask(f"publish {version} {version + 5}") == "published"
        for answer in await asyncio.gather(*(puller.ask(f"fetch {version}") for puller in pullers)):
            assert answer["fingerprints"] == told(version + 5)


async def test_the_tensors_are_as_the_other_stores_give_them(run: Run) -> None:
    state_dict, trainer, engine = make_state_dict(0), run.copy(), run.copy()
    await trainer.publish(0, state_dict)
    async with engine.fetch(0) as found:
        assert list(found) == list(state_dict)
        assert fingerprints(found) == fingerprints(state_dict)
        assert all(tensor.is_contiguous() for tensor in found.values())
        assert all(tensor.data_ptr() % 64 == 0 for tensor in found.values() if tensor.numel())


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 64])
async def test_any_number_of_bytes_is_moved(run: Run, size: int) -> None:
    sent = torch.randint(0, 256, (size,), dtype=torch.uint8)
    trainer, engine = run.copy(), run.copy()
    await trainer.publish(0, {"bytes": sent})
    async with engine.fetch(0) as found:
        assert torch.equal(found["bytes"], sent)


async def test_a_model_without_weights_is_one_too(run: Run) -> None:
    trainer, engine = run.copy(), run.copy()
    await trainer.publish(0, {})
    assert await fetched(engine, 0) == {}


async def test_a_published_version_never_changes(run: Run) -> None:
    state_dict, trainer, engine = make_state_dict(1), run.copy(), run.copy()
    taken = trainer.take(0, WeightStream.of(state_dict))
    for tensor in state_dict.values():
        tensor.zero_()
    await trainer.commit(taken)
    with pytest.raises(
        InvariantError, match="^version 0 of the weights was published already; a version never changes$"
    ):
        await trainer.publish(0, make_state_dict(2))
    assert await fetched(engine, 0) == told(1)
    late = trainer.take(1, WeightStream.of(make_state_dict(3)))
    await trainer.publish(1, make_state_dict(4))
    with pytest.raises(InvariantError, match="^version 1 of the weights was published already"):
        await trainer.commit(late)
    assert await fetched(engine, 1) == told(4)


async def test_what_is_taken_and_not_committed_is_not_there(run: Run) -> None:
    trainer, engine = run.copy(), run.copy()
    await trainer.publish(0, make_state_dict(0))
    taken = trainer.take(1, WeightStream.of(make_state_dict(1)))
    with pytest.raises(ServiceError, match="^the weight store has no version 1; it has none$"):
        await fetched(engine, 1)
    del taken  # its caller was cancelled: the memory is free again
    await trainer.publish(2, make_state_dict(2))
    assert publisher_of(trainer).allocated == 1
    assert await fetched(engine, 2) == told(2)


async def test_only_the_last_version_stays_in_memory_for_one(run: Run) -> None:
    trainer, engine = run.copy(), run.copy()
    with pytest.raises(ServiceError, match="^the weight store has no version 7; it has none$"):
        await fetched(engine, 7)
    for version in (7, 8, 100, 101):  # a run that goes on from a checkpoint begins at a later one
        await trainer.publish(version, make_state_dict(version))
        assert await fetched(engine, version) == told(version)
    assert publisher_of(trainer).allocated == 1
    for version in (7, 100):
        with pytest.raises(ServiceError, match=f"^the weight store has no version {version}; it has 101$"):
            await fetched(engine, version)
    assert await fetched(engine, 101) == told(101)


async def test_what_was_sent_is_free_before_the_puller_knows_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, engine, published, send = run.copy(), run.copy(), threading.Event(), Connection.send

    def send_and_wait(connection: Connection, **message: object) -> None:
        send(connection, **message)
        if "sent" in message:  # the thread that serves stands here until the next version is published
            assert published.wait(DEADLINE_S)

    monkeypatch.setattr(Connection, "send", send_and_wait)
    await trainer.publish(0, make_state_dict(0))
    assert await fetched(engine, 0) == told(0)
    await trainer.publish(1, make_state_dict(1))
    allocated = publisher_of(trainer).allocated
    published.set()
    assert allocated == 1
    assert await fetched(engine, 1) == told(1)


async def test_a_stream_that_fails_half_way_leaves_no_version_and_its_memory_free(run: Run) -> None:
    trainer, engine = run.copy(), run.copy()
    for version in (0, 1):
        await trainer.publish(version, make_state_dict(version))
    errors = []
    for _ in range(2):
        try:
            trainer.take(2, failing_half_way(make_state_dict(2)))
        except ZeroDivisionError as error:
            errors.append(error)  # kept, with all that its traceback refers to
    assert len(errors) == 2 and publisher_of(trainer).allocated == 1
    with pytest.raises(ServiceError, match="^the weight store has no version 2; it has none$"):
        await fetched(engine, 2)
    await trainer.publish(2, make_state_dict(5))
    assert await fetched(engine, 2) == told(5) and publisher_of(trainer).allocated == 1


async def test_larger_weights_take_the_place_of_smaller_ones(run: Run) -> None:
    trainer, engine = run.copy(), run.copy()
    for version, size in enumerate((10, 10, 10_000, 10_000, 10, 10_000)):
        await trainer.publish(version, {"weight": torch.full((size,), float(version))})
        async with engine.fetch(version) as found:
            assert torch.equal(found["weight"], torch.full((size,), float(version)))
    assert publisher_of(trainer).allocated == 1


# ---- several at a time ----


async def test_a_slow_puller_gets_its_version_while_others_come_and_go(run: Run) -> None:
    trainer, engine = run.copy(), run.copy()
    await trainer.publish(0, make_state_dict(0))
    slow = PublisherLink(trainer._prepared, version=0, gpu=0, seconds=DEADLINE_S)
    layout = slow.request(0)
    for version in range(1, 5):
        await trainer.publish(version, make_state_dict(version))
        assert await fetched(engine, version) == told(version)
    assert publisher_of(trainer).allocated == 2  # the last version, and the one that is asked for
    assert fingerprints(await asyncio.to_thread(slow.receive, layout)) == told(0)
    await until(lambda: len(publisher_of(trainer)._alive) == 1, "the publisher lets go of version 0")
    await trainer.publish(5, make_state_dict(5))
    assert publisher_of(trainer).allocated == 1
    slow.close()


async def test_fetches_of_one_process_at_the_same_time_have_memory_of_their_own(run: Run) -> None:
    trainer, engine = run.copy(), run.copy()
    await trainer.publish(0, make_state_dict(0))
    async with engine.fetch(0) as old:
        await trainer.publish(1, make_state_dict(1))
        async with engine.fetch(1) as new:
            assert (fingerprints(old), fingerprints(new)) == (told(0), told(1))
    pointers = []
    for _ in range(2):
        async with engine.fetch(1) as found:
            pointers.append(found["steps"].data_ptr())
    assert pointers[0] == pointers[1], "a later fetch has the memory of an earlier one"


async def test_pullers_never_see_a_mixture(run: Run) -> None:
    """Every version is all one number; pullers fetch while the publisher goes round in its memory."""
    trainer, newest, done = run.copy(), 0, asyncio.Event()
    seen = [0, 0, 0]

    async def read(reader: int) -> None:
        mine = run.copy()
        while not done.is_set():
            version = newest
            try:
                async with mine.fetch(version) as found:
                    values = torch.stack([tensor.clone() for tensor in found.values()])
            except ServiceError as error:
                assert "no version" in str(error)  # forgotten meanwhile
                continue
            assert values.eq(version).all()
            seen[reader] += 1

    async def write() -> None:
        nonlocal newest
        try:
            for version in range(1, 150):
                if version == 50:  # the one before it stays for a while
                    await until(lambda: min(seen) > 0, "every reader has found one")
                state_dict = {str(i): torch.full((64, 64), float(version)) for i in range(8)}
                await trainer.commit(await asyncio.to_thread(trainer.take, version, WeightStream.of(state_dict)))
                newest = version
        finally:
            done.set()

    await trainer.publish(0, {str(i): torch.zeros(64, 64) for i in range(8)})
    await asyncio.gather(write(), *(read(reader) for reader in range(len(seen))))


async def test_a_fetch_that_is_cancelled_leaves_the_next_one_alone(run: Run) -> None:
    trainer, engine = run.copy(), run.copy()
    await trainer.publish(0, make_weights(0, LARGE))
    fetch = asyncio.create_task(fetched(engine, 0))
    await until(lambda: engine._puller is not None, "the fetch begins")
    fetch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetch
    assert await fetched(engine, 0) == told(0, LARGE)
    assert engine._puller is not None
    await until(lambda: not engine._puller._busy, "the cancelled one is over")


# ---- deaths ----


async def test_a_killed_puller_holds_nothing_and_nobody(run: Run) -> None:
    trainer, dying, other = run.copy(), run.process(), run.process()
    await trainer.publish(0, make_weights(0, LARGE))
    assert (await other.ask("fetch 0"))["fingerprints"] == told(0, LARGE)
    assert await dying.ask("die 0") == "broken off"
    assert await asyncio.to_thread(dying.ended) == -signal.SIGKILL
    await until(lambda: len(publisher_of(trainer)._serving) == 1, "its thread ends")
    for version in (1, 2):
        await trainer.publish(version, make_weights(version, 1))
        assert (await other.ask(f"fetch {version}"))["fingerprints"] == told(version, 1)
    assert publisher_of(trainer).allocated == 1
    replaced = run.process()
    assert (await replaced.ask("fetch 2"))["fingerprints"] == told(2, 1)


@pytest.mark.slow
async def test_a_puller_that_stops_in_the_middle_is_given_up_and_nobody_waits_for_it() -> None:
    async with Run(seconds=3.0) as run:
        trainer, stopping, other = run.copy(), run.process(), run.process()
        await trainer.publish(0, make_weights(0, LARGE))
        assert (await other.ask("fetch 0"))["fingerprints"] == told(0, LARGE)
        assert await stopping.ask("stop 0") == "broken off"
        await trainer.publish(1, make_weights(1, 1))
        assert (await other.ask("fetch 1"))["fingerprints"] == told(1, 1)
        await until(lambda: len(publisher_of(trainer)._serving) == 1, "it is given up")
        assert (await other.ask("fetch 1"))["fingerprints"] == told(1, 1)


async def test_a_killed_publisher_is_said_at_once_and_another_one_is_found(run: Run) -> None:
    engine, trainer = run.copy(), run.process()
    assert await trainer.ask(f"publish 3 3 {LARGE}") == "published"
    assert await fetched(engine, 3) == told(3, LARGE)
    under_way = PublisherLink(engine._prepared, version=3, gpu=0, seconds=DEADLINE_S)
    layout = under_way.request(3)
    trainer.process.kill()
    with pytest.raises((OSError, RuntimeError)):
        await asyncio.to_thread(under_way.receive, layout)
    under_way.close()
    # Its connections are closed one after another, and the port that it listens at among them.
    await asyncio.to_thread(trainer.ended)
    with pytest.raises(ServiceError, match=r"^the trainer, who has the weights, does not answer at 127.0.0.1:\d+: "):
        await fetched(engine, 3)
    replaced = run.process()
    assert await replaced.ask("publish 4 4") == "published"
    assert await fetched(engine, 4) == told(4)


async def test_a_publisher_that_is_killed_while_it_sends() -> None:
    """The error that the store's own fetch raises, whatever of the publisher breaks first."""
    async with Run(seconds=10.0) as run:  # a thread of the puller waits for so long, and the fetch does not
        engine, trainer = run.copy(), run.process()
        assert await trainer.ask(f"publish 0 0 {LARGE}") == "published"
        assert await trainer.ask("mortal 0") == "mortal"
        with pytest.raises(ServiceError, match="^version 0 of the weights did not arrive from the trainer: "):
            await fetched(engine, 0)
        assert await asyncio.to_thread(trainer.ended) == -signal.SIGKILL
        assert engine._puller is not None and not engine._puller._busy


@pytest.mark.slow
async def test_a_publisher_that_does_not_answer_is_waited_for_until_the_deadline() -> None:
    async with Run(seconds=2.0) as run:
        engine, late, trainer = run.copy(), run.copy(), run.process()
        assert await trainer.ask("publish 0 0") == "published"
        assert await fetched(engine, 0) == told(0)
        pid = trainer.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: is_stopped(pid), "it stands still")
        for store in (engine, late):  # one that is connected, and one that is not
            with pytest.raises(ServiceError, match="from the trainer: it did not answer within 2 s$"):
                await fetched(store, 0)
        os.kill(pid, signal.SIGCONT)
        assert await fetched(engine, 0) == told(0)


async def test_what_a_publisher_gave_up_is_not_taken_for_whole(run: Run) -> None:
    """All bytes came, and the last of them may have been overwritten before they left: it never says that it sent."""
    engine, sent = run.copy(), make_state_dict(0)
    layout = TensorLayout.of(sent)
    flat = torch.empty(layout.size, dtype=torch.uint8)
    WeightStream.of(sent).copy_to(flat)
    met = engine._prepared

    def publish(server: socket.socket) -> None:
        connection = Connection(server.accept()[0], DEADLINE_S)
        connection.authenticate(met.token, role="publisher", to="puller")
        connection.send(pair="pair/1", device="cpu", gpu="")
        communicator = PairCommunicator(met, "pair/1", connection, rank=SENDER, device=flat.device, seconds=DEADLINE_S)
        assert connection.receive() == {"version": 0}
        connection.send(layout=layout.to_json())
        assert connection.receive() == {"ready": True}
        communicator.transfer(flat)
        communicator.close()
        connection.close()

    with socket.create_server((met.address, 0)) as server:
        met.store(DEADLINE_S).set(KEY, f"{met.address} {server.getsockname()[1]}")
        publishing = asyncio.create_task(asyncio.to_thread(publish, server))
        with pytest.raises(ServiceError, match="^version 0 of the weights did not arrive from the trainer: it closed"):
            await fetched(engine, 0)
        await publishing


async def test_the_controller_is_gone() -> None:
    async with Run(seconds=1.0) as run:
        trainer, engine = run.copy(), run.copy()
        await run.store.close()
        with pytest.raises(ServiceError, match=r"^the controller's meeting point at 127.0.0.1:\d+ cannot be reached"):
            await fetched(engine, 0)
        with pytest.raises(ServiceError, match="^the weights cannot be offered to the engines: the controller's "):
            await trainer.publish(0, make_state_dict(0))


# ---- strangers ----


async def test_who_does_not_know_the_token_gets_nothing(run: Run) -> None:
    trainer, engine = run.copy(), run.copy()
    await trainer.publish(0, make_state_dict(0))
    met = trainer._prepared
    stranger = NcclStore(Rendezvous(met.address, met.port, "0" * 32))
    with pytest.raises(ServiceError, match="from the trainer: it .*$"):
        await fetched(stranger, 0)
    await stranger.close()
    _, port = met.store(DEADLINE_S).get(KEY).decode().split()
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2[]", b"\0\0\0\2{}", b"\0\0\0\7nothing", b"\0\0\x20\0"):
        with socket.create_connection((met.address, int(port)), DEADLINE_S) as connection:
            heard = b""
            with suppress(OSError):  # what was said was not read to its end: the connection is broken off, at any point
                connection.sendall(said)
                connection.shutdown(socket.SHUT_WR)
                while part := await asyncio.to_thread(connection.recv, 4096):
                    heard += part
            assert b"pair" not in heard
    assert await fetched(engine, 0) == told(0)


def test_no_one_is_taken_for_the_publisher_who_repeats_what_it_hears() -> None:
    here, there = (Connection(each, DEADLINE_S) for each in _connected())

    def repeat() -> None:
        there.send(**there.receive())
        there.send(**there.receive())

    thread = threading.Thread(target=repeat)
    thread.start()
    with pytest.raises(PermissionError, match="^it does not know this run's token$"):
        here.authenticate("token", role="puller", to="publisher")
    thread.join()
    here.close()
    there.close()


def test_a_message_that_comes_drop_by_drop_has_one_deadline() -> None:
    here, there = _connected()
    connection = Connection(here, 0.5)
    stop = threading.Event()

    def drip() -> None:
        there.sendall(b"\0\0\1\0")
        while not stop.wait(0.1):
            there.sendall(b" ")

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(TimeoutError, match=r"^it did not answer within 0.5 s$"):
        connection.receive(forever=True)
    stop.set()
    thread.join()
    connection.close()
    there.close()


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    return here, there


# ---- what it is before and after ----


async def test_a_store_travels_once_it_is_prepared_and_is_small(run: Run) -> None:
    with pytest.raises(InvariantError, match="before the controller has prepared it$"):
        pickle.dumps(NcclStore())
    trainer = run.copy()
    await trainer.publish(0, make_weights(0, 1))
    assert len(pickle.dumps(trainer)) < 1000
    assert await fetched(pickle.loads(pickle.dumps(trainer)), 0) == told(0, 1)


@pytest.mark.slow
async def test_nothing_is_left_behind() -> None:
    """The first round is not counted: torch keeps a thread. Nor are those that the loop keeps for blocking calls."""
    await until(lambda: not threads_of_ours(), "those of the tests before end")
    after_one: dict[str, int] = {}
    for _ in range(5):
        async with Run() as run:
            trainer, engine, other = run.copy(), run.copy(), run.copy()
            await trainer.publish(0, make_weights(0, 1))
            assert await fetched(engine, 0) == await fetched(other, 0) == told(0, 1)
            await trainer.close()  # with two pullers connected
            with pytest.raises(ServiceError, match="^version 1 of the weights was not published: the store is closed$"):
                await trainer.publish(1, make_weights(1))
            with pytest.raises(ServiceError, match="does not answer"):
                await fetched(engine, 0)
        await until(lambda: not threads_of_ours(), "the threads end")
        after_one = after_one or open_here()
        # What torch closes, it closes in threads of its own.
        await until(lambda before=after_one: not more_than(before), f"more than {after_one}: {more_than(after_one)}")


def more_than(before: dict[str, int]) -> dict[str, int]:
    return {kind: count for kind, count in open_here().items() if count > before.get(kind, 0)}


def threads_of_ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("weights")]


def open_here() -> dict[str, int]:
    """What this process has open, by kind."""
    gc.collect()
    kinds = {"threads of torch": len(os.listdir("/proc/self/task")) - threading.active_count()}
    for link in Path("/proc/self/fd").iterdir():
        try:
            kind = os.readlink(link).split(":")[0]
        except FileNotFoundError:
            continue
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds
