"""A run that goes on, as the page shows it and acts on it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from contrib.live.client import LiveClient
from contrib.viewer.lenient_json import json_lines
from forge_env.core.errors import ForgeError

WHO = "forge-env view"
MOST_ACTIONS = 200


class LiveRun:
    """Looks by a connection for each time, and acts by one that stays: nobody else can act until `release`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._acting: LiveClient | None = None

    def look(self) -> dict[str, Any]:
        """Return what the run does now, or why that is not known, and the last actions on it."""
        state, reason = None, ""
        try:
            with LiveClient(self._folder, WHO) as client:
                state = client.look()
        except ForgeError as error:
            reason = str(error)
        return {"state": state, "ended": reason, "actions": self._actions()}

    def act(self, action: str, value: str) -> str:
        with self._lock:
            if action == "release":
                self._disconnect()
                return "others may act on the run"
            if self._acting is None or self._acting.is_closed:
                self._acting = LiveClient(self._folder, WHO)
            return self._acting.act(action, value)

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        acting, self._acting = self._acting, None
        if acting is not None:
            acting.close()

    def _actions(self) -> list[dict[str, Any]]:
        """The last actions, the newest first; a line that is half written is left out."""
        try:
            entries = json_lines((self._folder / "actions.jsonl").read_bytes())
        except OSError:
            return []
        names = ("time", "step", "who", "action", "value", "text")
        return [{name: entry.get(name, "") for name in names} for entry in reversed(entries[-MOST_ACTIONS:])]
