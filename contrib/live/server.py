"""LiveServer: the controller of a run answers those who have its token: what it does now, and actions.

It listens on loopback. RUN/live.json, which only the owner of the run can read, has the port and a random token. A
request is a line of JSON, and so is its answer:

    {"token": "...", "who": "forge-env live, process 12"}      the first line of a connection: {}, or {"error": ...}
    {"do": "look"}                                             {"state": ...}
    {"do": "pause"}  {"do": "set", "value": "training.steps=9"}  {"text": ...}
    {"do": "release"}                                          {}

Anyone with the token may look. The first who acts holds the run until it lets go or its connection ends; meanwhile
others are refused. Each action is a line of RUN/actions.jsonl, which a resumed run continues and never cuts.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from contrib.live.actions import act
from contrib.live.client import FILE, MOST_BYTES
from contrib.live.state import state_of
from forge_env.core.errors import ForgeError, UserError
from forge_env.utils.atomic import replace_file
from forge_env.utils.secret_values import masked_text
from trainers.metrics.observer import Observer
from trainers.run.run import Run

ACTIONS_FILE = "actions.jsonl"
FIRST_LINE_SECONDS = 5.0
MOST_CONNECTIONS = 32


class LiveServer(Observer):
    """Answers on the event loop of a run, from the start of its processes to their end."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._token = secrets.token_urlsafe(24)
        self._serving: asyncio.Task[None] | None = None
        self._connections: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
        self._holder: tuple[object, str] | None = None  # the connection that may act, and who it is, since when

    def begin(self, run: Run) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        place = {"host": socket.gethostname(), "pid": os.getpid(), "port": listener.getsockname()[1]}
        replace_file(self.folder / FILE, json.dumps(place | {"token": self._token}) + "\n", mode=0o600)
        self._run = run
        self._serving = asyncio.create_task(self._serve(listener), name="live server")

    def stop(self) -> None:
        if self._serving is None:
            return
        self._serving.cancel()
        self._serving = None
        for task in self._connections:
            task.cancel()
        (self.folder / FILE).unlink(missing_ok=True)

    async def _serve(self, listener: socket.socket) -> None:
        try:
            server = await asyncio.start_server(self._serve_connection, sock=listener, limit=MOST_BYTES)
        except BaseException:
            listener.close()
            raise
        async with server:
            await server.serve_forever()

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            who = await self._admit(reader, writer)
            while who and (line := await reader.readline()):
                await self._send(writer, await self._answer(line, task, who))
        except (OSError, ValueError, TimeoutError):  # it is gone, sends too long a line, or says nothing
            pass
        except asyncio.CancelledError:  # the run ends
            pass
        finally:
            del self._connections[task]
            self._release(task)
            writer.close()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Read the first line of a connection; returns who it is, or "" for one that is refused."""
        async with asyncio.timeout(FIRST_LINE_SECONDS):
            first = _read(await reader.readline())
        error = ""
        if not hmac.compare_digest(str(first.get("token")).encode("utf-8", "replace"), self._token.encode()):
            error = f"this is not the token of the run in {self.folder}: read it from its {FILE}, as this run wrote it"
        elif len(self._connections) > MOST_CONNECTIONS:
            error = f"{MOST_CONNECTIONS} others look at this run: end one of them"
        await self._send(writer, {"error": error} if error else {})
        return "" if error else " ".join(str(first.get("who") or "somebody").split())[:80]

    async def _answer(self, line: bytes, connection: object, who: str) -> dict[str, Any]:
        request = _read(line)
        action, value = str(request.get("do")), str(request.get("value") or "")
        try:
            if action == "look":
                return {"state": await state_of(self._run) | {"holder": self._holder and self._holder[1]}}
            if action == "release":
                self._release(connection)
                return {}
            return {"text": self._act(action, value, connection, who)}
        except ForgeError as error:
            return {"error": str(error)}
        except OSError as error:
            return {
                "error": f"{self.folder} cannot be written: {error.strerror}; what was asked may be done all the same"
            }

    def _act(self, action: str, value: str, connection: object, who: str) -> str:
        if self._holder is not None and self._holder[0] is not connection:
            raise UserError(f"{self._holder[1]} acts on this run: one at a time can, so let it go there first")
        text = act(self._run, action, value)
        self._holder = self._holder or (connection, f"{who}, since {datetime.now():%H:%M:%S},")
        run = self._run
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "seconds": round(run.record.console.seconds(), 3),
            "step": run.controls.queue()["steps_done"] if run.controls.queue is not None else None,
            "who": who,
            "action": action,
            "value": value,
            "text": text,
        }
        with (self.folder / ACTIONS_FILE).open("a", encoding="utf-8") as file:
            file.write(masked_text(json.dumps(entry, ensure_ascii=False)) + "\n")
        run.record.say(f"{who}: {' '.join(filter(None, (action, value)))}: {text}")
        return text

    def _release(self, connection: object) -> None:
        if self._holder is not None and self._holder[0] is connection:
            self._holder = None

    async def _send(self, writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
        writer.write(json.dumps(answer, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n")
        await writer.drain()


def _read(line: bytes) -> dict[str, Any]:
    """A request; one that is not a JSON object is one for nothing."""
    with suppress(ValueError, RecursionError):
        request = json.loads(line)
        if isinstance(request, dict):
            return request
    return {}
