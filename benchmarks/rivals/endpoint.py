"""A model behind Chat Completions on loopback, which answers every request after the same time; it needs no package.

    python -m benchmarks.rivals.endpoint SECONDS

It prints its port, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.rivals.task import message_of

BACKLOG = 4096


async def serve(seconds: float) -> None:
    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().lower().split("\r\n")
                length = next(int(line[15:]) for line in lines if line.startswith("content-length:"))
                body = json.loads(await reader.readexactly(length))
                if seconds:
                    await asyncio.sleep(seconds)
                reply = answer(body)
                kind, content = streamed(reply) if body.get("stream") else ("application/json", json.dumps(reply))
                head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n".encode()
                writer.write(head + content.encode())
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0, backlog=BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


def answer(body: dict) -> dict:
    """The message that is due in a conversation."""
    messages = body["messages"]
    text = next(message["content"] for message in messages if message["role"] == "user")
    text = text if isinstance(text, str) else text[0]["text"]
    message = message_of(text, sum(message["role"] == "assistant" for message in messages))
    for call in message.get("tool_calls", ()):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    reason = "tool_calls" if "tool_calls" in message else "stop"
    return {
        "id": "1", "object": "chat.completion", "created": 0, "model": body.get("model", ""),
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }  # fmt: skip


def streamed(reply: dict) -> tuple[str, str]:
    """The same as events: one with the whole message, and one with the end."""
    choice = reply["choices"][0]
    message = choice["message"]
    if "tool_calls" in message:
        message = {**message, "tool_calls": [{"index": i, **call} for i, call in enumerate(message["tool_calls"])]}
    base = {**reply, "object": "chat.completion.chunk", "usage": None}
    deltas = ({"delta": message, "finish_reason": None}, {"delta": {}, "finish_reason": choice["finish_reason"]})
    events = [{**base, "choices": [{"index": 0, **delta}]} for delta in deltas]
    events.append({**base, "choices": [], "usage": reply["usage"]})
    return "text/event-stream", "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


@asynccontextmanager
async def endpoint(seconds: float) -> AsyncIterator[str]:
    """Start the model in a process of its own; gives its base URL."""
    command = [sys.executable, "-m", "benchmarks.rivals.endpoint", str(seconds)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin and process.stdout
    try:
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}/v1"
    finally:
        process.stdin.close()
        await process.wait()


if __name__ == "__main__":
    if "--help" in sys.argv:
        print(__doc__)
    else:
        asyncio.run(serve(float(sys.argv[1])))
