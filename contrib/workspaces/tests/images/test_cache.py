"""Locks of the cache: what is in use is not removed, however a process ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from contrib.workspaces.contract import UnpackedImage
from contrib.workspaces.images.cache import Cancelled, ImagesInUse, cached, hold_entry, in_thread, in_use, remove
from contrib.workspaces.images.layout import Archive
from contrib.workspaces.images.store import add_image
from contrib.workspaces.open import open_workspaces
from contrib.workspaces.tests.image_files import ImageFiles, digest_of, entry, layer, write_archive
from contrib.workspaces.tests.made_images import make_small_image
from forge_env.core.errors import SandboxError, UserError

_USER = """
import sys
from pathlib import Path
from contrib.workspaces.images.cache import in_use
with in_use(Path(sys.argv[1])):
    print("in use", flush=True)
    sys.stdin.read()
"""

_BUILDER = """
import sys
from contrib.workspaces.images.cache import cached
def build(folder):
    (folder / "half").mkdir()
    print("building", flush=True)
    sys.stdin.read()
cached("images/a", build)
"""


def make(name: str) -> Path:
    return cached(name, lambda folder: (folder / "root").mkdir())


def test_an_image_in_use_is_not_removed_and_the_lock_ends_with_its_process(cache: Path) -> None:
    folder = make("images/a")
    command = [sys.executable, "-c", _USER, str(folder / "root")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None and user.stdout.readline() == b"in use\n"
        assert not remove(folder) and folder.is_dir()
        user.kill()
    assert remove(folder) and list((cache / "images").iterdir()) == []
    with (
        pytest.raises(UserError, match="is not in the cache any more: pull or build it again"),
        in_use(folder / "root"),
    ):
        pass


def test_what_is_built_is_held_from_its_beginning(cache: Path) -> None:
    with hold_entry("layers/a", lambda folder: None) as folder:
        assert not remove(folder)
        with hold_entry("layers/a", lambda folder: pytest.fail("it is there")):
            pass
        assert not remove(folder)
    assert remove(folder) and remove(folder)


def test_those_that_wait_for_an_entry_do_not_build_it(cache: Path) -> None:
    builds, begun, go_on = [], Event(), Event()

    def build(folder: Path) -> None:
        builds.append(folder)
        begun.set()
        assert go_on.wait(60)

    with ThreadPoolExecutor(8) as threads:
        entries = [threads.submit(cached, "images/a", build)]
        assert begun.wait(60)
        entries += [threads.submit(cached, "images/a", build) for _ in range(7)]
        go_on.set()
        assert {entry.result(60) for entry in entries} == {cache / "images/a"}
    assert len(builds) == 1 and [path.name for path in (cache / "images").iterdir()] == ["a"]


def test_who_waits_for_a_build_that_fails_or_is_killed_builds_anew(cache: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        cached("images/a", lambda folder: (folder / "half").write_text("x") // 0)  # type: ignore[arg-type, return-value]
    assert list((cache / "images").iterdir()) == []
    command = [sys.executable, "-c", _BUILDER]
    with (
        ThreadPoolExecutor(1) as threads,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as builder,
    ):
        assert builder.stdout is not None and builder.stdout.readline() == b"building\n"
        waiting = threads.submit(make, "images/a")
        builder.kill()
        folder = waiting.result(60)
    assert [path.name for path in folder.iterdir()] == ["root"]


@contextmanager
def slow_build(name: str) -> Iterator[Future[Path]]:
    """Build an entry in another thread until the end of the block."""
    begun, go_on = Event(), Event()

    def build(folder: Path) -> None:
        begun.set()
        go_on.wait(60)

    with ThreadPoolExecutor(1) as threads:
        building = threads.submit(cached, name, build)
        try:
            assert begun.wait(60)
            yield building
        finally:
            go_on.set()


def test_the_wait_for_a_build_has_a_time_limit(cache: Path) -> None:
    with slow_build("images/a") as building:
        with (
            pytest.raises(SandboxError, match=r"waited 0.1 s, the limit, for whoever .* makes .*/images/a: try"),
            hold_entry("images/a", lambda folder: None, wait_s=0.1),
        ):
            pass
        assert not building.done()
    assert building.result(60) == cache / "images/a"


async def test_the_wait_for_a_build_ends_with_its_caller(cache: Path) -> None:
    begun, ends = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def wait() -> None:
        loop.call_soon_threadsafe(begun.set)
        with pytest.raises(Cancelled):
            make("images/a")
        ends.append(building.done())

    with slow_build("images/a") as building:
        task = asyncio.create_task(in_thread(wait))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await loop.shutdown_default_executor()  # as at the end of a program
    assert ends == [False]


def test_a_pull_that_waits_for_a_layer_ends_when_another_layer_fails(cache: Path, tmp_path: Path) -> None:
    files = ImageFiles([layer(entry("a", b"a")), b"this is not a tar" * 100])
    archive = write_archive(tmp_path / "image.tar", {"a:1": files})
    with slow_build(f"layers/{digest_of(files.layers[0]).removeprefix('sha256:')}") as building:
        with pytest.raises(UserError, match="cannot be unpacked"):
            add_image(Archive(archive))
        assert not building.done()


def test_host_images_and_folders_outside(cache: Path, tmp_path: Path) -> None:
    host = make("host-1")
    with in_use(host), in_use(tmp_path), in_use(tmp_path / "nothing"):
        assert not remove(host)
    assert remove(host)


def test_many_uses_in_a_process_are_one_lock(cache: Path) -> None:
    folder = make("images/a")
    images = ImagesInUse()
    images.take(folder / "root")
    images.take(folder / "root")
    images.give_back(folder / "root")
    assert not remove(folder)
    images.give_back(folder / "root")
    assert remove(folder)


async def test_every_live_workspace_and_snapshot_keeps_its_image(cache: Path) -> None:
    folder = cached("images/a", lambda folder: make_small_image(folder / "root") and None)
    image = UnpackedImage(root=folder / "root")
    async with open_workspaces() as workspaces:
        workspace = await workspaces.open(image)
        assert not remove(folder)
        snapshot = await workspace.snapshot()
        await workspace.close()
        assert not remove(folder), "a snapshot needs the image below it"
        fork = await workspaces.open(snapshot)
        await snapshot.close()
        assert (await fork.exec("echo hello")).stdout == "hello\n" and not remove(folder)
        await fork.close()
        assert remove(folder)
        with pytest.raises(UserError, match=r"is not (in the cache any more|there)"):
            await workspaces.open(image)
