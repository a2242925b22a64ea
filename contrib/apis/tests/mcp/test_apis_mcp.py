"""Tools of MCP servers: real ones, as processes and over HTTP, that die, hang, outstay and fail."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp_types import ToolAnnotations

from contrib.apis.mcp.tools import McpServer, open_mcp
from contrib.apis.sources import open_sources
from forge_env.core.errors import ServiceError, UserError
from forge_env.core.types import ToolCall
from forge_env.tool_env.tool_env import Toolbox
from forge_env.utils.deadlines import Deadline
from tests.envs.serving import serve
from tests.helpers.waiting import is_alive, until

SERVER = '''
import os
from mcp.server import MCPServer
from mcp.server.mcpserver import Image

server = MCPServer("test")

@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b

@server.tool(name="strange name!")
def strange() -> str:
    return "strange"

@server.tool()
def picture() -> Image:
    return Image(data=b"12345678", format="png")

@server.tool()
def fail() -> str:
    from mcp.server.mcpserver.exceptions import ToolError
    raise ToolError("no such customer")

@server.tool()
def environment() -> str:
    return repr(dict(os.environ))

server.run("stdio")
'''
PLAIN = """
import json, os, signal, subprocess, sys, time

RESULTS = json.loads(sys.argv[1])
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOL = {"description": None, "inputSchema": {}, "outputSchema": SCHEMA, "annotations": {"readOnlyHint": "yes"}}
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "initialize":
        about = {"serverInfo": {"name": "sloppy", "version": "1"}, "capabilities": {"tools": {}}}
        answer["result"] = {"protocolVersion": "2025-06-18", **about}
    elif message["method"] == "tools/list":
        answer["result"] = {"tools": [{"name": name, **TOOL} for name in RESULTS], "nextCursor": ""}
    elif message["method"] == "tools/call" and message["params"]["name"] == "hang":
        continue
    elif message["method"] == "tools/call" and message["params"]["name"] == "die":
        print("out of memory, goodbye", file=sys.stderr, flush=True)
        subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL)  # it keeps the output open
        os._exit(3)
    elif message["method"] == "tools/call":
        answer |= RESULTS[message["params"]["name"]]
    else:
        answer["error"] = {"code": -32601, "message": "unknown"}
    print(json.dumps(answer), flush=True)
"""
"""A server without a package, which starts in no time. It never answers the tool hang, and ends by the tool die."""
STAYS = PLAIN.replace(
    "RESULTS = json.loads(sys.argv[1])",
    """signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL)
