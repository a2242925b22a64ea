"""The WebSocket of an OpenEnv session: frames in, frames out, one after another."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from contrib.common.http_server import Receive, Send
from contrib.common.json_text import read
from contrib.serve.client_episode import EpisodeFault
from contrib.serve.openenv_session import OpenEnvSession, Refused, fault_code

if TYPE_CHECKING:
    from contrib.serve.openenv import OpenEnvApp

FIRST_FRAME_SECONDS = 5.0
MAX_WAITING = 16
"""Frames that a client may send ahead of their answers."""
_POLICY, _GOING_AWAY, _NORMAL = 1008, 1001, 1000
logger = logging.getLogger(__name__)


async def serve_socket(app: OpenEnvApp, path: str | None, session_id: str, receive: Receive, send: Send) -> None:
    """Serve one connection to its end.

    Args:
        app: the server.
        path: without the token; None where the token was wrong, which refuses the handshake.
        session_id: of a session that was opened over HTTP, or "".
        receive: of ASGI.
        send: of ASGI.
    """
    await receive()  # websocket.connect
    if path != "/ws":
        await send({"type": "websocket.close", "code": _POLICY})  # before it is accepted: 403
        return
    await send({"type": "websocket.accept"})
    try:
        session = _session(app, session_id)
    except Refused as refusal:
        await _refuse(refusal, receive, send)
        return
    session.has_socket = True
    frames: asyncio.Queue[str] = asyncio.Queue()
    reading = asyncio.create_task(_read(receive, frames))
    serving = asyncio.create_task(_serve(app, session, frames, send))
    try:
        await asyncio.wait({reading, serving}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done() and not reading.done():
            await send({"type": "websocket.close", "code": serving.result()})
    except OSError:
        pass  # the client has gone while an answer was sent
    finally:
        reading.cancel()
        serving.cancel()
        await asyncio.wait({reading, serving})
        session.has_socket = False
        if not session_id:
            await app.end_session(session, "the client ended its session before the end of the episode")


async def _refuse(refusal: Refused, receive: Receive, send: Send) -> None:
    """Say why there is no session, and wait for the client's first frame: a client that sends to a closed socket does
    not read why."""
    await _send(send, _error(refusal.code, str(refusal)))
    try:
        async with asyncio.timeout(FIRST_FRAME_SECONDS):
            event = await receive()
    except TimeoutError:
        event = {}
    if event.get("type") != "websocket.disconnect":
        await send({"type": "websocket.close", "code": _POLICY})


def _session(app: OpenEnvApp, session_id: str) -> OpenEnvSession:
    if not session_id:
        return app.open_session()
    session = app.sessions.get(session_id)
    if session is None or session.has_socket:
        why = "there is no such session" if session is None else "it has a WebSocket already"
        raise Refused("SESSION_ERROR", f"the session {session_id:.40} cannot be used: {why}")
    return session


async def _read(receive: Receive, frames: asyncio.Queue[str]) -> None:
    """Read, while a step runs too, until the client has gone, or sends too much ahead."""
    while frames.qsize() < MAX_WAITING:
        event = await receive()
        if event["type"] == "websocket.disconnect":
            return
        text = event.get("text")
        await frames.put(text if text is not None else (event.get("bytes") or b"").decode(errors="replace"))


async def _serve(app: OpenEnvApp, session: OpenEnvSession, frames: asyncio.Queue[str], send: Send) -> int:
    """Answer frames until the client ends the session; returns the code to close with."""
    while True:
        try:
            async with asyncio.timeout(app.settings.idle_seconds):
                text = await frames.get()
        except TimeoutError:
            return _GOING_AWAY
        try:
            frame = read(text)
        except (ValueError, RecursionError):
            frame = None
        if not isinstance(frame, dict):
            await _send(send, _error("INVALID_JSON", "the frame is no JSON object"))
        elif frame.get("type") == "close":
            return _NORMAL
        else:
            await _send(send, await _answer(app, session, frame))


async def _answer(app: OpenEnvApp, session: OpenEnvSession, frame: Mapping[str, Any]) -> dict[str, Any]:
    kind, data = frame.get("type"), frame.get("data")
    data = {} if data is None else data
    if not isinstance(data, dict):
        return _error("VALIDATION_ERROR", f"the data of the frame {str(kind)[:20]!r} is no object")
    try:
        if kind == "reset":
            return {"type": "observation", "data": await session.reset(data)}
        if kind == "step":
            return {"type": "observation", "data": await session.step(data)}
        if kind == "state":
            return {"type": "state", "data": session.state()}
        if kind == "mcp":
            return {"type": "mcp", "data": await app.rpc(data, session)}
        return _error(
            "UNKNOWN_TYPE", f"there is no frame {str(kind)[:40]!r}; they are reset, step, state, mcp and close"
        )
    except Refused as refusal:
        return _error(refusal.code, str(refusal))
    except EpisodeFault as fault:
        return _error(fault_code(fault), str(fault))
    except Exception as error:
        logger.exception("a frame could not be answered")
        return _error("SESSION_ERROR", f"the server failed: {type(error).__name__}: {error}")


def _error(code: str, message: str) -> dict[str, Any]:
    """Return an error frame; the texts of errors are where clients of either version of the package look for them."""
    errors = [{"loc": ["action"], "msg": message}] if code == "VALIDATION_ERROR" else []
    return {"type": "error", "data": {"message": message, "code": code, **({"errors": errors} if errors else {})}}


async def _send(send: Send, frame: Mapping[str, Any]) -> None:
    await send({"type": "websocket.send", "text": json.dumps(frame)})
