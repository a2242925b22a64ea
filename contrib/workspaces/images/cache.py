"""The cache of unpacked images: one folder for each entry, which is complete as soon as it has its name.

An entry that a process uses is locked by it (`in_use`, `hold_entry`), so that `remove` leaves it alone. The kernel
frees the lock when the process ends, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import fcntl
import functools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from forge_env.core.errors import SandboxError, UserError
from forge_env.utils.atomic import take_lock

T = TypeVar("T")

_VARIABLE = "FORGE_ENV_IMAGES"
_PARTIAL = ".partial-"
PRIVATE = ("layers", "images")
"""Folders of the cache with entries of published images. Nobody else may enter them: setuid programs of an image must
not be within reach of other users of the machine."""
_WAIT_S = 600.0
_LOOK_S = 0.05
"""How often a wait tries again: the kernel's own wait has no time limit, and does not end with its caller."""
_cancel_event: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("cancelled", default=None)


class Cancelled(Exception):
    """Another layer of the image has failed, or the user wants no more."""


async def in_thread(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call a function that needs images in a thread. When the caller is cancelled, its waits and downloads end."""
    context, cancel_event = contextvars.copy_context(), threading.Event()
    context.run(_cancel_event.set, cancel_event)
    call = functools.partial(context.run, function, *arguments, **options)
    try:
        return await asyncio.get_running_loop().run_in_executor(None, call)
    finally:
        cancel_event.set()


def callers_event() -> threading.Event:
    """Return the event that is set when the caller of `in_thread` is cancelled; a new one outside of `in_thread`."""
    return _cancel_event.get() or threading.Event()


def images_folder() -> Path:
    """Return the folder of the cache: FORGE_ENV_IMAGES, else forge_env/images in the user's cache."""
    if folder := os.environ.get(_VARIABLE):
        return Path(folder).expanduser().absolute()
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        raise UserError(f"this user has no home folder for a cache of images: set {_VARIABLE} to a folder") from None
    return Path(caches).absolute() / "forge_env" / "images"


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """Return the entry `name` of the cache; `build` fills it the first time.

    Arguments and exceptions are those of `hold_entry`.
    """
    with hold_entry(name, build) as folder:
        return folder


@contextmanager
def hold_entry(
    name: str,
    build: Callable[[Path], None],
    *,
    wait_s: float = _WAIT_S,
    cancel_event: threading.Event | None = None,
) -> Iterator[Path]:
    """Hold the entry `name` of the cache for the block; `build` fills it the first time.

    Threads and processes that need an entry which is being built wait for it: an image takes seconds of a core, and the
    first episodes of a run all ask for it at once.

    Args:
        build: called with a new, empty folder; when it raises, nothing stays behind. If its process is killed, one of
            those that wait builds it.
        wait_s: time limit of the wait for others, not of `build`.
        cancel_event: ends the wait when it is set; the event of `in_thread` by default.

    Raises:
        SandboxError: the others were not ready in time.
        Cancelled
    """
    folder = images_folder() / name
    patience = _Patience(folder, wait_s, cancel_event or callers_event())
    while (lock := _lock(folder, fcntl.LOCK_SH, patience)) is None:
        _build(folder, build, patience)
    try:
        yield folder
    finally:
        os.close(lock)


@contextmanager
def work_folder() -> Iterator[Path]:
    """Make a folder for the block, on the disk of the cache: it has room for images if any disk has."""
    folder, lock = _new_partial(images_folder(), "work")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def in_use(root: Path) -> Iterator[None]:
    """Keep an image in the cache for the block. A folder that is not in the cache is nobody's to remove.

    Args: root: the folder of its root file system.
    """
    entry = _entry_of(root)
    lock = _lock(entry, fcntl.LOCK_SH, _Patience(entry, _WAIT_S, callers_event())) if entry is not None else -1
    if lock is None:
        raise UserError(f"the image {root} is not in the cache any more: pull or build it again")
    try:
        yield
    finally:
        if lock >= 0:
            os.close(lock)


class ImagesInUse:
    """Images that a process uses, each locked once however often it is used."""

    def __init__(self) -> None:
        self._uses: dict[Path, tuple[int, ExitStack]] = {}

    def take(self, root: Path) -> None:
        """Raises UserError as `in_use`."""
        count, stack = self._uses.get(root) or (0, ExitStack())
        if not count:
            stack.enter_context(in_use(root))
        self._uses[root] = (count + 1, stack)

    def give_back(self, root: Path) -> None:
        count, stack = self._uses.pop(root)
        if count > 1:
            self._uses[root] = (count - 1, stack)
        else:
            stack.close()


def remove(folder: Path) -> bool:
    """Remove an entry of the cache, unless a process uses it; return whether it is gone."""
    lock = _lock(folder, fcntl.LOCK_EX)
    if lock is None:
        return not folder.exists()
    trash = folder.parent / f"{_PARTIAL}removed-{folder.name[:40]}-{os.getpid()}"
    try:
        folder.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)
    finally:
        os.close(lock)
    return True


