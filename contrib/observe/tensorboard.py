"""TensorBoard's files, in the folder `tensorboard/` of a run: scalars PHASE/NAME by step."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from forge_env.records.sinks import Record


class TensorBoard:
    """Writes one event a record, at once. TensorBoard's own writer has a thread that hides a full disk."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._folder = folder / "tensorboard"
        self._file: Any = None
        self._writer: Any = None

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._writer is None:
            self._open()
        scalars = [Summary.Value(tag=f"{phase}/{name}", simple_value=value) for name, value in values.items()]
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=scalars)))

    def go_back(self, records: Sequence[Record]) -> None:
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        for record in records:
            self.log(*record)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._writer = None

    def _open(self) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder.mkdir(parents=True, exist_ok=True)
        # A name that TensorBoard looks for; a run that is resumed within the same second has another process id.
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._file = (self._folder / name).open("ab")
        self._writer = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def _write(self, event: Any) -> None:
        try:
            self._writer.write(event.SerializeToString())
            self._file.flush()
        except OSError:
            with suppress(OSError):
                self._file.close()  # otherwise Python 3.13 tries again when the object is freed, and prints an error
            raise
