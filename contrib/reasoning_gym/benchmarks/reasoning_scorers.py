"""Which of reasoning-gym's scorers pay for answers that are not right: constants, other answers, the question itself.

    python -m contrib.reasoning_gym.benchmarks.reasoning_scorers [--only NAME,NAME] [--json FILE]

Of each dataset, 50 tasks are made as a run makes them. Each is given its own answer, 33 constants, the answers of the
other 49 tasks (of fewer where a scorer is slow), its question and the question's last line. A probe is paid where it
earns 0.1 or more and is neither the task's answer nor the same number. A dataset is

    sound     no probe is paid
    several   answers of other tasks are paid in at most `SEVERAL_SHARE` of the tasks, for the reason in `SEVERAL`
    refused   its scorer pays for so much that no tasks are left
    unsound   anything else: it has to be replaced, in `_REPLACED_SCORERS` of contrib/reasoning_gym/worker.py
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from contrib.reasoning_gym.env import dataset_names, resolve, score_all
from contrib.reasoning_gym.process import worker
from contrib.reasoning_gym.worker import _same
from forge_env.core.errors import ForgeError, UserError
from forge_env.core.types import Task
from forge_env.rollout.factory import EnvFactory

COUNT = 50
PAID = 0.1
SEVERAL_SHARE = 0.2
SEVERAL = {
    "jugs": "one way to pour fills several sets of jugs",
    "n_queens": "a board with few queens given has many solutions",
    "puzzle24": "tasks with the same four numbers have the same answers",
    "quantum_lock": "several ways of the same length lead to one value",
    "shortest_path": "a grid has several shortest paths",
    "sokoban": "the scorer plays the moves, and a long walk solves a small board",
}
"""Datasets whose answers are right for other tasks too, now and then."""
SLOW = ("intermediate_integration", "simple_integration")
FEW = 8
"""Answers of other tasks that are tried on `SLOW` datasets, whose scorers take a second for some."""
CONSTANTS = (
    *("?", "0", "1", "-1", "2", "3", "5", "10", "24", "100", "0.5", "1/2", "nan", "inf", "1e308", "1e400"),
    *("None", "True", "False", "yes", "no", "A", "B", "x", "[]", "[[]]", "{}", "()", "6*4*1*1", "E/E", "answer"),
    *("0 1 2 3", "C"),
)


def measure(name: str, count: int = COUNT) -> dict[str, Any]:
    try:
        tasks = _tasks(name, count)
    except ForgeError as error:
        return {"verdict": "refused", "reason": str(error)}
    golds = sorted({task.target for task in tasks if task.target is not None})
    golds = golds[:: len(golds) // FEW] if name in SLOW else golds
    paid: dict[str, dict[str, int]] = {"constants": {}, "answers": {}, "echoes": {}}
    wrong_golds = 0
    for task in tasks:
        question = task.prompt[0]["content"]
        probes = [("constants", text) for text in CONSTANTS] + [("answers", text) for text in golds]
        probes += [("echoes", question), ("echoes", question.rstrip().rpartition("\n")[2])]
        scores = _scores(task, [task.target or "?", *(text for _, text in probes)])
        wrong_golds += task.target is not None and scores[0] != 1.0
        for (kind, text), score in zip(probes, scores[1:], strict=True):
            if score >= PAID and not _same(text, task.target):
                key = text if kind == "constants" else text[:60]
                paid[kind][key] = paid[kind].get(key, 0) + 1
    return {"tasks": len(tasks), "wrong_golds": wrong_golds, **_verdict(name, len(tasks), wrong_golds, paid)}


def _tasks(name: str, count: int) -> list[Task]:
    factory = EnvFactory(resolve(name))
    try:
        return list(factory.tasks("train", count=count, seed=0))
    except UserError:
        return list(factory.tasks("train", count=count // 5, seed=0))  # some have few different questions


def _scores(task: Task, answers: list[str]) -> list[float]:
    """Score answers in one fork; where one of them takes too long, each in its own."""
    reply = score_all(task, answers)
    results = reply.get("results") or [score_all(task, [answer]).get("results", [{}])[0] for answer in answers]
    return [result.get("score", 0.0) for result in results]


def _verdict(name: str, tasks: int, wrong_golds: int, paid: dict[str, dict[str, int]]) -> dict[str, Any]:
    worst = {kind: max(counts.items(), key=lambda item: item[1], default=("", 0)) for kind, counts in paid.items()}
    gains = {kind: {"probe": probe, "paid": count} for kind, (probe, count) in worst.items() if count}
    verdict = "sound"
    if wrong_golds or "constants" in gains or "echoes" in gains:
        verdict = "unsound"
    elif gains:
        verdict = "several" if name in SEVERAL and worst["answers"][1] <= SEVERAL_SHARE * tasks else "unsound"
    reason = {"reason": SEVERAL[name]} if verdict == "several" else {}
    return {"verdict": verdict, **reason, "worst": gains}


def table(names: list[str]) -> dict[str, Any]:
    """Probe the scorers of several datasets, and say which versions they are of."""
    rows = {}
    for name in names:
        started = time.perf_counter()
        rows[name] = measure(name)
        print(
            f"{name:28} {rows[name]['verdict']:8} {time.perf_counter() - started:6.1f} s", file=sys.stderr, flush=True
        )
    versions = {"reasoning-gym": version("reasoning-gym"), "python": platform.python_version()}
    return {"versions": versions, "tasks": COUNT, "constants": list(CONSTANTS), "datasets": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="names of datasets, with commas; all by default")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    options = parser.parse_args()
    try:
        results = table(options.only.split(",") if options.only else dataset_names())
    finally:
        worker.close()
    if options.json:
        options.json.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    for name, row in results["datasets"].items():
        if row["verdict"] != "sound":
            print(f"{name}: {row['verdict']}: {row.get('reason', '')} {row.get('worst', '')}")


if __name__ == "__main__":
    main()
