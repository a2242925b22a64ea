"""A small OpenEnv server made of what is installed here: the frames of the protocol, over FastAPI and a WebSocket.

Its text game: say the number of the seed, modulo 10, within three tries. As the SDK's servers do, it refuses sessions
beyond `most`, unknown frames and actions of another form, each by an error frame.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import FastAPI, WebSocket, WebSocketDisconnect

ACTION = {
    "title": "SayAction",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "metadata": {"type": "object", "additionalProperties": True},
        "message": {"type": "string", "description": "What to say."},
    },
    "required": ["message"],
}
TYPED = {
    **ACTION,
    "title": "GuessNumberAction",
    "description": "Guess the number.",
    "properties": {**ACTION["properties"], "message": {"type": "integer", "minimum": 0}, "why": {"type": "string"}},  # type: ignore[dict-item]
}
OF_MCP = {
    "title": "CallToolAction",
    "type": "object",
    "properties": {
        "metadata": {"type": "object"},
        "type": {"const": "call_tool"},
        "tool_name": {"type": "string"},
        "arguments": {"type": "object"},
    },
    "required": ["tool_name"],
}
TOOL = {
    "name": "say",
    "description": "Say the number.",
    "inputSchema": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
}


class SmallServer:
    """The app, and what a test wants of it.

    Args:
        action: the schema of an action: ACTION, TYPED or OF_MCP.
        most: sessions at once.
        tasks: split -> number of tasks.
    """

    def __init__(
        self, action: dict[str, Any] = ACTION, *, most: int = 100, tasks: dict[str, int] | None = None
    ) -> None:
        self.sessions = self.peak = 0
        self.resets: list[dict[str, Any]] = []
        self.texts: list[str] = []
        """All frames as they came."""
        self.pages: dict[str, dict[str, Any]] = {}
        """Cursor -> page of the tools, where there are several."""
        self.frames: dict[str, str] = {}
        """Texts that are sent in the place of the answer to a kind of frame."""
        self.rewards: list[Any] = []
        """If there are any, of the reset and the steps of an episode, which ends with the last one."""
        self.held = asyncio.Event()
        """Set while a step hangs."""
        self.token = ""
        self._most, self._tasks, self._action = most, tasks or {}, action
        self.app = FastAPI()
        self.app.get("/schema")(self.schema)
        self.app.get("/metadata")(lambda: {"name": "small", "description": "a game", "version": "1.2"})
        self.app.get("/list_environments")(lambda: ["small"])
        self.app.get("/small/splits")(lambda: [{"name": name, "type": "train"} for name in self._tasks])
        self.app.post("/small/num_tasks")(self.num_tasks)
        self.app.post("/small/task")(self.task)
        self.app.websocket("/ws")(self.session)

    async def schema(self) -> dict[str, Any]:
        return {"action": self._action, "observation": {}, "state": {}}

    async def num_tasks(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"num_tasks": self._tasks[body["split"]]}

    async def task(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"task": {"id": f"{body['split']}-{body['index']}", "question": f"Say {body['index']}.", "answer": 1}}

    async def session(self, socket: WebSocket) -> None:
        if self.token and socket.headers.get("authorization") != f"Bearer {self.token}":
            await socket.close(code=1008)
            return
        await socket.accept()
        try:
            if self.sessions >= self._most:
                await socket.send_json(_error("CAPACITY_REACHED", "all sessions are taken"))
                await socket.close()
                return
            self.sessions += 1
            self.peak = max(self.peak, self.sessions)
            try:
                await self._play(socket)
            finally:
                self.sessions -= 1
        except WebSocketDisconnect:
            pass

    async def _play(self, socket: WebSocket) -> None:
        number, left = 0, 3
        rewards: list[Any] = []
        while True:
            text = await socket.receive_text()
            self.texts.append(text)
            frame = json.loads(text)
            kind, data = frame["type"], frame.get("data", {})
            if kind == "close":
                await socket.close()
                return
            if kind in self.frames:
                await socket.send_text(self.frames[kind])
            elif kind in ("reset", "step") and self.rewards:
                rewards = list(self.rewards) if kind == "reset" else rewards
                reward = rewards.pop(0)
                await socket.send_text(json.dumps(_observation({"text": "Say."}, reward, not rewards)))
            elif kind == "reset":
                self.resets.append(data)
                number, left = data.get("index", data.get("seed", 0)) % 10, 3
                await socket.send_json(_observation({"text": f"Say {number}.", "note": None}))
            elif kind == "mcp":
                await socket.send_json({"type": "mcp", "data": self._tools(data)})
            elif kind == "step":
                answer, left = await self._step(data, number, left)
                await socket.send_json(answer)
            else:
                await socket.send_json(_error("UNKNOWN_TYPE", f"unknown {kind}"))

    def _tools(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._action is not OF_MCP:
            return {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32603, "message": "no MCP"}}
        cursor = request["params"].get("cursor", "first")
        return {"jsonrpc": "2.0", "id": request["id"], "result": self.pages.get(cursor, {"tools": [TOOL]})}

    async def _step(self, data: dict[str, Any], number: int, left: int) -> tuple[dict[str, Any], int]:
        is_mcp = data.get("type") == "call_tool"
        said = data["arguments"]["number"] if is_mcp else data.get("message")
        if said is None or (isinstance(said, str) and len(said) > 50_000):
            return _error("VALIDATION_ERROR", "Invalid message", errors=[{"loc": ["message"], "msg": "too long"}]), left
        if said == "crash":
            return _error("EXECUTION_ERROR", "the game broke"), left
        if said == "hang":
            self.held.set()
            await asyncio.Event().wait()
        right, left = str(said) == str(number), left - 1
        text = "Right." if right else "No."
        metadata = {"left": left}
        if not is_mcp:
            return _observation({"text": text, "metadata": metadata}, float(right), right or not left), left
        result = {"content": [{"type": "text", "text": text}], "is_error": False}
        observation = {"tool_name": "say", "result": result, "error": None, "metadata": metadata}
        return _observation(observation, right, right or not left), left


def _observation(observation: dict[str, Any], reward: Any = None, done: bool = False) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}}


def _error(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message, **more}}
