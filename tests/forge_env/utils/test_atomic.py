"""One writer at a time, also in the moment in which the lock's file goes away."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from forge_env.utils import atomic


@pytest.mark.parametrize("another_comes", [False, True])
def test_a_lock_that_is_removed_while_it_is_taken_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, another_comes: bool
) -> None:
    path, lock = tmp_path / "file", tmp_path / "file.lock"
    real, calls = fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        """The last holder removes the file between our opening and our locking it."""
        calls.append(operation)
        if len(calls) == 1:
            lock.unlink()
            if another_comes:
                lock.touch()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with atomic.hold_lock(path), lock.open() as beside, pytest.raises(BlockingIOError):
        real(beside.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert len(calls) == 2
    assert not lock.exists()


def test_what_a_killed_writer_left_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "file.new").write_text("half a line, and much longer than")
    atomic.replace_file(tmp_path / "file", "new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "new"}


def test_a_full_disk_keeps_the_old_file_and_no_half_of_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        atomic.replace_file(tmp_path / "file", "new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "old"}


def full_disk(_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_link_in_the_place_of_the_new_file_or_the_lock_is_not_followed(tmp_path: Path) -> None:
    """Where others may make files, a link would have one of ours overwritten, or made, wherever it points to."""
    path, victim = tmp_path / "file", tmp_path / "victim"
    victim.write_text("ours")
    (tmp_path / "file.new").symlink_to(victim)
    atomic.replace_file(path, "new")
    assert (path.read_text(), path.is_symlink(), victim.read_text()) == ("new", False, "ours")
    (tmp_path / "file.lock").symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="symbolic link"), atomic.hold_lock(path):
        pass
    assert not (tmp_path / "made").exists()
    # The control: a file that is opened by its name alone.
    (tmp_path / "file.new").symlink_to(victim)
    (tmp_path / "file.new").write_text("new")
    assert victim.read_text() == "new"
