"""A small server of the Open Reward Standard, whose connections break and whose sessions end as a test asks."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

SPLITS = [{"name": "train", "type": "train"}, {"name": "exam", "type": "test"}]
TOOLS = {
    "submit": {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
    "look": None,
}


class OrsServer:
    """The server of one environment, "adding". Its attributes say what it does, and what it was asked."""

    def __init__(self) -> None:
        self.key = ""
        """The API key that it wants."""
        self.sessions: dict[str, dict[str, Any]] = {}
        self.secrets: dict[str, Any] = {}
        self.headers: list[dict[str, str]] = []
        self.runs = 0
        """Calls that were run, and not resumed."""
        self.pings = 0
        self.break_streams = 0
        """So many streams end after the id of the call; below 0: before it."""
        self.starting = 0
        """So many prompts are answered with 503."""
        self.reward: Any = 1.0
        self.finished: Any = True
        self.hold = asyncio.Event()
        self.hold.set()
        self.terminal: dict[str, Any] | None = None
        self.messages: list[dict[str, Any]] | None = None
        self.has_num_tasks = True
        self.compares: bool | None = None
        self.has_tools = True
        """Whether tools are told without a session."""
        self.calls: list[str] = []
        """The bodies of calls as they came."""
        self._results: dict[str, str] = {}

    @property
    def app(self) -> Starlette:
        def route(path: str, function: Any, method: str = "POST") -> Route:
            async def endpoint(request: Request) -> Response:
                self.headers.append(dict(request.headers))
                if self.key and request.headers.get("X-API-Key") != self.key:
                    return JSONResponse({"detail": "no such key"}, status_code=401)
                return await function(request)  # type: ignore[no-any-return]

            return Route(path, endpoint, methods=[method])

        return Starlette(
            routes=[
                route("/list_environments", self._environments, "GET"),
                route("/adding/splits", self._splits, "GET"),
                route("/adding/num_tasks", self._num_tasks),
                route("/adding/tasks", self._tasks),
                route("/adding/task_range", self._tasks),
                route("/create_session", self._new),
                route("/create", self._create),
                route("/adding/task_tools", self._tools, "GET"),
                route("/adding/tools", self._tools_of_all, "GET"),
                route("/adding/prompt", self._prompt, "GET"),
                route("/adding/messages", self._conversation, "GET"),
                route("/adding/call", self._call),
                route("/ping", self._ping),
                route("/delete", self._delete),
                route("/delete_session", self._delete),
            ]
        )

    async def _environments(self, request: Request) -> Response:
        return JSONResponse(["adding"])

    async def _splits(self, request: Request) -> Response:
        return JSONResponse(SPLITS)

    async def _num_tasks(self, request: Request) -> Response:
        return JSONResponse({"num_tasks": 12}) if self.has_num_tasks else JSONResponse({}, status_code=404)

    async def _tasks(self, request: Request) -> Response:
        first = 0 if (await request.json())["split"] == "train" else 100
        return JSONResponse({"tasks": [{"n": first + i} for i in range(12)]})

    async def _new(self, request: Request) -> Response:
        return JSONResponse({"sid": uuid.uuid4().hex})

    async def _create(self, request: Request) -> Response:
        body = await request.json()
        self.sessions[request.headers["X-Session-ID"]] = body["task_spec"]
        self.secrets = body.get("secrets", {})
        return JSONResponse({"sid": request.headers["X-Session-ID"]})

    async def _tools_of_all(self, request: Request) -> Response:
        return await self._tools(request) if self.has_tools else JSONResponse({}, status_code=404)

    async def _tools(self, request: Request) -> Response:
        tools = [{"name": name, "description": f"To {name}.", "input_schema": TOOLS[name]} for name in TOOLS]
        kinds = {"message_block_types": ["text"]} if self.messages else {}
        return JSONResponse(
            {"tools": tools, "terminal_tool": self.terminal, "supports_score_group": self.compares, **kinds}
        )

    async def _prompt(self, request: Request) -> Response:
        if self.starting:
            self.starting -= 1
            return JSONResponse({}, status_code=503, headers={"X-Backend-State": "starting"})
        n = self.sessions[request.headers["X-Session-ID"]]["n"]
        image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
        return JSONResponse([{"type": "text", "text": f"What is {n} + 1?"}, image])

    async def _conversation(self, request: Request) -> Response:
        return JSONResponse(self.messages)

    async def _call(self, request: Request) -> Response:
        body, session = await request.json(), request.headers["X-Session-ID"]
        self.calls.append((await request.body()).decode())
        if session not in self.sessions:
            return JSONResponse({"detail": "Session deleted"}, status_code=410)
        if "task_id" not in body:
            self.runs += 1
            body["task_id"] = uuid.uuid4().hex
            self._results[body["task_id"]] = json.dumps(self._result(session, body), ensure_ascii=False)
        return StreamingResponse(self._stream(body["task_id"]), media_type="text/event-stream")

    def _result(self, session: str, body: dict[str, Any]) -> dict[str, Any]:
        if body["name"] == "look":
            blocks = [{"type": "text", "text": "a\u2028b" + " " * 40}]
            return {"ok": True, "output": {"blocks": blocks, "metadata": None, "reward": None, "finished": False}}
        if not isinstance(body["input"].get("answer"), str):
            return {"ok": False, "error": "answer is missing", "reason": "input_validation"}
        right = body["input"]["answer"] == str(self.sessions[session]["n"] + 1)
        output = {
            "blocks": [{"type": "text", "text": "Graded."}],
            "metadata": {"right": right},
            "finished": self.finished,
        }
        return {"ok": True, "output": {**output, "reward": self.reward if right else 0.0}}

    async def _stream(self, task_id: str) -> AsyncIterator[str]:
        if self.break_streams < 0:
            return
        yield f"event: task_id\r\ndata: {task_id}\r\n\r\n: a comment\r\n\r\n"
        if self.break_streams:
            self.break_streams -= 1
            return
        await self.hold.wait()
        if task_id not in self._results:
            yield "event: error\r\ndata: unknown task_id\r\n\r\n"
            return
        result = self._results[task_id]
        pieces = [result[i : i + 16] for i in range(0, len(result), 16)]
        for piece in pieces[:-1]:
            yield f"event: chunk\r\ndata: {piece}\r\n\r\n"
        yield f"event: end\r\ndata: {pieces[-1]}\r\n\r\n"

    async def _ping(self, request: Request) -> Response:
        self.pings += 1
        is_known = request.headers["X-Session-ID"] in self.sessions
        return JSONResponse({}, status_code=200 if is_known else 404)

    async def _delete(self, request: Request) -> Response:
        self.sessions.pop(request.headers["X-Session-ID"], None)
        return JSONResponse({})
