"""A coding agent learns: SmolLM2-135M-Instruct mends Python in workspaces, with our tools or as mini-swe-agent's model.

    python -m contrib.workspaces.benchmarks.coding_agent [bug_fix] [mini_swe_agent] [--seeds 0 1 2] [--at-once 1]

Each is a recipe, recipes/135m_NAME.yaml, and each seed of it is one `python -m trainers.grpo`, which measures success
on held-out tasks before, during and after GRPO. Runs that are complete are read again; others begin anew. The output
folder gets results.json, a picture for each recipe, and NAME.md with the first three held-out tasks before and after.
Options that it does not know are those of the runs. The model is that of benchmarks/real_model.py, unless --model names
a folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import real_model
from benchmarks.arms import play
from benchmarks.demo import with_interval
from benchmarks.gpu.curves import draw, figures
from benchmarks.gpu.learning import measured
from benchmarks.machine import describe
from forge_env.core.episode import Episode, read_jsonl
from forge_env.core.errors import UserError
from forge_env.core.types import Message

ROOT = Path(__file__).parents[3]
RECIPES = ("bug_fix", "mini_swe_agent")
PROGRAM = ROOT / "contrib" / "external" / "examples" / "agents" / "mini_swe_agent.py"
TASKS_SHOWN = 3


def arguments(recipe: str, seed: int, model: Path, output: Path, options: Sequence[str]) -> list[str]:
    """What follows `python -m` in the run of a seed."""
    page = ["trainers.grpo", "--config", str(ROOT / "recipes" / f"135m_{recipe}.yaml"), "--model", str(model)]
    if recipe == "mini_swe_agent":
        files = output / "files"
        files.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROGRAM, files)
        page += ["--env.options.files", str(files.absolute())]
    return [*page, "--seed", str(seed), *options]


def conversation(episode: Episode) -> Iterator[str]:
    """The lines of an episode: who says what, and the reward."""
    for turn in episode.turns:
        yield from map(_line, (*turn.observation, turn.message))
    yield f"reward: {episode.reward}"


def _line(message: Message) -> str:
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls") or ()]
    return f"{message['role']}: " + "\n".join(filter(None, [str(message.get("content") or ""), *calls]))


def episodes(run: Path) -> str:
    """The first held-out tasks of a run as a page, each before and after GRPO."""
    parts = []
    sides = {when: read_jsonl(run / "episodes" / f"{when}.jsonl") for when in ("before", "after")}
    by_task = {when: {episode.task.id: episode for episode in side} for when, side in sides.items()}
    for number, task in enumerate(list(by_task["before"])[:TASKS_SHOWN], 1):
        for when, side in by_task.items():
            text = "\n".join(conversation(side[task])) if task in side else "not played"
            parts.append(f"## Task {number}, {when} GRPO\n\n````text\n{text}\n````\n")
    return "\n".join(parts)


def table(recipe: str, runs: Mapping[int, Mapping[str, Any]]) -> str:
    """A row for each seed that has an end."""
    rows = []
    for seed, run in runs.items():
        if run["complete"]:
            before, after = (with_interval(dict(run), f"success_{when}") for when in ("before", "after"))
            apart = run["success_before_ci95"][1] < run["success_after_ci95"][0]
            seconds = f"{run['total_seconds']:.0f} s"
            rows.append(f"| {recipe} | {seed} | {before} | {after} | {'yes' if apart else 'no'} | {seconds} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"of {', '.join(RECIPES)}; else the first one")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--at-once", type=int, default=1, help="runs at once; they share the GPU")
    parser.add_argument("--model", type=Path, help="folder of the model that the runs begin with")
    parser.add_argument("--output", type=Path, default=Path("outputs/coding_agent"), help="folder of the results")
    given, further = parser.parse_known_args()
    if unknown := set(given.recipes) - set(RECIPES):
        parser.error(f"there is no recipe {sorted(unknown)[0]!r}: the recipes are {', '.join(RECIPES)}")
    try:
        model = given.model or real_model.model()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    recipes = given.recipes or RECIPES[:1]
    folders = {(recipe, seed): given.output / f"{recipe}-{seed}" for recipe in recipes for seed in given.seeds}
    for folder in folders.values():
        if not (folder / "summary.json").is_file():
            shutil.rmtree(folder, ignore_errors=True)
    play(
        {folder: arguments(*name, model, given.output, further) for name, folder in folders.items()},
        jobs=given.at_once,
    )
    written: dict[str, Any] = {"machine": describe(), "options": further, "recipes": {}}
    print("| recipe | seed | before | after | intervals apart | run |\n|---|---|---|---|---|---|")
    for recipe in recipes:
        runs = {seed: measured(folders[recipe, seed]) for seed in given.seeds}
        written["recipes"][recipe] = {seed: {**run, **figures(run), "curve": None} for seed, run in runs.items()}
        draw({f"{recipe}, seed {seed}": run for seed, run in runs.items()}, given.output / f"{recipe}.png")
        (given.output / f"{recipe}.md").write_text(episodes(folders[recipe, given.seeds[0]]))
        print(table(recipe, runs))
    (given.output / "results.json").write_text(json.dumps(written, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
