"""The agent has the tools of a task's MCP servers; those that are started run in its workspace."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from mcp.server import MCPServer

from contrib.harbor.config import read_task
from contrib.harbor.tests.playing import play, write_task
from envs.messages import call, say
from forge_env import Outcome
from forge_env.core.errors import UserError
from tests.envs.serving import serve
from tests.helpers.scripts import tool_results

_SERVER = '''
import os
from pathlib import Path
from mcp.server import MCPServer

server = MCPServer("phone book")

@server.tool()
def number_of(person: str) -> str:
    """Return the number of a person."""
    Path("asked").write_text(person)
    return {"Ada": "1815"}.get(person, "unknown")

@server.tool()
def shell() -> str:
    """Return the process."""
    return f"{os.getuid()} {os.getcwd()} {os.environ['BOOK']}"

Path("pid").write_text(str(os.getpid()))
server.run("stdio")
'''
_TOML = """
[environment]
network_mode = "no-network"
env = { BOOK = "red" }
[[environment.mcp_servers]]
name = "book"
transport = "stdio"
command = "python3"
args = ["/srv/server.py"]
"""
_TEST = (
    '#!/bin/sh\n[ "$(cat /app/number)" = 1815 ] && [ -e /app/asked ]\necho $((1 - $?)) > /logs/verifier/reward.txt\n'
)
_DOCKERFILE = "FROM host:mcp\nWORKDIR /app\nCOPY server.py /srv/server.py\n"


@pytest.fixture
def task(tmp_path: Path) -> Path:
    files = {"environment/Dockerfile": _DOCKERFILE, "environment/server.py": _SERVER, "tests/test.sh": _TEST}
    return write_task(tmp_path / "book", _TOML, **files)


async def test_a_server_runs_in_the_workspace_and_its_tools_are_the_agents(task: Path) -> None:
    ask = call("number_of", person="Ada")
    episode = await play(task, ask, call("book_shell"), call("shell", command="echo 1815 > number"), say("done"))
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), episode.error
    results = tool_results(episode)
    assert results == ["1815", "0 /app red", "[no output]"], results


async def test_a_server_that_the_agent_breaks_is_a_result_and_no_fault(task: Path) -> None:
    break_it = call("shell", command="echo 1/0 > /srv/server.py; kill -9 $(cat pid)")
    ask = call("number_of", person="Ada")
    episode = await play(task, break_it, ask, ask, say("done"))
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 0.0), episode.error
    results = tool_results(episode)
    assert results[1].startswith("Error: the MCP server 'book' failed: Connection closed")
    assert results[2].startswith("Error: the MCP server 'book' did not start") and "ZeroDivisionError" in results[2]


async def test_a_server_may_write_more_in_its_life_than_a_command(task: Path) -> None:
    """A command is ended when it has written 64 MiB."""
    noise = 'for _ in range(70):\n    print("x" * 2**20, file=sys.stderr)\nserver.run("stdio")'
    server = _SERVER.replace('server.run("stdio")', noise)
    (task / "environment/server.py").write_text(f"import sys\n{server}")
    episode = await play(task, call("number_of", person="Ada"), say("done"))
    assert tool_results(episode) == ["1815"], episode.error


async def test_a_server_that_floods_is_ended_before_it_fills_the_memory(task: Path) -> None:
    floods = ["b'1\\n' * 400_000", "b'1' * (17 << 20)"]
    write = "printf '%s\\n' \"import os; os.write(1, {}); input(); input()\" > /srv/server.py; kill -9 $(cat pid)"
    script = [(call("shell", command=write.format(flood)), call("number_of", person="Ada")) for flood in floods]
    ask = call("number_of", person="Ada")
    episode = await play(task, *script[0], ask, *script[1], say("done"))
    results = tool_results(episode)
    assert episode.outcome is Outcome.SCORED, episode.error
    for result in (results[2], results[4]):
        assert result.startswith("Error: the MCP server 'book' did not start")
        assert "[ended: it sent more than 16 MiB at once]" in result


@pytest.mark.parametrize(
    ("toml", "reason"),
    [
        (_TOML.replace('"python3"', '"no-such-program"'), "no-such-program: not found"),
        (f'{_TOML}[agent]\nuser = "nobody-knows"\n', "nobody-knows"),
    ],
)
async def test_a_server_that_does_not_start_is_a_fault_of_the_task(tmp_path: Path, toml: str, reason: str) -> None:
    task = write_task(tmp_path / "bad", toml, environment__Dockerfile="FROM host\nWORKDIR /app\n")
    episode = await play(task, say("done"))
    assert episode.outcome is Outcome.ENV_FAULT and "the tools of bad cannot be had" in episode.error
    assert reason in episode.error, episode.error


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_server_elsewhere_is_reached_if_the_agent_may_reach_it(tmp_path: Path, transport: str) -> None:
    address = _own_address()
    server = MCPServer("elsewhere")

    @server.tool()
    def number_of(person: str) -> str:
        """Return the number of a person."""
        return f"{person} 1815"

    app = server.sse_app(host=address) if transport == "sse" else server.streamable_http_app(host=address)
    with serve(app, address=address) as url:
        port, path = url.rpartition(":")[2], ("/sse" if transport == "sse" else "/mcp")
        toml = f"""[environment]
docker_image = "host"
workdir = "/tmp"
network_mode = "allowlist"
allowed_hosts = ["{address}"]
[[environment.mcp_servers]]
name = "book"
transport = "{transport}"
url = "{url}{path}"
"""
        task = write_task(tmp_path / "elsewhere", toml)
        with pytest.raises(UserError, match="needs? a network.*the MCP server 'book' is at"):
            await play(task, say("done"))
        unnamed = await play(task, say("done"), network="declared")
        assert unnamed.outcome is Outcome.ENV_FAULT and "the tools of elsewhere cannot be had" in unnamed.error
        network = f"declared,{address}:{port}"
        episode = await play(task, call("number_of", person="Ada"), say("done"), network=network)
    assert tool_results(episode) == ["Ada 1815"]


def _own_address() -> str:
    """An address of this machine that is not its loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError as error:
            pytest.skip(f"this machine has no address but its loopback: {error}")
        return str(probe.getsockname()[0])


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        ('url = "http://a.org/sse"\n[agent]\nnetwork_mode = "no-network"', "which the agent does not reach: set netw"),
        ('url = "ftp://a.org"', "has no host"),
        ('url = "http://127.1.2.3/sse"', "is at 127.1.2.3, the workspace's own loopback: start it with"),
        ('transport = "http"', "so it needs a url"),
        ('transport = "stdio"', "so it needs a command"),
        ('transport = "pipe"\nurl = "http://a.org"', "environment.mcp_servers.0.transport is 'pipe'"),
        ('url = "https://a.org"\nheaders = { Authorization = "Bearer abcd" }', "write it as ${VARIABLE}"),
        ('ulr = "http://a.org"', "Did you mean url?"),
    ],
)
def test_what_is_no_server_is_one_sentence(tmp_path: Path, server: str, reason: str) -> None:
    toml = f'[[environment.mcp_servers]]\nname = "book"\n{server}\n'
    with pytest.raises(UserError) as error:
        read_task(write_task(tmp_path / "bad", toml))
    assert reason in str(error.value) and "\n" not in str(error.value)
