"""Benchmarks that others wrote, played by scripts: what right, empty and cheating answers earn here and there.

    python -m contrib.suites.benchmarks.third_party [--only NAME;NAME] [--tasks N] [--python NAME=PATH] [--checker
    NAME=PATH]
        [--json FILE]

Of each suite all tasks are played: by the solution of the suite ("gold"), 64 at once and one after another, which must
give the same episodes; by an agent that says nothing ("empty"); and by cheats. The suite's own checker then judges the
same messages, in its own process and code (contrib/suites/benchmarks/own_checkers). `--python` names the interpreter
that has a suite,
`--checker` the one of its own checker: that of BFCL needs all requirements of bfcl-eval.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agents.scripted import ScriptedAgent
from benchmarks.machine import describe
from contrib.suites.benchmarks.third_party_suites import SUITES, Played, Suite, say
from contrib.suites.catalogue import environment, installed
from forge_env.core.episode import Episode
from forge_env.core.types import Task
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode

AT_ONCE = 64
CHECKER_SECONDS = 3000.0
CHECKERS = Path(__file__).parent / "own_checkers"
_LISTED = 400
"""The most ids that a result lists."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=";".join(SUITES))
    parser.add_argument("--tasks", type=int, default=0, help="of each suite; 0 is all")
    parser.add_argument("--serial", type=int, default=0, help="tasks that are played one after another, too; 0 is all")
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--checker", action="append", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", action="store_true", help="print the table of --json, and play nothing")
    arguments = parser.parse_args()
    pythons, checkers = (dict(text.split("=", 1) for text in given) for given in (arguments.python, arguments.checker))
    results = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    for name in () if arguments.show else arguments.only.split(";"):
        suite = SUITES[name]
        python = pythons.get(suite.package, "")
        result = asyncio.run(measure(suite, python, checkers.get(suite.package, ""), arguments))
        results[name] = {**result, "machine": describe()}
        show({name: result})
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    show(results)
    return 0