RESULTS = {"pids": {"result": {"content": f"{os.getpid()} {child.pid}"}}}""",
)
"""A server that does not end by itself, with a child that does not either."""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("mcp") / "server.py"
    path.write_text(SERVER)
    return shlex.join([sys.executable, str(path)])


def stubborn(after: str = "") -> str:
    """A server that ends after its input, or does what `after` says then."""
    return shlex.join([sys.executable, "-c", STAYS + after])


def tool_of(server: McpServer, name: str) -> Any:
    return next(tool for tool in server.tools if tool.name == name)


async def ask(server: McpServer, name: str, **arguments: Any) -> str:
    """Call a tool as an episode does."""
    box = Toolbox({tool.name: tool for tool in server.tools})
    messages, _ = await box.answer([ToolCall(id="1", name=name, arguments=arguments)])
    return str(messages[0]["content"])


async def test_tools_of_a_process(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASKED_FOR", "hush-hush-value")
    monkeypatch.setenv("NOT_ASKED_FOR", "anything")
    async with open_mcp(script, env=["ASKED_FOR"]) as server:
        add = tool_of(server, "add")
        assert add.description == "Add two numbers."
        assert add.parameters == {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}},
            "required": ["a"],
        }
        assert await ask(server, "add", a=1, b=2) == "3"
        assert await ask(server, "add", a="41") == "42"
        assert await ask(server, "strange_name_") == "strange"
        assert await ask(server, "picture") == "[image: image/png, 8 bytes]"
        assert await ask(server, "fail") == "Error: Error executing tool fail: no such customer"
        wrong = await ask(server, "add", b="two")
        assert wrong.startswith("Error: bad arguments for add: b: 'two' is not of type 'integer'; 'a' is a required")
        environment = await ask(server, "environment")
        assert "'ASKED_FOR': '[redacted]'" in environment and "NOT_ASKED_FOR" not in environment
        assert (await ask(server, "strange_name_", x="\ud800")).startswith("Error: the arguments are no JSON in UTF-8")
        assert await asyncio.gather(*(ask(server, "add", a=i) for i in range(20))) == [str(i + 1) for i in range(20)]


async def test_a_server_that_hangs_or_dies_is_a_fault_and_what_follows_is_none() -> None:
    answers = {"add": {"result": said("2", {"n": 2})}, "hang": {}, "die": {}}
    async with open_mcp(sloppy(answers), call_seconds=0.5) as server:
        with pytest.raises(ServiceError, match="did not answer within 0.5 s"):
            await ask(server, "hang")
        assert await ask(server, "add") == "2"
        with pytest.raises(ServiceError, match="Connection closed.*out of memory, goodbye"):
            await ask(server, "die")
        assert await ask(server, "add") == "2"
    with pytest.raises(ServiceError, match="is closed"):
        await ask(server, "add")


async def test_nothing_is_left_of_a_server_that_will_not_end() -> None:
    before = set(os.listdir("/proc/self/fd"))
    async with open_mcp(stubborn("time.sleep(1000)")) as server:
        pids = [int(pid) for pid in (await ask(server, "pids")).split()]
        assert len(pids) == 2 and all(map(is_alive, pids))
    await until(lambda: not any(map(is_alive, pids)), "both processes have ended")
    assert set(os.listdir("/proc/self/fd")) <= before
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "mcp session"]


async def test_a_cancelled_owner_leaves_nothing() -> None:
    pids: list[int] = []

    async def own() -> None:
        async with open_mcp(stubborn()) as server:
            pids.extend(int(pid) for pid in (await ask(server, "pids")).split())
            await asyncio.sleep(1000)

    task = asyncio.create_task(own())
    await until(lambda: len(pids) == 2)
    task.cancel()
    await asyncio.wait({task}, timeout=60)
    assert task.cancelled()
    await until(lambda: not any(map(is_alive, pids)), "both processes have ended")


async def test_a_server_dies_with_its_owner_even_when_that_is_killed() -> None:
    code = (
        "import asyncio, sys\n"
        "from contrib.apis.mcp.tools import open_mcp\n"
        "async def main():\n"
        "    async with open_mcp(sys.argv[1]) as server:\n"
        "        print(*(await server.call('pids', {})).split(), flush=True)\n"
        "        await asyncio.sleep(1000)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", code, stubborn("time.sleep(1000)")]
    owner = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert owner.stdout is not None
    pids = [int(pid) for pid in (await asyncio.wait_for(owner.stdout.readline(), 60)).split()]
    assert len(pids) == 2 and all(map(is_alive, pids))
    os.kill(owner.pid, signal.SIGKILL)
    await owner.wait()
    await until(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("", "the MCP server is empty"),
        ("no-such-program --stdio", "there is no program 'no-such-program'"),
        ("unclosed 'quote", "is no command line"),
    ],
)
async def test_what_is_no_server_is_said(source: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        async with open_mcp(source):
            pass


@pytest.mark.parametrize(
    ("source", "seconds", "problem"),
    [
        (shlex.join([sys.executable, "-c", "raise SystemExit('not today')"]), 60, "did not start.*not today"),
        (shlex.join(["sh", "-c", "cat > /dev/null"]), 0.3, "did not start: not within 0.3 s"),
        ("http://127.0.0.1:1/mcp", 60, "did not start: ConnectError"),
    ],
)
async def test_a_server_that_does_not_come_up_is_a_fault(source: str, seconds: float, problem: str) -> None:
    with pytest.raises(ServiceError, match=problem):
        async with open_mcp(source, start_seconds=seconds):
            pass


async def test_waiting_for_the_connection_is_not_the_episodes_time() -> None:
    server = McpServer("http://127.0.0.1:1/mcp", env=(), headers={}, call_seconds=1, start_seconds=1)
    await server.close()
    await server._opening.acquire()
    asyncio.get_running_loop().call_later(0.1, server._opening.release)
    with pytest.raises(ServiceError, match="is closed"):
        await Deadline(0.05).run(server.call("add", {}))


# Streamable HTTP.


def http_server() -> MCPServer:
    server: MCPServer = MCPServer("http")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return server


class Door:
    """Lets requests with the right key in, notes them, and gives the key away in what it refuses."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.keys: list[str] = []
        self.is_broken = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.keys.append(dict(scope["headers"]).get(b"x-key", b"").decode())
            if self.is_broken:
                await send({"type": "http.response.start", "status": 500, "headers": []})
                await send({"type": "http.response.body", "body": b"broken"})
                return
        await self.app(scope, receive, send)


@pytest.fixture
async def door() -> AsyncIterator[tuple[Door, str]]:
    door = Door(http_server().streamable_http_app())
    with serve(door) as url:
        yield door, f"{url}/mcp"


