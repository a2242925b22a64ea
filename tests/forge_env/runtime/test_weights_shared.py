"""Weights in shared memory: what is read is what was published, nobody reads what is being written, nothing stays."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pickle
import resource
import select
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from forge_env.core.errors import InvariantError, ServiceError

pytest.importorskip("torch")

import torch
from state_dicts import failing_half_way, fingerprints, make_state_dict

from forge_env.runtime.weights import SharedMemoryStore, WeightStream
from forge_env.runtime.weights.one_host.store_folder import SHARED_MEMORY, StoreFolder, new_path, remove_left_behind
from tests.helpers.forks import Forked

DEADLINE_S = 60.0


@pytest_asyncio.fixture
async def store() -> AsyncIterator[SharedMemoryStore]:
    store = SharedMemoryStore()
    await store.open()
    yield store
    await store.close()
    assert not store.folder.exists()


def reader_of(store: SharedMemoryStore) -> SharedMemoryStore:
    """The store as another process has it."""
    copy: SharedMemoryStore = pickle.loads(pickle.dumps(store))
    return copy


async def fetched(store: SharedMemoryStore, version: int) -> dict[str, str]:
    async with reader_of(store).fetch(version) as state_dict:
        return fingerprints(state_dict)


def segments(store: SharedMemoryStore) -> set[str]:
    return {path.name for path in store.folder.glob("*.segment")}


def said_by(function: Callable[..., None], *arguments: object) -> tuple[list[Any], int]:
    """What `function(connection, *arguments)` sends in a process of its own, and how that ends."""
    said, forked = [], Forked(function, *arguments)
    try:
        with suppress(EOFError):
            while True:
                said.append(forked.answer())
        return said, forked.ended()
    finally:
        forked.close()


def fetch_and_write(connection: Connection, folder: Path) -> None:
    async def fetch() -> None:
        async with SharedMemoryStore(folder).fetch(3) as found:
            connection.send(fingerprints(found))
            found["steps"].zero_()
            connection.send("written")

    asyncio.run(fetch())


async def test_another_process_fetches_bit_for_bit_and_cannot_write(store: SharedMemoryStore) -> None:
    state_dict = make_state_dict(3)
    await store.publish(3, state_dict)
    async with reader_of(store).fetch(3) as found:
        assert list(found) == list(state_dict)
        assert all(tensor.is_contiguous() for tensor in found.values())
        assert all(tensor.data_ptr() % 64 == 0 for tensor in found.values() if tensor.numel())
    said, code = await asyncio.to_thread(said_by, fetch_and_write, store.folder)
    assert said == [fingerprints(make_state_dict(3))]
    assert code == -signal.SIGSEGV
    assert await fetched(store, 3) == fingerprints(make_state_dict(3))


async def test_a_published_version_never_changes(store: SharedMemoryStore) -> None:
    state_dict = make_state_dict(1)
    taken = store.take(0, WeightStream.of(state_dict))
    for tensor in state_dict.values():
        tensor.zero_()
    await store.commit(taken)
    with pytest.raises(
        InvariantError, match="^version 0 of the weights was published already; a version never changes"
    ):
        await store.publish(0, make_state_dict(2))
    late = store.take(1, WeightStream.of(make_state_dict(3)))
    await store.publish(1, make_state_dict(4))
    with pytest.raises(InvariantError, match="^version 1 of the weights was published already"):
        await store.commit(late)
    assert await fetched(store, 0) == fingerprints(make_state_dict(1))
    assert await fetched(store, 1) == fingerprints(make_state_dict(4))


async def test_only_the_last_two_versions_stay_in_two_segments(store: SharedMemoryStore) -> None:
    for version in (7, 8, 100, 101):  # a run that goes on from a checkpoint begins at a later one
        await store.publish(version, make_state_dict(version))
        assert await fetched(store, version) == fingerprints(make_state_dict(version))
    assert len(segments(store)) == 2
    for version in (7, 8):
        with pytest.raises(ServiceError, match=f"^the weight store has no version {version}; it has 100, 101$"):
            await fetched(store, version)
    assert await fetched(store, 100) == fingerprints(make_state_dict(100))


async def test_larger_weights_take_the_place_of_smaller_ones(store: SharedMemoryStore) -> None:
    """A reader keeps what it has mapped, but not of a segment that is gone."""
    reader = reader_of(store)
    for version, size in enumerate((10, 10, 10_000, 10_000, 10, 10_000)):
        await store.publish(version, {"weight": torch.full((size,), float(version))})
        for _ in range(2):
            async with reader.fetch(version) as found:
                assert torch.equal(found["weight"], torch.full((size,), float(version)))
        assert reader._readable.keys() <= segments(store)
    assert len(segments(store)) == len(reader._readable) == 2


async def test_a_slow_reader_keeps_its_version_while_others_come_and_go(store: SharedMemoryStore) -> None:
    await store.publish(0, make_state_dict(0))
    async with reader_of(store).fetch(0) as found:
        for version in range(1, 6):
            await store.publish(version, make_state_dict(version))
        assert fingerprints(found) == fingerprints(make_state_dict(0))
        assert len(segments(store)) == 3  # two versions, and the one that is read
        with pytest.raises(ServiceError, match="^the weight store has no version 0; it has 4, 5$"):
            await fetched(store, 0)
    before = segments(store)
    for version in range(6, 9):
        await store.publish(version, make_state_dict(version))
    assert segments(store) == before  # the reader's was used again
    assert await fetched(store, 8) == fingerprints(make_state_dict(8))


async def test_a_folder_that_is_still_written_to_is_removed() -> None:
    """An actor may be in the middle of a publish."""
    for _ in range(6):
        store = SharedMemoryStore()
        await store.open()
        begun = threading.Event()

        def write(folder: Path = store.folder, begun: threading.Event = begun) -> None:
            with suppress(OSError):  # it is gone
                for number in range(100_000):
                    (folder / str(number)).touch()
                    begun.set()

        writer = threading.Thread(target=write)
        writer.start()
        await asyncio.to_thread(begun.wait)
        await store.close()
        writer.join()
        assert not store.folder.exists()


async def test_what_is_taken_and_not_committed_is_not_there(store: SharedMemoryStore) -> None:
    await store.publish(0, make_state_dict(0))
    taken = store.take(1, WeightStream.of(make_state_dict(1)))
    with pytest.raises(ServiceError, match="^the weight store has no version 1; it has 0$"):
        await fetched(store, 1)
    del taken  # its caller was cancelled: the segment is free again
    before = segments(store)
    await store.publish(2, make_state_dict(2))
    assert segments(store) == before
    assert await fetched(store, 2) == fingerprints(make_state_dict(2))


def publish_and_die_half_way(connection: Connection, folder: Path) -> None:
    def killed_half_way(tensors: Iterable[Any]) -> Iterator[Any]:
        for number, tensor in enumerate(tensors):
            if number == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            yield tensor

    store = SharedMemoryStore(folder)
    asyncio.run(store.publish(1, make_state_dict(1)))
    connection.send("published")
    weights = WeightStream.of(make_state_dict(2))
    store.take(2, replace(weights, tensors=killed_half_way(weights.tensors)))
    connection.send("taken")


async def test_a_writer_killed_half_way_leaves_no_version_behind_and_another_goes_on(store: SharedMemoryStore) -> None:
    await store.publish(0, make_state_dict(0))
    said, code = await asyncio.to_thread(said_by, publish_and_die_half_way, store.folder)
    assert (said, code) == (["published"], -signal.SIGKILL)
    with pytest.raises(ServiceError, match="^the weight store has no version 2; it has 1$"):
        await fetched(store, 2)
    assert await fetched(store, 1) == fingerprints(make_state_dict(1))
    before = segments(store)
    respawned = reader_of(store)
    await respawned.publish(2, make_state_dict(5))
    assert await fetched(store, 2) == fingerprints(make_state_dict(5))
    assert segments(store) == before  # the dead writer's half is used again


async def test_a_stream_that_fails_half_way_leaves_no_version_and_its_memory_free(store: SharedMemoryStore) -> None:
    for version in (0, 1):
        await store.publish(version, make_state_dict(version))
    before, errors = segments(store), []
    for _ in range(3):
        try:
            store.take(2, failing_half_way(make_state_dict(2)))
        except ZeroDivisionError as error:
            errors.append(error)  # kept, with all that its traceback refers to
    assert len(errors) == 3 and segments(store) == before
    with pytest.raises(ServiceError, match="^the weight store has no version 2; it has 1$"):
        await fetched(store, 2)
    await store.publish(2, make_state_dict(5))
    assert await fetched(store, 2) == fingerprints(make_state_dict(5)) and segments(store) == before


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({"a": torch.zeros(3)}, "^1 weights did not come, b among them$"),
        ({"a": torch.zeros(3), "b": torch.zeros(1)}, r"^weight b came as \(1,\) torch.float32: the layout .*"),
        ({"a": torch.zeros(3).half(), "b": torch.zeros(2)}, r"^weight a came as \(3,\) torch.float16: "),
        ({"c": torch.zeros(3)}, r"^weight c came as \(3,\) torch.float32: "),
    ],
)
async def test_tensors_that_are_not_those_of_the_layout_are_refused(
    store: SharedMemoryStore, tensors: dict[str, torch.Tensor], sentence: str
) -> None:
    weights = WeightStream.of({"a": torch.zeros(3), "b": torch.zeros(2)})
    with pytest.raises(InvariantError, match=sentence):
        store.take(0, replace(weights, tensors=tensors.items()))


async def test_readers_never_see_a_mixture(store: SharedMemoryStore) -> None:
    """Every version is all one number; readers fetch while the writer goes round in its segments."""
    shapes = [(64, 64)] * 8
    done = asyncio.Event()

    async def read() -> int:
        mine, seen = reader_of(store), 0
        while not done.is_set():
            newest = max(int(path.stem[1:]) for path in store.folder.glob("v*.json"))
            try:
                async with mine.fetch(newest) as found:
                    values = torch.stack([tensor.clone() for tensor in found.values()])
                    await asyncio.sleep(0)
                    again = torch.stack([tensor.clone() for tensor in found.values()])
            except ServiceError:
                continue  # forgotten meanwhile
            finally:
                await asyncio.sleep(0)
            assert values.eq(newest).all() and again.eq(newest).all()
            seen += 1
        return seen

    async def write() -> None:
        try:
            for version in range(1, 60):
                state_dict = {str(i): torch.full(shape, float(version)) for i, shape in enumerate(shapes)}
                taken = await asyncio.to_thread(store.take, version, WeightStream.of(state_dict))
                await store.commit(taken)
        finally:
            done.set()

    await store.publish(0, {str(i): torch.zeros(shape) for i, shape in enumerate(shapes)})
    _, *seen = await asyncio.gather(write(), read(), read(), read())
    assert all(seen)


def publish_without_room(connection: Connection, folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
    try:
        asyncio.run(SharedMemoryStore(folder).publish(1, {"weight": torch.zeros(2**19)}))
    except ServiceError as error:
        connection.send(str(error))


async def test_no_room_is_one_sentence_and_the_last_version_stays(store: SharedMemoryStore) -> None:
    """A limit on the size of files stands for a full /dev/shm: the kernel refuses the same call."""
    await store.publish(0, make_state_dict(0))
    (sentence,), code = await asyncio.to_thread(said_by, publish_without_room, store.folder)
    assert sentence.startswith("/dev/shm cannot take a snapshot of the weights, 2.0 MiB: File too large, with ")
    assert sentence.endswith("or leave the choice of another store to --weights.store auto") and code == 0
    assert len(segments(store)) == 1  # nothing of the attempt is left
    assert await fetched(store, 0) == fingerprints(make_state_dict(0))


async def test_a_store_that_was_closed_or_is_not_open_says_so(store: SharedMemoryStore) -> None:
    taken = store.take(0, WeightStream.of(make_state_dict(0)))
    await store.close()
    with pytest.raises(ServiceError, match="^version 0 of the weights was not published, .*: No such file or dir"):
        await store.commit(taken)
    unopened = SharedMemoryStore()
    with pytest.raises(ServiceError, match="^there is no weight store: it is not open, or its folder .* was removed$"):
        unopened.take(0, WeightStream.of(make_state_dict(0)))
    with pytest.raises(ServiceError, match="^the weight store has no version 0: it is not open"):
        await fetched(unopened, 0)
    await unopened.close()
    assert unopened.folder.parent == SHARED_MEMORY


def publish_and_wait(connection: Connection, path: Path) -> None:
    store = SharedMemoryStore(path)
    asyncio.run(store.open())
    asyncio.run(store.publish(0, make_state_dict(0)))
    assert store._own_folder is not None
    connection.send((store.folder, store._own_folder._remover.pid))
    connection.recv()


def die(root: Path, *, with_remover: bool) -> Path:
    """Have a process make a store in `root` and kill it; returns its folder, once all that was to be ended has ended.

    In /dev/shm, every other run of this machine would remove it.
    """
    maker = Forked(publish_and_wait, root / new_path().name)
    try:
        folder, pid = maker.answer()
        assert (folder / "v00000000.json").exists()
        remover = os.pidfd_open(pid)
        if with_remover:
            os.kill(pid, signal.SIGKILL)
    finally:
        maker.close()
    ended, _, _ = select.select([remover], [], [], DEADLINE_S)
    os.close(remover)
    assert ended
    assert isinstance(folder, Path)
    return folder


def test_the_folder_of_a_maker_that_was_killed_is_removed(tmp_path: Path) -> None:
    assert not die(tmp_path, with_remover=False).exists()


async def test_what_nobody_could_remove_the_next_run_removes(tmp_path: Path) -> None:
    store, following = (SharedMemoryStore(tmp_path / new_path().name) for _ in range(2))
    await store.open()
    folder = await asyncio.to_thread(die, tmp_path, with_remover=True)
    assert folder.is_dir()
    outside = tmp_path / f"{folder.name}_counter"
    outside.touch()
    second = outside.with_name(f"{outside.name}_2")
    second.touch()
    (folder / "a.outside").write_text(f"{outside}\n{outside}_gone\n{second}")
    await following.open()
    assert not folder.exists() and not outside.exists() and not second.exists()
    assert store.folder.is_dir() and following.folder.is_dir()  # their makers are alive
    for opened in (store, following):
        await opened.close()


def left_behind(root: Path, victim: Path) -> Path:
    """A folder of a store that nobody holds, which names a file to be removed with it."""
    folder = root / new_path().name
    folder.mkdir(mode=0o700)
    (folder / "a.outside").write_text(str(victim))
    victim.touch()
    return folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_removes_no_file_of_ours(tmp_path: Path) -> None:
    folder, victim = left_behind(tmp_path, tmp_path / "beside"), tmp_path / "beside"
    os.chown(folder, 65534, 65534)
    os.chown(folder / "a.outside", 65534, 65534)
    assert remove_left_behind(tmp_path) == [] and victim.exists() and folder.exists()
    os.chown(folder, os.geteuid(), -1)
    folder.chmod(0o777)  # ours, and others put files there
    assert remove_left_behind(tmp_path) == [] and victim.exists()
    folder.chmod(0o700)
    (tmp_path / "link").write_text(str(victim))
    (folder / "b.outside").symlink_to(tmp_path / "link")
    (folder / "a.outside").unlink()
    (folder / "c.outside").write_text(str(victim))
    os.chown(folder / "c.outside", 65534, 65534)
    assert remove_left_behind(tmp_path) == [folder.name]
    assert victim.exists()
    # The control: the very same folder, where its maker is this user.
    again = left_behind(tmp_path, victim)
    assert remove_left_behind(tmp_path) == [again.name] and not victim.exists()


def test_a_folder_removes_only_files_directly_beside_it(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    outside = tmp_path.parent / f"{tmp_path.name}_elsewhere"
    kept = [tmp_path / "deep" / "file", outside]
    for victim in kept:
        folder = left_behind(tmp_path, victim)
        assert remove_left_behind(tmp_path) == [folder.name] and victim.exists()
    dotted = left_behind(tmp_path, tmp_path / "seen")
    (dotted / "a.outside").write_text(f"{tmp_path}/deep/../seen")
    assert remove_left_behind(tmp_path) == [dotted.name] and (tmp_path / "seen").exists()
    link = tmp_path / "link"
    link.symlink_to(outside)
    folder = left_behind(tmp_path, tmp_path / "seen")
    (folder / "a.outside").write_text(str(link))
    assert remove_left_behind(tmp_path) == [folder.name] and link.is_symlink()
    outside.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
async def test_no_weights_are_read_from_a_folder_that_another_user_has_made(store: SharedMemoryStore) -> None:
    """The folder of a run that has ended: its name is free, and a handle of GPU memory is pickled code."""
    await store.commit(store.take(0, WeightStream.of(make_state_dict(0))))
    async with store.fetch(0) as weights:
        assert weights
    os.chown(store.folder, 65534, 65534)
    with pytest.raises(ServiceError, match="has no version 0: .* was removed"):
        async with store.fetch(0):
            pass
    os.chown(store.folder, os.geteuid(), -1)
    async with store.fetch(0) as weights:
        assert weights


def test_only_folders_of_stores_are_removed(tmp_path: Path) -> None:
    ours = tmp_path / new_path().name
    held = StoreFolder(ours)
    assert remove_left_behind(tmp_path) == []
    fcntl.flock(held._descriptor, fcntl.LOCK_UN)
    others = [tmp_path / name for name in ("forge_env_weights_1_abc", "forge_env_abcdefgh", f"{ours.name}.old")]
    for other in others:
        other.mkdir()
    assert remove_left_behind(tmp_path) == [ours.name]
    assert sorted(tmp_path.iterdir()) == sorted(others)
    held.close()
