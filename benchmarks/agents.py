"""What coding agents of the npm registry send, and how many rows their episodes have; a scripted policy answers them.

    python -m benchmarks.agents [--only NAME;NAME] [--json FILE]

Each agent is installed into a temporary folder and works once on a task: a command of its shell, two commands at once,
one that writes the result, and an answer. Needs node and npm.
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
from forge_env.core.types import EpisodeLimits
from forge_env.rollout.factory import make
from tests.envs.external.coding_agents import AGENTS, episode_of, install
from tests.envs.external.external_playing import says
from trainers.model.make import make_model

LIMITS = EpisodeLimits(max_tokens=100_000, step_seconds=120.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=";".join(AGENTS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    for name in arguments.only.split(";"):
        results[name] = asyncio.run(measure(name))
        print(name, json.dumps(results[name], indent=1))
    results["machine"] = describe()
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


async def measure(name: str) -> dict[str, Any]:
    """Play one agent."""
    agent = AGENTS[name]
    with tempfile.TemporaryDirectory(prefix="forge_env_agents_") as folder:
        model = Path(folder) / "model"
        await make_model(model, make("math"), seed=0, limits=EpisodeLimits())
        programs = install(agent.package, Path(folder) / "package")
        node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
        policy = says(model, *agent.script())
        started = time.perf_counter()
        episode = await episode_of(name, programs, policy, Path(folder), LIMITS)
        return {
            "package": agent.package,
            "node": node,
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
