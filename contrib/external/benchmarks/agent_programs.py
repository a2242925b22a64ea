"""What agents as they are send, and how many rows their episodes have; a scripted policy answers them.

    python -m contrib.external.benchmarks.agent_programs [--only NAME;NAME] [--json FILE]

Each agent is installed into a folder of .cache. A coding agent of the npm registry works once on a task: a command of
its shell, two commands at once, one that writes the result, and an answer. A package of PyPI calls its tool or its
shell, as contrib/external/tests/agent_packages.py says. Needs node and npm.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from contrib.external.tests import agent_packages, coding_agents
from contrib.external.tests.coding_agents import AGENTS
from contrib.external.tests.external_playing import says
from forge_env.core.types import EpisodeLimits
from forge_env.rollout.factory import make
from tests.helpers.own_environment import node_with, python_with
from trainers.model.make import make_model

LIMITS = EpisodeLimits(max_tokens=100_000, step_seconds=120.0)
PACKAGES = {case.id: case for case in agent_packages.CASES}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=";".join((*AGENTS, *PACKAGES)))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    results.pop("machine", None)
    for name in arguments.only.split(";"):
        results[name] = asyncio.run(measure(name))
        print(name, json.dumps(results[name], indent=1))
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    results["machine"] = describe() | {"node": node}
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


async def measure(name: str) -> dict[str, Any]:
    """Play one agent."""
    with tempfile.TemporaryDirectory(prefix="forge_env_agents_") as folder:
        model = Path(folder) / "model"
        await make_model(model, make("math"), seed=0, limits=EpisodeLimits())
        if name in AGENTS:
            package = AGENTS[name].package
            node_with(package)
            started = time.perf_counter()
            episode = await coding_agents.episode_of(name, says(model, *AGENTS[name].script()), Path(folder), LIMITS)
        else:
            case = PACKAGES[name]
            package = ", ".join(case.packages)
            python_with(*case.packages)
            started = time.perf_counter()
            episode = await agent_packages.episode_of(case, says(model, *case.says), LIMITS)
        return {
            "package": package,
            "outcome": episode.outcome.value,
            "reward": episode.reward,
            "seconds": round(time.perf_counter() - started, 1),
            "turns": len(episode.turns),
            "rows": len(episode.rows),
            "row_began": [asdict(row) for row in episode.lineage[1:]],
            "repeated_tokens": episode.info.get("repeated_tokens", 0),
            "ignored_fields": episode.info.get("ignored_fields", {}),
            "refused_requests": episode.info.get("refused_requests", {}),
        }


if __name__ == "__main__":
    raise SystemExit(main())
