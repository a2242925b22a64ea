"""A stable path of the model, so that vLLM finds its compiled graphs again in the next run."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

_MOST_FOLDERS = 64  # of models with one config.json that engines of this machine read at the same time


def stable_path(folder: str, links: Path) -> str:
    """A path of `folder` that depends on its config.json and not on its name, for every process of this machine.

    vLLM's compile cache has the model's path in its key, beside the config. A model that every run writes to a new
    folder would be compiled again in every run. So vLLM is given a symbolic link, `links`/KEY/NUMBER; KEY is a hash of
    config.json. An engine holds a shared lock on the file beside its link until its process ends. Engines of one folder
    use one link, and another folder with the same config.json takes the first link that no engine holds.

    The path is `folder` itself if it has no config.json, if `links` cannot be written, or if all links of this
    config.json are in use.

    Args:
        folder: of a model, or a model's name on the hub.
        links: the folder of the links and their locks; made if it is missing.
    """
    target = os.path.realpath(folder)
    try:
        key = hashlib.sha256(Path(target, "config.json").read_bytes()).hexdigest()[:16]
        place = links.absolute() / key
        place.mkdir(parents=True, exist_ok=True)
        return next(
            (str(place / str(number)) for number in range(_MOST_FOLDERS) if _take(place, number, target)), folder
        )
    except OSError:
        return folder


def _take(place: Path, number: int, target: str) -> bool:
    """Whether link `number` leads to `target`, and is now locked for the rest of this process."""
    link = place / str(number)
    descriptor = os.open(place / f"{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if not _leads_to(link, target):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary = place / f"{number}.{os.getpid()}"
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(target)
            temporary.rename(link)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # The lock is free for a moment while it becomes a shared one.
            if not _leads_to(link, target):
                raise BlockingIOError
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return False
        raise
    return True  # the descriptor stays open, and with it the lock


def _leads_to(link: Path, target: str) -> bool:
    try:
        return os.readlink(link) == target
    except OSError:
        return False
