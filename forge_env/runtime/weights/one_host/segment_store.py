"""SegmentStore: snapshots in memory segments of this host, and a folder of small files that describe them.

A version has one segment and one manifest, vNNNNNNNN.json. A segment is a file that names a piece of memory and carries
its locks. The manifest is linked to its name last: it is the commit marker. A reader holds a shared lock on the
segment. If no manifest names a segment any more, it is used again as soon as it can be locked exclusively. So memory is
allocated, and its pages are touched, for the first versions only, and a segment that is being written is never read. A
lock ends with its process.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from forge_env.core.errors import ServiceError
from forge_env.runtime.weights.one_host.store_folder import StoreFolder, is_own, new_path, remove_left_behind
from forge_env.runtime.weights.store import StoreRequest, WeightStore, no_version, published_already, refusal_text
from forge_env.runtime.weights.tensor_layout import TensorLayout, WeightStream
from forge_env.utils.atomic import take_lock

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class TakenSegment:
    """A copy of the weights that no manifest names yet."""

    version: int
    layout: TensorLayout
    segment: str
    lock: BinaryIO
    """An exclusive lock on the segment. If this object is dropped before its commit, the lock ends with it."""


class SegmentStore(WeightStore):
    """The common part of the two stores of one host.

    Args:
        folder: of the manifests and segments; None for a new one.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or new_path()
        self._own_folder: StoreFolder | None = None
        self._choosing = threading.Lock()
        self._writable: dict[str, Tensor] = {}  # by segment, (its size,) uint8

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder,)

    @classmethod
    def refusal(cls, request: StoreRequest, instead: str) -> str:
        problem = f"which serves one host, and the run has {request.hosts}"
        return refusal_text(problem, instead) if request.hosts > 1 else ""

    async def open(self, processes: Any = None) -> None:
        remove_left_behind(self.folder.parent)
        self._own_folder = StoreFolder(self.folder)

    async def close(self) -> None:
        if self._own_folder is not None:
            self._own_folder.close()
            self._own_folder = None

    def take(self, version: int, weights: WeightStream) -> TakenSegment:
        if self._manifest(version).exists():
            raise published_already(version)
        with self._choosing:
            # Segments without a manifest are free once nobody reads them; the copy goes where the oldest version was.
            manifests = self._manifests()
            for manifest in manifests[: max(0, len(manifests) - (self.keep - 1))]:
                manifest.unlink()
            lock, flat = self._free_segment(max(weights.layout.size, 1), weights.device)
        try:
            weights.copy_to(flat)
            self._finish()
        except BaseException:
            lock.close()  # no version names the segment, so the next `take` may use it
            raise
        return TakenSegment(version, weights.layout, Path(lock.name).name, lock)

    async def commit(self, copy: TakenSegment) -> None:
        # No other snapshot ever has this name: a reader recognises its manifest by it.
        content = {"snapshot": secrets.token_hex(8), "segment": copy.segment, "layout": copy.layout.to_json()}
        partial_file = self.folder / f"{copy.segment}.manifest"
        with self._choosing, copy.lock:
            # Readers may come as soon as the manifest is there. Only `take` locks exclusively, and not at this moment.
            fcntl.flock(copy.lock, fcntl.LOCK_SH)
            try:
                partial_file.write_text(json.dumps(content))
                os.link(partial_file, self._manifest(copy.version))  # unlike a rename, it never replaces another file
            except FileExistsError:
                raise published_already(copy.version) from None
            except OSError as error:
                reason = f"{self.folder}: {error.strerror}"
                raise ServiceError(f"version {copy.version} of the weights was not published, {reason}") from None
            finally:
                partial_file.unlink(missing_ok=True)

    @asynccontextmanager
    async def fetch(self, version: int) -> AsyncIterator[dict[str, Tensor]]:
        with self._holding(version) as state_dict:
            yield state_dict

    @abstractmethod
    def _make(self, segment: Path, size: int, device: torch.device) -> Tensor:
        """Allocate memory to write to, (size,) uint8, for a segment with an empty file. May raise OSError.

        Args:
            device: of the weights that will be copied into it.
        """

    @abstractmethod
    def _find(self, segment: Path) -> Tensor | None:
        """Memory to write to, of a segment that another object made; None if it ended with its process."""

    @abstractmethod
    def _map(self, segment: Path) -> Tensor:
        """Memory of a segment, to read: (its size,) uint8."""

    def _finish(self) -> None:
        """Wait for the reads and writes that this process has queued."""

    def _manifest(self, version: int) -> Path:
        return self.folder / f"v{version:08d}.json"

    def _manifests(self) -> list[Path]:
        """The oldest first."""
        return sorted(self.folder.glob("v*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))

    @contextmanager
    def _holding(self, version: int) -> Iterator[dict[str, Tensor]]:
        manifest = self._manifest(version)
        if not is_own(self.folder):  # it is gone, and another user may have taken its name
            raise ServiceError(self._missing(version))
        try:
            text = manifest.read_text()
            content = json.loads(text)
            segment = self.folder / content["segment"]
            lock = segment.open("rb")
        except FileNotFoundError:
            raise ServiceError(self._missing(version)) from None
        with lock:
            # Between reading the manifest and locking, the version may have been forgotten, and its segment taken.
            if not take_lock(lock, fcntl.LOCK_SH) or _text(manifest) != text:
                raise ServiceError(self._missing(version))
            try:
                yield TensorLayout.from_json(content["layout"]).views(self._map(segment))
            finally:
                self._finish()

    def _missing(self, version: int) -> str:
        if not is_own(self.folder):
            return f"the weight store has no version {version}{self._why_missing()}"
        return no_version(version, (int(path.stem[1:]) for path in self.folder.glob("v*.json")))

    def _why_missing(self) -> str:
        return f": it is not open, or its folder {self.folder} was removed"

    def _free_segment(self, size: int, device: torch.device) -> tuple[BinaryIO, Tensor]:
        """A segment that no version names and no process reads, locked exclusively; a new one if there is none."""
        in_use = {json.loads(path.read_text())["segment"] for path in self._manifests()}
        for segment in self.folder.glob("*.segment"):
            if segment.name in in_use:
                continue
            lock = segment.open("rb")
            if not take_lock(lock, fcntl.LOCK_EX):
                lock.close()  # a slow reader has it
                continue
            if (flat := self._writable.get(segment.name)) is None:
                flat = self._find(segment)
            if flat is not None and flat.numel() >= size:
                self._writable[segment.name] = flat
                return lock, flat
            self._drop(segment)
            lock.close()
        return self._new_segment(size, device)

    def _new_segment(self, size: int, device: torch.device) -> tuple[BinaryIO, Tensor]:
        segment = self.folder / f"{secrets.token_hex(4)}.segment"
        try:
            segment.touch(0o600)
        except FileNotFoundError:
            raise ServiceError(f"there is no weight store{self._why_missing()}") from None
        lock = segment.open("rb")
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            self._writable[segment.name] = flat = self._make(segment, size, device)
        except BaseException:
            self._drop(segment)
            lock.close()
            raise
        return lock, flat

    def _drop(self, segment: Path) -> None:
        self._writable.pop(segment.name, None)
        segment.unlink()


def _text(path: Path) -> str:
    """The content of a file; "" if there is none."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