async def measure(suite: Suite, python: str, checker: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Play a suite with all agents, and ask its own checker."""
    started = time.perf_counter()
    options = {**suite.options, **({"python": python} if python else {})}
    factory = make(suite.env, **options)
    tasks = list(factory.tasks(suite.split, count=arguments.tasks or suite.count, seed=0, seconds=1200.0))
    drawn = time.perf_counter()
    with_gold = [task for task in tasks if suite.gold(task) is not None]
    async with factory:
        gold = await play(factory, with_gold, suite.gold, "gold", AT_ONCE)
        played = time.perf_counter()
        serial = await play(factory, with_gold[: arguments.serial or None], suite.gold, "gold", 1)
        in_turn = time.perf_counter()
        empty = await play(factory, tasks, lambda task: say(""), "empty", AT_ONCE)
        cheats = [
            await play(factory, tasks, lambda task, make=make: make(task), name, AT_ONCE)  # type: ignore[misc]
            for name, make in suite.cheats.items()
        ]
    everything = [*gold, *empty, *(item for of_cheat in cheats for item in of_cheat)]
    checked = time.perf_counter()
    where = installed(suite.package, python) if suite.package in CHECKED else None
    agreement = compare(suite, everything, checker or where.python) if where is not None else None
    return {
        "version": where.label if where is not None else suite.version(python),
        "tasks": len(tasks),
        "kinds": dict(sorted(Counter(task.kind for task in tasks if task.kind).items())),
        "gold": scores(gold, right=True, without=len(tasks) - len(with_gold)),
        "empty": scores(empty, right=suite.is_silence_right),
        "cheats": {name: scores(of_cheat, right=False) for name, of_cheat in zip(suite.cheats, cheats, strict=True)},
        "concurrent": same(gold, serial),
        "agreement": agreement,
        "skipped": suite.skipped(python),
        "seconds": {
            "draw": round(drawn - started, 1),
            "gold, 64 at once": round(played - drawn, 1),
            "gold, one after another": round(in_turn - played, 1),
            "own checker": round(time.perf_counter() - checked, 1),
            "all": round(time.perf_counter() - started, 1),
        },
    }


CHECKED = ("bfcl", "agentdojo", "humaneval")


async def play(
    factory: EnvFactory, tasks: Sequence[Task], script_of: Callable[[Task], Any], agent: str, concurrency: int
) -> list[Played]:
    """Play each task with the script that a function gives for it; tasks without one are left out."""
    slots = asyncio.Semaphore(concurrency)
    limits = factory.episode_limits()

    async def one(task: Task) -> Played | None:
        script = script_of(task)
        if script is None:
            return None
        async with slots:
            episode = await run_episode(
                factory, ScriptedAgent(script), task, seed=0, episode_id=f"{agent}/{task.id}", limits=limits
            )
        return Played(task, agent, episode)

    results = await asyncio.gather(*map(one, tasks))
    return [result for result in results if result is not None]


def scores(played: Sequence[Played], *, right: bool, without: int = 0) -> dict[str, Any]:
    """Count the episodes that earned 1, and list those that earned anything but what they should."""
    wrong = [p for p in played if p.episode.reward != float(right)]
    parts = {name for p in played for name in p.episode.rewards}
    means = {
        name: round(sum(values) / len(values), 4)
        for name in sorted(parts)
        if (values := [p.episode.rewards[name] for p in played if name in p.episode.rewards])
    }
    return {
        "episodes": len(played),
        "earned_1": sum(p.episode.reward == 1.0 for p in played),
        "faults": sum(not p.episode.outcome.is_valid for p in played),
        "parts": means,
        "others": len(wrong),
        "other_ids": {p.task.id: _earned(p.episode) for p in wrong[:_LISTED]},
        **({"tasks_without_gold": without} if without else {}),
    }


def _earned(episode: Episode) -> str:
    reason = episode.error or episode.info.get("error_type", "")
    return f"{episode.reward} {reason}".strip()


def same(one: Sequence[Played], other: Sequence[Played]) -> dict[str, Any]:
    """Compare episodes of the same tasks, with all messages and rewards."""
    of_id = {p.task.id: p for p in one}
    different = [p.task.id for p in other if facts(p.episode) != facts(of_id[p.task.id].episode)]
    return {"episodes": len(other), "different": different[:_LISTED]}


def facts(episode: Episode) -> Any:
    return [list(episode.messages), episode.reward, dict(episode.rewards), str(episode.outcome)]


def compare(suite: Suite, played: Sequence[Played], python: str) -> dict[str, Any]:
    """Let the suite's own checker judge, and list the episodes on which it does not agree."""
    lines = [json.dumps({"key": f"{p.agent} {p.task.id}", "id": p.task.id, **suite.own_row(p)}) for p in played]
    with tempfile.TemporaryDirectory() as folder:
        answers, written = Path(folder) / "answers.jsonl", Path(folder) / "verdicts.json"
        answers.write_text("\n".join(lines))
        command = [python, "-P", str(CHECKERS / f"{suite.package}.py"), str(answers), str(written)]
        done = subprocess.run(command, capture_output=True, timeout=CHECKER_SECONDS, env=environment(), cwd=folder)
        if done.returncode:
            return {"failed": done.stderr.decode(errors="replace").strip().rpartition("\n")[2][-300:]}
        verdicts = json.loads(written.read_text())
    differing = {}
    for p in played:
        ours, theirs = suite.own_verdict(p), verdicts[f"{p.agent} {p.task.id}"]
        if ours != theirs:
            differing[f"{p.agent} {p.task.id}"] = {"ours": ours, "theirs": theirs}
    by_agent = Counter(key.partition(" ")[0] for key in differing)
    return {
        "episodes": len(played),
        "agreed": len(played) - len(differing),
        "differing": dict(by_agent),
        "differing_ids": dict(list(differing.items())[:_LISTED]),
        "differing_gold": [key for key in differing if key.startswith("gold ")][:_LISTED],
    }


def show(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the table in Markdown, as benchmarks/results/third_party.md has it, and what was left out."""
    columns = (
        "suite | version | tasks | gold earns 1 | empty earns 1 | cheats earn 1 | own checker agrees | 64 at once | s"
    )
    print(f"| {columns} |\n|{'---|' * (columns.count('|') + 1)}")
    for name, r in results.items():
        cheats = sum(c["earned_1"] for c in r["cheats"].values())
        cheated = sum(c["episodes"] for c in r["cheats"].values())
        a = r["agreement"]
        agreed = "-" if a is None else a.get("failed") or f"{a['agreed']:,} of {a['episodes']:,}"
        concurrent = r["concurrent"]
        equal = f"{concurrent['episodes'] - len(concurrent['different']):,} of {concurrent['episodes']:,} equal"
        gold, empty = r["gold"], r["empty"]
        print(
            f"| {name} | {r['version']} | {r['tasks']:,} | {gold['earned_1']:,} of {gold['episodes']:,} "
            f"| {empty['earned_1']:,} of {empty['episodes']:,} | {cheats:,} of {cheated:,} | {agreed} | {equal} "
            f"| {r['seconds']['all']:,.0f} |"
        )
    for category, reason in {c: reason for r in results.values() for c, reason in r["skipped"].items()}.items():
        print(f"left out: {category}: it {reason}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
