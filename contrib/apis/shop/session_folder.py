"""The private folder with the databases of one server; it is removed with its server, even a killed one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

_PREFIX = "forge_env_shop_"
_GRACE = 60.0  # seconds after the creation of a folder in which it may not be locked yet


class SessionFolder:
    """A folder that only this user can read, locked by the processes that use it.

    The lock is on the descriptor, which the server's processes inherit: the kernel lets it go when the last of them is
    dead. If all processes of a folder were killed, the next start finds it unlocked, and removes it.
    """

    def __init__(self) -> None:
        _remove_abandoned(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self.descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.descriptor)


def _remove_abandoned(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError), ExitStack() as stack:  # another start has removed it, or its server runs
            if path.stat().st_uid == os.getuid() and time.time() - path.stat().st_mtime > _GRACE:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