def sweep(parent: Path) -> None:
    """Remove what killed builds and removals have left."""
    for partial in parent.glob(f"{_PARTIAL}*"):
        lock = _lock(partial, fcntl.LOCK_EX)
        if lock is not None:
            shutil.rmtree(partial, ignore_errors=True)
            os.close(lock)


def _new_partial(parent: Path, name: str) -> tuple[Path, int]:
    """Make a folder, and lock it, so that `sweep` leaves it alone; return it and its lock."""
    with _writing(parent):
        while True:
            partial = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{name}-", dir=parent))
            lock = _lock(partial, fcntl.LOCK_EX)
            if lock is not None:  # else another process has taken it for a leftover
                return partial, lock


class _Patience:
    """The wait of a caller for those that make an entry, or remove it."""

    def __init__(self, entry: Path, seconds: float, cancel_event: threading.Event) -> None:
        self._entry, self._seconds, self._cancel_event = entry, seconds, cancel_event
        self._end = time.monotonic() + seconds

    def pause(self) -> None:
        if self._cancel_event.wait(_LOOK_S):
            raise Cancelled
        if time.monotonic() >= self._end:
            raise SandboxError(
                f"waited {self._seconds:g} s, the limit, for whoever else makes or removes {self._entry}: "
                f"try again; if that one hangs, end it (fuser {self._entry.parent}/.*{self._entry.name} names it)"
            )


def _build(folder: Path, build: Callable[[Path], None], patience: _Patience) -> None:
    """Fill a folder, and give it its name, unless another does so, or fails, meanwhile."""
    partial = folder.parent / f"{_PARTIAL}{folder.name}"
    with _writing(folder.parent), contextlib.suppress(FileExistsError):
        partial.mkdir()
    lock = _lock(partial, fcntl.LOCK_EX, patience)
    if lock is None:
        return
    done = False
    try:
        if not folder.is_dir():
            for leftover in partial.iterdir():  # of a process that was killed while this one waited
                shutil.rmtree(leftover) if leftover.is_dir() and not leftover.is_symlink() else leftover.unlink()
            build(partial)
            partial.chmod(0o755)
            partial.rename(folder)
            done = True
    finally:
        if not done:
            shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)


@contextmanager
def _writing(parent: Path) -> Iterator[None]:
    """Make a folder of the cache, and remove leftovers in it, before the block.

    Raises:
        SandboxError: it, or what the block makes in it, cannot be written.
    """
    try:
        _make_parent(parent)
        sweep(parent)
        yield
    except OSError as error:
        raise SandboxError(
            f"the cache of images {parent} cannot be written ({error.strerror}): set {_VARIABLE} to a folder that can"
        ) from None


def _lock(folder: Path, kind: int, patience: _Patience | None = None) -> int | None:
    """Lock a folder; return the descriptor that holds the lock, or None if it is gone or cannot be locked.

    Args: patience: waits for those that hold it.
    """
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SandboxError(f"the entry {folder} of the cache of images cannot be opened: {error.strerror}") from None
    try:
        while not take_lock(lock, kind):
            if patience is None:
                os.close(lock)
                return None
            patience.pause()
        if os.path.samestat(os.fstat(lock), os.stat(folder)):
            return lock
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _entry_of(root: Path) -> Path | None:
    """Return the entry of the cache that a root file system is in; None for a folder outside of the cache."""
    try:
        cache = images_folder()
    except UserError:
        return None  # there is no cache
    if not root.is_relative_to(cache) or root == cache:
        return None
    parts = root.relative_to(cache).parts
    return cache.joinpath(*parts[: 2 if parts[0] in PRIVATE else 1])


def _make_parent(parent: Path) -> None:
    parent.mkdir(parents=True, exist_ok=True)
    if parent.name in PRIVATE:
        with contextlib.suppress(PermissionError):
            parent.chmod(0o700)
