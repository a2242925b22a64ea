"""What an MCP server says reaches the model as it was said: numbers, and all pages of its tools."""

from __future__ import annotations

import codecs
import json
import shlex
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response

from agents.renderer.dialects import from_openai
from contrib.apis.mcp import exact_numbers
from contrib.apis.mcp.tools import McpServer, open_mcp
from forge_env.core.errors import ServiceError
from forge_env.tool_env.tool_env import Toolbox
from tests.envs.serving import serve

NUMBERS = '{"a":0.123456789012345678,"b":[1.10,1e400,-0,-0.0,1E5,5.0,12345678901234567890],"c":"1.10"}'
ARGUMENTS = '{"x":1.10,"y":[-0,0.123456789012345678,1E5],"z":12345678901234567890,"s":"1.10"}'

SERVER = """
import json, sys

def answer(line, pages, numbers):
    message = json.loads(line)
    if "id" not in message:
        return ""
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        about = {"serverInfo": {"name": "raw", "version": "1"}, "capabilities": {"tools": {}}}
        result = json.dumps({"protocolVersion": "2025-06-18", **about})
    elif method == "tools/list":
        name = json.dumps(params.get("cursor"))
        if name not in pages:
            return json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32602, "message": "no page"}})
        names, cursor = pages[name]
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
        result = json.dumps({"tools": tools, **({} if cursor is None else {"nextCursor": cursor})})
    elif method == "tools/call" and params["name"] == "echo":
        start = line.index('"arguments":') + len('"arguments":')
        end = start + len(line[start:].split('}')[0]) + 1
        result = json.dumps({"content": [{"type": "text", "text": line[start:end].strip()}]})
    elif method == "tools/call":
        result = '{"content": [], "structuredContent": %s}' % numbers
    else:
        return json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "unknown"}})
    return '{"jsonrpc": "2.0", "id": %s, "result": %s}' % (json.dumps(message["id"]), result)
"""
LOOP = """
sys.stdout.reconfigure(encoding="utf-8-sig")
for line in sys.stdin:
    if text := answer(line, json.loads(sys.argv[1]), sys.argv[2]):
        print(text, flush=True)
"""
PAGES: dict[str, Any] = {"null": [["echo"], ""], '""': [["numbers"], "3"], '"3"': [["last"], None]}


def process(pages: dict[str, Any]) -> str:
    return shlex.join([sys.executable, "-c", SERVER + LOOP, json.dumps(pages), NUMBERS])


def app(kind: str) -> FastAPI:
    """A server over HTTP that answers in JSON, in UTF-16 or in events."""
    space: dict[str, Any] = {}
    exec(SERVER, space)
    app = FastAPI()

    @app.post("/mcp")
    async def post(request: Request) -> Response:
        text = space["answer"]((await request.body()).decode(), PAGES, NUMBERS)
        if not text:
            return Response(status_code=202)
        if kind == "utf-16":
            return Response(text.encode("utf-16"), media_type="application/json; charset=utf-16")
        if end := {"events": "\r\n", "events of lone CR": "\r"}.get(kind):
            return Response(f"\ufeffid: 1.50{end}data: {text}{end}{end}", media_type="text/event-stream")
        return Response("\ufeff" + text, media_type="application/json")

    return app


@pytest.fixture(params=["process", "json", "utf-16", "events", "events of lone CR"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[McpServer]:
    if request.param == "process":
        async with open_mcp(process(PAGES)) as opened:
            yield opened
        return
    with serve(app(request.param)) as url:
        async with open_mcp(f"{url}/mcp") as opened:
            yield opened


async def test_numbers_keep_their_digits_and_all_pages_are_listed(server: McpServer) -> None:
    assert [tool.name for tool in server.tools] == ["echo", "numbers", "last"]
    box = Toolbox({tool.name: tool for tool in server.tools})

    async def ask(name: str, arguments: str) -> str:
        calls = from_openai({"tool_calls": [{"function": {"name": name, "arguments": arguments}}]})
        messages, _ = await box.answer(calls)
        return str(messages[0]["content"])

    assert await ask("numbers", "{}") == NUMBERS
    assert (await ask("echo", ARGUMENTS)).replace(" ", "") == ARGUMENTS


ONE = ["one"]


@pytest.mark.parametrize(
    ("pages", "problem"),
    [
        ({"null": [ONE, "a"], '"a"': [["two"], "b"], '"b"': [["three"], "a"]}, "names the page 'a' twice"),
        ({"null": [ONE, "a"], '"a"': [ONE, "a"]}, "names the page 'a' twice"),
        ({"null": [ONE, ""], '""': [["two"], ""]}, "names the page '' twice"),
    ],
)
async def test_a_list_of_tools_without_an_end_is_a_fault(pages: dict[str, Any], problem: str) -> None:
    with pytest.raises(ServiceError, match=f"the list of tools of the MCP server .* {problem}, so it has no end"):
        async with open_mcp(process(pages)):
            pass


@pytest.mark.parametrize(
    "pages",
    [
        {"null": [ONE, ""], '""': [ONE, ""]},  # the page that was read
        {"null": [ONE, ""]},  # refused
        {"null": [ONE, "2"], '"2"': [ONE, None]},  # pages that overlap
    ],
)
async def test_no_page_is_read_twice(pages: dict[str, Any]) -> None:
    async with open_mcp(process(pages)) as server:
        assert [tool.name for tool in server.tools] == ONE


@pytest.mark.parametrize(
    ("line", "is_json"), [('data: {"a":1.10}', True), ("data:[1E5]", True), ("data: /x?id=02e7", False)]
)
def test_an_address_in_an_event_has_no_number(line: str, is_json: bool) -> None:
    assert bool(exact_numbers._EVENT_DATA.fullmatch(line)) == is_json


def test_a_line_that_is_no_message_changes_none_after_it() -> None:
    """Half a pair of quotes would make strings of what is outside of them, and numbers of what is in them."""
    message = '{"text": "1.10", "n": 5}\n'
    decoder = codecs.lookup(exact_numbers.ENCODING).incrementaldecoder()
    assert decoder.decode(f'found a 5" disk\n{message}'.encode()) == f'found a 5" disk\n{message}'
