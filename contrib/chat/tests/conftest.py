"""A chat endpoint on loopback that answers, fails, hangs, echoes or talks nonsense, as a test asks it to."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.envs.serving import serve

Behaviour = Callable[["Asked"], Awaitable[Response]]


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    body: dict[str, Any]
    authorization: str
    request: Request


class ChatServer:
    """Behaves as scripted, once per request; the last behaviour stays. `asked` holds the requests."""

    url: str

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.asked: list[Asked] = []
        self.running = self.most_at_once = 0
        self._script: list[Behaviour] = [self.says("ok")]
        self.root = ""
        self.render: Callable[[dict[str, Any]], list[int]] | None = None
        """Returns the tokens of a request to /tokenize, which vLLM's server has; None is a server without it."""

    def will(self, *script: Behaviour) -> None:
        self._script = list(script)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "m", "root": self.root}]})

    async def tokenize(self, request: Request) -> Response:
        if self.render is None:
            return Response(status_code=404)
        return JSONResponse({"tokens": self.render(await request.json())})

    async def answer(self, request: Request) -> Response:
        asked = Asked(json.loads(await request.body()), request.headers.get("authorization", ""), request)
        self.asked.append(asked)
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            return await (self._script.pop(0) if len(self._script) > 1 else self._script[0])(asked)
        finally:
            self.running -= 1

    def says(
        self, content: Any = "", *, finish: str = "stop", used: tuple[int, int] = (7, 3), **fields: Any
    ) -> Behaviour:
        """Answer with an assistant message of this content and these further fields."""
        message = {"role": "assistant", "content": content, **fields}
        usage = {"prompt_tokens": used[0], "completion_tokens": used[1], "total_tokens": sum(used)}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return self.sends({"object": "chat.completion", "choices": [choice], "usage": usage})

    def replies(self, function: Callable[[Asked], str]) -> Behaviour:
        """Answer with what a function makes of the request."""

        async def behave(asked: Asked) -> Response:
            return await self.says(function(asked))(asked)

        return behave

    def fails(self, status: int, message: str = "no", *, code: str | None = None, **headers: str) -> Behaviour:
        """Refuse, in OpenAI's shape; headers are named with underscores."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return self.sends({"error": {"message": message, "code": code}}, status=status, headers=named)

    def sends(self, data: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Behaviour:
        """Send JSON, or text that is none."""

        async def behave(asked: Asked) -> Response:
            made = Response(data) if isinstance(data, str) else JSONResponse(data)
            made.status_code = status
            made.headers.update(headers or {})
            return made

        return behave

    def streams(self, *pieces: Any, more: AsyncIterator[Any] | None = None) -> Behaviour:
        """Send pieces of an answer as events: dictionaries as JSON, texts as they are; then those of `more`."""

        async def events() -> AsyncIterator[str]:
            for piece in pieces:
                yield piece if isinstance(piece, str) else f"data: {json.dumps(piece)}\n\n"
            if more is not None:
                async for piece in more:
                    yield f"data: {json.dumps(piece)}\n\n"

        async def behave(asked: Asked) -> Response:
            return StreamingResponse(events(), media_type="text/event-stream")

        return behave

    def waits(self, barrier: threading.Event | None = None) -> Behaviour:
        """Hang until the client goes away."""

        async def behave(asked: Asked) -> Response:
            if barrier is not None:
                barrier.set()
            while (await asked.request.receive())["type"] != "http.disconnect":
                pass
            return Response()

        return behave


@pytest.fixture(scope="session")
def _chat_server() -> Iterator[ChatServer]:
    chat = ChatServer()
    routes = [
        Route("/v1/chat/completions", chat.answer, methods=["POST"]),
        Route("/v1/models", chat.models),
        Route("/tokenize", chat.tokenize, methods=["POST"]),
    ]
    with serve(Starlette(routes=routes)) as url:
        chat.url = f"{url}/v1"
        yield chat


@pytest.fixture
def chat_server(_chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> ChatServer:
    """The endpoint, fresh; no proxy of this machine stands before it."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    _chat_server.reset()
    return _chat_server
