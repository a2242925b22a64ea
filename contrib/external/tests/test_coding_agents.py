"""Claude Code, Codex, Qwen Code and opencode as they come from the npm registry."""

from __future__ import annotations

import itertools
import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import ScriptedAgent
from contrib.external.mcp_config import mcp_files
from contrib.external.tests.coding_agents import AGENTS, ROOT, episode_of, image_of_codex, in_sandbox
from contrib.external.tests.external_playing import Check, calls, make_long_model, says
from contrib.records.audit import audit, open_decoder
from forge_env.core.episode import write_jsonl
from forge_env.core.protocols import Conversation
from forge_env.core.turn import Turn
from forge_env.core.types import Action, EpisodeLimits, Message, Outcome, ToolSpec
from forge_env.registry.agent_spec import AgentSettings, open_agent
from tests.envs.serving import serve

LIMITS = EpisodeLimits(max_tokens=100_000, step_seconds=120.0)
ENGINE_LIMITS = EpisodeLimits(max_turns=6, max_tokens=75_000, max_turn_tokens=60, step_seconds=120.0)
RESULTS = ROOT / "benchmarks" / "results" / "agents.json"


@pytest.mark.parametrize("name", AGENTS)
def test_the_page_says_what_was_measured(name: str) -> None:
    measured = json.loads(RESULTS.read_text())[name]
    lines = (ROOT / "benchmarks" / "results" / "agents.md").read_text().splitlines()
    [row] = [line for line in lines if line.startswith(f"| {name} | `{measured['package']}`")]
    fields = ", ".join(f"`{field}`" for field in measured["ignored_fields"]) or "nothing"
    figures = f"| {measured['turns']}, {measured['rows']} | {measured['repeated_tokens']} | {fields} |"
    assert measured["package"] == AGENTS[name].package
    assert row.endswith(figures) and f"contrib/external/examples/agents/{AGENTS[name].start}`" in row


@pytest.mark.slow
@pytest.mark.timeout(600)  # it installs the package
@pytest.mark.parametrize(
    ("name", "place"), [*itertools.product(AGENTS, ["outside", "sandbox"]), ("Codex", "workspace")]
)
async def test_a_coding_agent_as_it_is_solves_a_task_in_one_row(
    name: str, place: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Check
) -> None:
    monkeypatch.setenv("FORGE_ENV_IMAGES", str(tmp_path / "images"))
    options = in_sandbox(name) if place == "sandbox" else {}
    if place == "workspace":
        await image_of_codex(tmp_path / "context", "codex:1")
        options = {"command": "sh /agent.sh", "image": "codex:1"}
    with socket.create_server(("127.0.0.1", 0)) as server:
        knock = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}"
        look = f"touch made && env | grep -c _BASE_URL=http; bash -c '{knock}' && echo out$((1)) || echo in$((1))"
        agent = says(tiny_model, *AGENTS[name].script(look))
        episode = await episode_of(name, agent, tmp_path, LIMITS, **options)
    told = json.dumps(episode.info, indent=1)
    assert (episode.outcome, episode.reward, episode.is_trainable) == (Outcome.SCORED, 1.0, True), told
    assert "refused_requests" not in episode.info, told
    assert (len(episode.turns), len(episode.rows)) == (4, 1), told
    seen, *results = [str(m["content"]) for m in episode.messages if m["role"] == "tool"]
    assert ("out1" in seen, "in1" in seen) == (place == "outside", place != "outside"), seen
    assert "2\n" in seen, "the addresses of both dialects"
    assert [any(text in result for result in results) for text in ("one", "two", "written")] == [True] * 3
    assert episode.info.get("ignored_fields", {}).keys() == set(json.loads(RESULTS.read_text())[name]["ignored_fields"])
    check(episode)


SERVER = '''
from mcp.server import MCPServer

server = MCPServer("phone book")

@server.tool()
def number_of(person: str) -> str:
    """Return the number of a person."""
    return f"{person} 1815"

if __name__ == "__main__":
    server.run("stdio")
'''


class Asks:
    """An agent that calls the tool of an MCP server, whatever its client names it, and says what it returned."""

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        def say(messages: list[Message]) -> Message:
            if messages[-1]["role"] == "tool":
                return {"role": "assistant", "content": str(messages[-1]["content"])}
            names = [str(tool["function"]["name"]) for tool in tools]
            [name] = [name for name in names if name.endswith("number_of")]
            return calls(name, person="Ada")

        return await ScriptedAgent(say).act(conversation, tools)


@pytest.mark.slow
@pytest.mark.timeout(600)  # it installs the package
@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("name", AGENTS)
async def test_a_coding_agent_has_the_tools_of_the_mcp_servers_of_its_task(
    name: str, transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    made: dict[str, Any] = {"__name__": "served"}
    exec(SERVER, made)
    with serve(made["server"].streamable_http_app()) as url:
        started = {"type": "stdio", "command": sys.executable, "args": [str(tmp_path / "server.py")]}
        servers = {"book": started if transport == "stdio" else {"type": "http", "url": f"{url}/mcp", "headers": {}}}
        for file, text in mcp_files(servers).items():
            (tmp_path / file).write_text(text)
        monkeypatch.setenv("FORGE_ENV_MCP", str(tmp_path / "mcp.json"))
        episode = await episode_of(name, Asks(), tmp_path, LIMITS)
    results = [str(m["content"]) for m in episode.messages if m["role"] == "tool"]
    assert results and "Ada 1815" in results[0], (results, episode.error, episode.info)


@pytest.mark.slow
@pytest.mark.timeout(900)  # it starts an engine, which reads prompts of 60,000 tokens
async def test_a_real_engine_answers_every_coding_agent_and_its_tokens_are_exact(
    tiny_model: Path, tmp_path: Path
) -> None:
    """A random model solves nothing: what is asserted is that requests are answered, and what was recorded."""
    make_long_model(tiny_model, tmp_path / "model", positions=81_920)
    settings = AgentSettings(env="external", max_tokens=ENGINE_LIMITS.max_tokens, concurrency=1)
    async with open_agent(f"checkpoint:{tmp_path}", settings) as agent:
        episodes = [await episode_of(name, agent, tmp_path, ENGINE_LIMITS) for name in AGENTS]
    told = {e.id: (e.outcome, e.error, e.info, len(e.turns)) for e in episodes}
    assert all(e.outcome in (Outcome.SCORED, Outcome.TRUNCATED) and e.turns for e in episodes), told
    assert not any("refused_requests" in e.info for e in episodes), told
    began = {e.id: e.lineage[1:] for e in episodes}
    # An answer that is empty is asked for again by some.
    assert {row.kind for rows in began.values() for row in rows} <= {"repeated"}, began
    file = tmp_path / "episodes.jsonl"
    write_jsonl(file, episodes)
    result = audit(file, open_decoder(tiny_model))
    assert (result.problems, result.episodes) == ([], len(AGENTS)), told
    assert result.decoded_turns == result.turns == sum(len(e.turns) for e in episodes)
