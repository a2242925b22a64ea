"""Monarch's files on the disk, sockets and a log, in folders that are removed with the run."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

from forge_env.core.errors import ServiceError
from forge_env.runtime import remove_monarch_log
from forge_env.utils.folders import temporary_files_in
from forge_env.utils.owners import is_mine

_LONGEST_TEMP = 48  # bytes: a socket's address has 108, and the names of our folder and of Monarch's file take up to 55
_EXIT_SECONDS = 10.0
_sockets: list[Path] = []  # the folders of Monarch's sockets: they stay as long as this process lives


def _short_temp() -> str:
    """The folder for temporary files, or /tmp if its name is too long for a Unix socket in it."""
    folder = tempfile.gettempdir()
    return folder if len(folder) <= _LONGEST_TEMP else "/tmp"


def short_temporary_files() -> AbstractContextManager[None]:
    """Put temporary files of Monarch, and of its children, in a folder with a name that is short enough for sockets."""
    return temporary_files_in(_short_temp())


def open_monarch(log_dir: Path, transport: str) -> None:
    """Import Monarch with its greeting in a log file, and its sockets in a folder that is removed with the run."""
    for folder in _sockets:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or not is_mine(folder.lstat()):
            raise ServiceError(f"{folder}, the folder of this process's sockets, belongs to another user now")
    if _sockets:
        _set_transport(transport)
        return
    _sockets.append(Path(tempfile.mkdtemp(prefix="forge_env_", dir=_short_temp())))
    stderr_copy = os.dup(2)
    log = os.open(log_dir / "monarch.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 2)
    try:
        with temporary_files_in(str(_sockets[0])):
            from monarch.actor import this_host

            _set_transport(transport)
            this_host()
    finally:
        os.dup2(stderr_copy, 2)
        os.close(stderr_copy)
        os.close(log)
    _sockets.extend(_sockets[0].iterdir())
    atexit.register(_shut_down)  # runs before Monarch's own handler, which then has nothing to do


def _shut_down() -> None:
    """Shut Monarch down with this process. Monarch's own shutdown waits 1 s, and prints a trace under load."""
    from monarch.actor import shutdown_context

    try:
        shutdown_context(host_timeout=0.3).get(timeout=_EXIT_SECONDS)
    except TimeoutError:
        pass  # its threads end with the process


def _set_transport(transport: str) -> None:
    from monarch.actor import enable_transport

    try:
        if transport:
            enable_transport(transport)
    except RuntimeError:
        raise ServiceError("Monarch already runs in this process, and was not told of other hosts then") from None


def remove_what_monarch_left() -> None:
    """Remove its sockets and its log; `open_monarch` makes room for new ones."""
    shutil.rmtree(_sockets[0], ignore_errors=True)
    remove_monarch_log()
