"""SegmentStore: snapshots in pieces of this host's memory, and a folder of small files that says which is where.

A version is one segment, a file that names a piece of memory and carries its locks, and one manifest, vNNNNNNNN.json,
which is renamed to its name last: the commit marker. Whoever reads holds a shared lock on the segment. One that no
manifest names any more is used again as soon as it can be locked alone, so that memory is made, and its pages are
touched, for the first versions only, and nobody ever reads what is being written. A lock ends with its process.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from forge_env.core.errors import InvariantError, ServiceError
from forge_env.runtime.weights.one_host.store_folder import StoreFolder, is_own, new_path, remove_left_behind
from forge_env.runtime.weights.store import KEEP, WeightStore
from forge_env.runtime.weights.tensor_layout import Layout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Taken:
    """A copy that no manifest names yet."""

    version: int
    layout: Layout
    segment: str
    lock: BinaryIO
    """Holds the segment alone. Ends with this object, if that is forgotten before it is committed."""


@dataclass(frozen=True, slots=True)
class Held:
    """A version whose segment is not used again as long as it is read."""

    snapshot: str
    """Its name, of which there is no other, ever."""
    layout: Layout
    flat: Tensor


class SegmentStore(WeightStore):
    """What the stores of one host have in common.

    Args:
        folder: of the manifests and segments; None is a new one.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or new_path()
        self._held: StoreFolder | None = None
        self._choosing = threading.Lock()
        self._writable: dict[str, Tensor] = {}  # by segment, (its size,) uint8

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder,)

    async def open(self, processes: Any = None) -> None:
        remove_left_behind()
        self._held = StoreFolder(self.folder)

    async def close(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def take(self, version: int, state_dict: Mapping[str, Tensor]) -> Taken:
        if self._manifest(version).exists():
            raise _published(version)
        layout = Layout.of(state_dict)
        with self._choosing:
            self._forget(keep=KEEP - 1)  # now, and not after it: the copy goes where the oldest one was
            lock, flat = self._free_segment(max(layout.size, 1), state_dict)
        layout.copy(state_dict, flat)
        self._finish()
        return Taken(version, layout, Path(lock.name).name, lock)

    async def commit(self, taken: Taken) -> None:
        content = {"snapshot": secrets.token_hex(8), "segment": taken.segment, "layout": taken.layout.to_json()}
        unfinished = self.folder / f"{taken.segment}.manifest"
        with self._choosing, taken.lock:
            # Readers may come as soon as the manifest is there. Only `take` asks for a segment alone, and not now.
            fcntl.flock(taken.lock, fcntl.LOCK_SH)
            try:
                unfinished.write_text(json.dumps(content))
                os.link(unfinished, self._manifest(taken.version))  # unlike a rename, never in the place of another
            except FileExistsError:
                raise _published(taken.version) from None
            except OSError as error:
                reason = f"{self.folder}: {error.strerror}"
                raise ServiceError(f"version {taken.version} of the weights was not published, {reason}") from None
            finally:
                unfinished.unlink(missing_ok=True)

    @asynccontextmanager
    async def fetch(self, version: int) -> AsyncIterator[dict[str, Tensor]]:
        with self._holding(version) as held:
            yield held.layout.views(held.flat)

    # ---- what each kind of memory does in its own way ----

    @abstractmethod
    def _make(self, segment: Path, size: int, state_dict: Mapping[str, Tensor]) -> Tensor:
        """Make memory to write to, (size,) uint8, for a segment whose file is empty yet. May raise OSError."""

    @abstractmethod
    def _find(self, segment: Path) -> Tensor | None:
        """Memory to write to, of a segment that this object has not made; None where it went with its process."""

    @abstractmethod
    def _map(self, segment: Path) -> Tensor:
        """Memory of a segment to read, (its size,) uint8."""

    def _finish(self) -> None:
        """Wait until this process has read and written all that it was told to."""

    # ---- versions ----

    def _manifest(self, version: int) -> Path:
        return self.folder / f"v{version:08d}.json"

    def _manifests(self) -> list[Path]:
        """The oldest first."""
        return sorted(self.folder.glob("v*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))

    def _forget(self, keep: int) -> None:
        """Remove all manifests but the newest; their segments are free once nobody reads them."""
        manifests = self._manifests()
        for manifest in manifests[: max(0, len(manifests) - keep)]:
            content = json.loads(manifest.read_text())
            manifest.unlink()
            self._checksum(content["snapshot"]).unlink(missing_ok=True)

    def _checksum(self, snapshot: str) -> Path:
        return self.folder / f"{snapshot}.sum"

    @contextmanager
    def _holding(self, version: int) -> Iterator[Held]:
        """Hold a version for reading.

        Raises:
            ServiceError: when there is no such version, or no longer.
        """
        manifest = self._manifest(version)
        if not is_own(self.folder):  # gone, and its name perhaps taken by another user
            raise ServiceError(f"the weight store has no version {version}{self._present()}")
        try:
            text = manifest.read_text()
            content = json.loads(text)
            segment = self.folder / content["segment"]
            lock = segment.open("rb")
        except FileNotFoundError:
            raise ServiceError(f"the weight store has no version {version}{self._present()}") from None
        with lock:
            # Between reading the manifest and locking, the version may have been forgotten, and its segment taken.
            if not _try_lock(lock, fcntl.LOCK_SH) or _text(manifest) != text:
                raise ServiceError(f"the weight store has no version {version} any more{self._present()}")
            try:
                yield Held(content["snapshot"], Layout.from_json(content["layout"]), self._map(segment))
            finally:
                self._finish()

    def _present(self) -> str:
        if not is_own(self.folder):
            return f": it is not open, or its folder {self.folder} was removed"
        versions = sorted(int(path.stem[1:]) for path in self.folder.glob("v*.json"))
        return f"; it has {', '.join(map(str, versions)) or 'none'}"

    # ---- segments ----

    def _free_segment(self, size: int, state_dict: Mapping[str, Tensor]) -> tuple[BinaryIO, Tensor]:
        """A segment that no version names and nobody reads, locked alone; a new one where there is none."""
        named = {json.loads(path.read_text())["segment"] for path in self._manifests()}
        for segment in self.folder.glob("*.segment"):
            if segment.name in named:
                continue
            lock = segment.open("rb")
            if not _try_lock(lock, fcntl.LOCK_EX):
                lock.close()  # a slow reader
                continue
            flat = self._writable.get(segment.name)
            flat = self._find(segment) if flat is None else flat
            if flat is not None and flat.numel() >= size:
                self._writable[segment.name] = flat
                return lock, flat
            self._drop(segment)
            lock.close()
        return self._new_segment(size, state_dict)

    def _new_segment(self, size: int, state_dict: Mapping[str, Tensor]) -> tuple[BinaryIO, Tensor]:
        segment = self.folder / f"{secrets.token_hex(4)}.segment"
        try:
            segment.touch(0o600)
        except FileNotFoundError:
            raise ServiceError(f"there is no weight store{self._present()}") from None
        lock = segment.open("rb")
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            self._writable[segment.name] = flat = self._make(segment, size, state_dict)
        except BaseException:
            self._drop(segment)
            lock.close()
            raise
        return lock, flat

    def _drop(self, segment: Path) -> None:
        self._writable.pop(segment.name, None)
        segment.unlink()


def _published(version: int) -> InvariantError:
    return InvariantError(f"version {version} of the weights was published already; a version never changes")


def _try_lock(file: BinaryIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _text(path: Path) -> str:
    """The content of a file; "" where there is none."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
