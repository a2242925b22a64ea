"""`forge-env check` on environments that others wrote: Gymnasium's own, and tools of MCP servers from the index."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from contrib.check import run_checks
from contrib.check.report import CheckReport
from forge_env import make
from tests.helpers.own_environment import python_with

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

GYMNASIUM = ("FrozenLake-v1", "Blackjack-v1", "Taxi-v4")
SERVERS = {
    "mcp-server-time": ("mcp-server-time==2026.10.19",),
    "mcp-server-git": ("mcp-server-git==2026.10.19",),
    "mcp-server-sqlite": ("mcp-server-sqlite==2025.4.25", "mcp<2"),
}
"""Servers that work without a network, with the packages of their environments."""


def problems(report: CheckReport) -> list[object]:
    return [row for row in report.rows if row.ok is False or row.unfinished]


@pytest.mark.parametrize("game", GYMNASIUM)
async def test_environments_of_gymnasium(game: str) -> None:
    assert problems(await run_checks(make(f"gymnasium:{game}"), tasks=4, seconds=400)) == []


@pytest.mark.parametrize("name", SERVERS)
async def test_tools_of_mcp_servers(name: str, tmp_path: Path) -> None:
    command = [str(python_with(*SERVERS[name]).with_name(name))]
    if name == "mcp-server-git":
        subprocess.run(["git", "init", "--quiet", str(tmp_path / "repository")], check=True)
        command += ["--repository", str(tmp_path / "repository")]
    if name == "mcp-server-sqlite":
        command += ["--db-path", str(tmp_path / "database.sqlite")]
    data = tmp_path / "tasks.jsonl"
    rows = [{"prompt": f"Say the word w{n}, without a tool.", "answer": f"w{n}"} for n in range(60)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    factory = make("tool_api", tools=[f"mcp:{shlex.join(command)}"], data=str(data))
    assert problems(await run_checks(factory, tasks=3, seconds=400)) == []
