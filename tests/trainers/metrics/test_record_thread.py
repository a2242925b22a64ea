"""The record of a run is written in order, in another thread, and without gaps."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from trainers.metrics.report import RecordThread


def test_everything_is_written_in_order_in_another_thread() -> None:
    written: list[tuple[int, bool]] = []
    thread = RecordThread()
    for number in range(5):
        thread.write(lambda n: written.append((n, threading.current_thread() is threading.main_thread())), number)
    thread.flush()
    assert written == [(number, False) for number in range(5)]
    thread.close()


async def test_an_error_ends_writing_and_the_next_call_raises_it(tmp_path: Path) -> None:
    written: list[int] = []
    thread = RecordThread()
    await thread.wait_for_writes()
    thread.write((tmp_path / "missing" / "file").write_text, "")
    with pytest.raises(FileNotFoundError):
        await thread.wait_for_writes()
    for call in (lambda: thread.write(written.append, 1), thread.flush, thread.close):
        with pytest.raises(FileNotFoundError):
            call()
    assert not written
