"""Do the adapters say what the suites say? Scripts play all tasks, and the suites' own checkers judge the messages.

    python -m contrib.suites.benchmarks.third_party [--only NAME;NAME] [--tasks N] [--json FILE]
        [--python NAME=PATH] [--checker NAME=PATH]

The scripts are the solution of the suite ("gold"), an agent that says nothing ("empty"), and cheats. The checker runs
in its own process and code (own_checkers). `--python` names the interpreter that has a suite, `--checker` the one of
its own checker: that of BFCL needs all requirements of bfcl-eval.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agents.scripted import ScriptedAgent
from benchmarks.machine import describe
from contrib.suites.benchmarks.third_party_suites import SUITES, Played, ScriptOf, Suite, say
from contrib.suites.catalogue import environment, installed
from forge_env.core.types import Task
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode

AT_ONCE = 64
ALL = 100_000
CHECKER_SECONDS = 3000.0
CHECKERS = Path(__file__).parent / "own_checkers"
_LISTED = 400
"""The most ids that a result lists."""
COLUMNS = "suite | version | tasks | gold earns 1 | empty earns 1 | cheats earn 1 | own checker agrees | s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=";".join(SUITES))
    parser.add_argument("--tasks", type=int, default=ALL, help="of each suite")
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--checker", action="append", default=[])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    pythons, checkers = (dict(text.split("=", 1) for text in given) for given in (arguments.python, arguments.checker))
    results: dict[str, Any] = {}
    print(f"| {COLUMNS} |\n|{'---|' * (COLUMNS.count('|') + 1)}")
    for name in arguments.only.split(";"):
        suite = SUITES[name]
        measured = measure(suite, pythons.get(suite.env, ""), checkers.get(suite.env, ""), arguments.tasks)
        results[name] = asyncio.run(measured) | {"machine": describe()}
        print(row(name, results[name]), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1) + "\n")


async def measure(suite: Suite, python: str, checker: str, count: int) -> dict[str, Any]:
    """Play a suite with all scripts, and ask its own checker."""
    started = time.perf_counter()
    where = installed(suite.env, python)
    factory = make(suite.env, **suite.options, **({"python": python} if python else {}))
    tasks = list(factory.tasks("all", count=count, seed=0, seconds=1200.0))
    scripts: dict[str, ScriptOf] = {"gold": suite.gold, "empty": lambda task: say(""), **suite.cheats}
    async with factory:
        played = {name: await play(factory, tasks, script_of, name) for name, script_of in scripts.items()}
    return {
        "version": where.label,
        "tasks": len(tasks),
        "scripts": {name: scores(episodes, _reward(suite, name)) for name, episodes in played.items()},
        "agreement": compare(suite, [one for episodes in played.values() for one in episodes], checker or where.python),
        "seconds": round(time.perf_counter() - started, 1),
    }


def _reward(suite: Suite, script: str) -> float:
    """What a script should earn."""
    return float(script == "gold" or (script == "empty" and suite.is_silence_right))


async def play(factory: EnvFactory, tasks: Sequence[Task], script_of: ScriptOf, agent: str) -> list[Played]:
    """Play each task with the script that a function gives for it; tasks without one are left out."""
    slots, limits = asyncio.Semaphore(AT_ONCE), factory.episode_limits()

    async def one(task: Task) -> Played | None:
        script = script_of(task)
        if script is None:
            return None
        async with slots:
            scripted, name = ScriptedAgent(script), f"{agent}/{task.id}"
            episode = await run_episode(factory, scripted, task, seed=0, episode_id=name, limits=limits)
        return Played(task, agent, episode)

    return [played for played in await asyncio.gather(*map(one, tasks)) if played is not None]


def scores(played: Sequence[Played], reward: float) -> dict[str, Any]:
    """Count the episodes that earned 1, and list those that earned anything but what they should."""
    others = {p.task.id: f"{p.episode.reward} {p.episode.error}".strip() for p in played if p.episode.reward != reward}
    return {
        "episodes": len(played),
        "earned_1": sum(p.episode.reward == 1.0 for p in played),
        "faults": sum(not p.episode.outcome.is_valid for p in played),
        "others": len(others),
        "other_ids": dict(list(others.items())[:_LISTED]),
    }


def compare(suite: Suite, played: Sequence[Played], python: str) -> dict[str, Any]:
    """Let the suite's own checker judge, and list the episodes on which it does not agree."""
    lines = [json.dumps({"key": f"{p.agent} {p.task.id}", "id": p.task.id, **suite.own_row(p)}) for p in played]
    with tempfile.TemporaryDirectory() as folder:
        answers, written = Path(folder) / "answers.jsonl", Path(folder) / "verdicts.json"
        answers.write_text("\n".join(lines))
        command = [python, "-P", str(CHECKERS / f"{suite.env}.py"), str(answers), str(written)]
        done = subprocess.run(command, capture_output=True, timeout=CHECKER_SECONDS, env=environment(), cwd=folder)
        if done.returncode:
            return {"failed": done.stderr.decode(errors="replace").strip().rpartition("\n")[2][-300:]}
        verdicts = json.loads(written.read_text())
    pairs = {f"{p.agent} {p.task.id}": suite.own_verdict(p) for p in played}
    differing = {key: {"ours": ours, "theirs": verdicts[key]} for key, ours in pairs.items() if ours != verdicts[key]}
    return {
        "episodes": len(played),
        "agreed": len(played) - len(differing),
        "differing_ids": dict(list(differing.items())[:_LISTED]),
    }


def row(name: str, result: Mapping[str, Any]) -> str:
    """The row of a suite in Markdown, as benchmarks/results/third_party.md has it."""
    gold, empty, *cheats = result["scripts"].values()
    earned = [(gold["earned_1"], gold["episodes"]), (empty["earned_1"], empty["episodes"])]
    earned.append((sum(c["earned_1"] for c in cheats), sum(c["episodes"] for c in cheats)))
    agreement = result["agreement"]
    if "failed" not in agreement:
        earned.append((agreement["agreed"], agreement["episodes"]))
    cells = [name, result["version"], f"{result['tasks']:,}", *(f"{part:,} of {whole:,}" for part, whole in earned)]
    cells += [*filter(None, [agreement.get("failed")]), f"{result['seconds']:,.0f}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
