"""LiveClient: looks at a run that goes on, and acts on it, from another process of this machine."""

from __future__ import annotations

import json
import os
import select
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from forge_env.core.errors import ServiceError, UserError

FILE = "live.json"
"""Of a run that goes on: host, process id, port and token, for its owner only."""
MOST_BYTES = 1 << 14
"""Of a request."""
SECONDS = 10.0
"""For an answer; the controller answers within one, unless the machine has no time for it."""


class LiveClient:
    """A connection to a run. Used as a context manager, or closed; the run is then free for others to act on.

    Args:
        who: is named in the record of the run, and to others who want to act.

    Raises:
        UserError: no run goes on in this folder, or not on this machine; or its live.json is not its own.
    """

    def __init__(self, folder: Path, who: str) -> None:
        self.folder, self._is_closed = folder, False
        place = _place(folder)
        try:
            self._socket = socket.create_connection(("127.0.0.1", place["port"]), timeout=SECONDS)
        except OSError:
            raise _end_error(folder) from None
        self._file = self._socket.makefile("rwb")
        try:
            self._ask({"token": place["token"], "who": f"{who}, process {os.getpid()}"})
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._is_closed = True
        with suppress(OSError, ValueError):  # it may be gone, with a request that was not sent
            self._file.close()
        self._socket.close()

    @property
    def is_closed(self) -> bool:
        """Whether an end has closed the connection; the other one does when its run ends, or starts again."""
        if not self._is_closed and select.select([self._socket], [], [], 0)[0]:
            try:
                is_at_end = not self._socket.recv(1, socket.MSG_PEEK)
            except OSError:
                is_at_end = True
            if is_at_end:
                self.close()
        return self._is_closed

    def look(self) -> dict[str, Any]:
        state: dict[str, Any] = self._ask({"do": "look"})["state"]
        return state

    def act(self, action: str, value: str = "") -> str:
        """Act on the run; returns a sentence on what follows.

        Raises:
            UserError: the run refuses it, or has ended; or the request is too long.
        """
        return str(self._ask({"do": action, "value": value})["text"])

    def release(self) -> None:
        self._ask({"do": "release"})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        line = json.dumps(request).encode()
        if len(line) > MOST_BYTES:  # the server ends the connection of whoever sends it
            raise UserError(f"the request has {len(line):,} bytes, and {MOST_BYTES:,} are read: give a shorter value")
        try:
            self._file.write(line + b"\n")
            self._file.flush()
            line = self._file.readline()
            answer = json.loads(line) if line else None
        except TimeoutError:
            self.close()
            raise ServiceError(f"the run in {self.folder} did not answer within {SECONDS:g} s") from None
        except (OSError, ValueError):
            answer = None
        if not isinstance(answer, dict):
            self.close()
            raise _end_error(self.folder)
        if error := answer.get("error"):
            raise UserError(str(error))
        return answer


def goes_on(folder: Path) -> bool:
    """Whether a run in this folder can be looked at."""
    try:
        _place(folder)
    except UserError:
        return False
    return True


def _place(folder: Path) -> dict[str, Any]:
    try:
        place = json.loads((folder / FILE).read_text(encoding="utf-8"))
        host, pid = place["host"], int(place["pid"])
        place = {"port": int(place["port"]), "token": str(place["token"])}
        if not 0 < place["port"] < 2**16:
            raise ValueError(place["port"])
    except (FileNotFoundError, NotADirectoryError):
        raise _end_error(folder) from None
    except PermissionError:
        raise UserError(f"{folder / FILE} cannot be read: only who has started the run can act on it") from None
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        raise UserError(f"{folder / FILE} is damaged: only the run writes it, so stop the run by Ctrl-C") from None
    if host != socket.gethostname():
        raise UserError(f"the run in {folder} goes on at {host}: give the command there")
    if not Path(f"/proc/{pid}").exists():
        raise _end_error(folder)
    return place


def _end_error(folder: Path) -> UserError:
    if not folder.is_dir():
        return UserError(f"there is no folder {folder}: name that of a training run")
    return UserError(f"no training run goes on in {folder}: it has ended, or its processes are not up yet")