async def test_tools_over_streamable_http(door: tuple[Door, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_KEY", "key-of-the-door")
    entrance, url = door
    async with open_mcp(url, headers={"X-Key": "MCP_KEY"}) as server:
        assert await ask(server, "add", a=1, b="2") == "3"
        assert (tool_of(server, "add").options.parallel, tool_of(server, "add").options.idempotent) == (True, True)
        assert set(entrance.keys) == {"key-of-the-door"}
        assert "key-of-the-door" not in repr(server)
        entrance.is_broken = True
        with pytest.raises(ServiceError, match="failed"):
            await ask(server, "add", a=1, b=2)
        entrance.is_broken = False
        assert await ask(server, "add", a=1, b=2) == "3"


async def test_a_source_may_be_an_mcp_server(door: tuple[Door, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_KEY", "key-of-the-door")
    entrance, url = door
    async with open_sources([f"mcp:{url}"], auth=[f"{url.split('/')[2]}/X-Key=MCP_KEY"]) as sources:
        assert list(sources.tools) == ["add"]
    assert set(entrance.keys) == {"key-of-the-door"}


# Servers with small mistakes.


def sloppy(answers: dict[str, Any]) -> str:
    return shlex.join([sys.executable, "-c", PLAIN, json.dumps(answers)])


def said(text: str, structured: Any = None) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured}


def blob(kind: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": "a", "mimeType": kind, "blob": "aW4gaXQ="}}


async def test_a_result_that_breaks_the_protocol_or_its_own_schema_is_shown_as_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fits = {"structuredContent": {"n": 1}}
    glyph, markdown, null = {"type": "glyph", "points": [1]}, {"type": "markdown", "text": "*a*"}, {"type": "text"}
    audio = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
    shown: dict[str, tuple[Any, str]] = {
        "null_in_it": (said("seven", {"n": None}), "seven"),
        "key_missing": (said("seven", {}), "seven"),
        "no_structure": ({"content": [{"type": "text", "text": "seven"}]}, "seven"),
        "list_for_object": (said("seven", [7]), "seven"),
        "only_structure": ({"structuredContent": {"n": "7"}}, '{"n":"7"}'),
        "unknown_part": ({"content": [glyph], **fits}, '{"type":"glyph","points":[1]}\n{"n":1}'),
        "unknown_text": ({"content": [markdown], **fits}, '*a*\n{"n":1}'),
        "bare_text": ({"content": "plain"}, "plain"),
        "texts": ({"content": ["a", "b"]}, "a\nb"),
        "null_text": ({"content": [null | {"text": None}], **fits}, '{"n":1}'),
        "image": ({"content": [{"type": "image", "data": "AAAA"}]}, "[image: unknown type, 3 bytes]"),
        "audio": ({"content": [audio]}, "[audio: audio/wav, 3 bytes]"),
        "link": ({"content": [{"type": "resource_link", "uri": "a b", "name": "c"}]}, "[resource: a b, c]"),
        "blob": ({"content": [{"type": "resource", "resource": {"uri": "a", "blob": "?"}}]}, "[resource: a]"),
        "file": ({"content": [{"type": "resource", "resource": {"text": "in it"}}]}, "in it"),
        "no_content": ({"sum": 5}, '{"sum":5}'),
        "null_flag": ({"content": [{"type": "text", "text": "fine"}], "isError": None}, "fine"),
        "text_flag": ({"content": [{"type": "text", "text": "no"}], "isError": "true"}, "Error: no"),
        "number_flag": ({"content": [{"type": "text", "text": "no"}], "isError": 1}, "Error: no"),
        "empty_text": ({"content": [{"type": "text", "text": ""}], **fits}, '{"n":1}'),
        "text_blob": ({"content": [blob("text/plain")]}, "in it"),
        "json_blob": ({"content": [blob("application/ld+json")]}, "in it"),
        "image_blob": ({"content": [blob("image/png")]}, "[resource: a]"),
        "half_a_pair": ({"content": [{"type": "text", "text": "\udcff.txt \U0001f600"}]}, "\ufffd.txt \U0001f600"),
        "nothing": ({}, "OK (no content)"),
        "result_is_text": ("seven", "seven"),
        "result_is_list": ([1, 2], "[1,2]"),
    }
    async with open_mcp(sloppy({name: {"result": result} for name, (result, _) in shown.items()})) as server:
        assert {name: await ask(server, name) for name in shown} == {name: text for name, (_, text) in shown.items()}
    assert not [record for record in caplog.records if record.name.startswith("mcp")]


async def test_an_error_of_a_tool_is_an_answer_while_its_server_lives() -> None:
    codes = (-32600, -32601, -32602, -32603, -32700, -32000, -32001, -32042, -32099, -1, 0, 404)
    answers: dict[str, Any] = {f"e{code}": {"error": {"code": code, "message": f"no {code}"}} for code in codes}
    answers |= {"text": {"error": "broken"}, "code": {"error": {"code": "X", "message": "coded"}}}
    async with open_mcp(sloppy(answers)) as server:
        assert [await ask(server, f"e{code}") for code in codes] == [f"Error: no {code}" for code in codes]
        assert (await ask(server, "text"), await ask(server, "code")) == ("Error: broken", "Error: coded")


async def test_the_author_is_told_once_that_results_break_their_schema(caplog: pytest.LogCaptureFixture) -> None:
    answers = {"bad": {"result": said("seven", {"n": None})}, "good": {"result": said("seven", {"n": 7})}}
    async with open_mcp(sloppy(answers)) as server:
        for name in ("bad", "bad", "good"):
            assert await ask(server, name) == "seven"
    (warning,) = [record for record in caplog.records if record.name == "contrib.apis.mcp.tools"]
    assert "the tool 'bad' of the MCP server" in warning.message
    assert "breaks its own outputSchema: n: None is not of type 'integer'" in warning.message


async def test_a_server_that_lists_no_tools_is_a_fault() -> None:
    source = sloppy({}).replace('"tools/list"', '"tools/never"')
    with pytest.raises(ServiceError, match="does not list its tools: unknown"):
        async with open_mcp(source):
            pass
