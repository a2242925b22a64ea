"""Does a summary in the place of old turns (--context.compact_at) solve episodes that exceed the context?

    python -m benchmarks.compaction --output outputs/compaction --seeds 0 1 2 3 4 --jobs 5

`Boxes` is a chain of lookups. A code lies in one of the first boxes and is asked for after the last one, so that a
summary has to carry it on. The shortest chains fit into the context, the longest need more than twice as much. For
every seed there are two runs, which differ in `compact_at` only. The same command goes on with the runs that are
missing. Prints the held-out success of both, the mean difference with its 95% interval, and that of each kind, and
writes RESULTS. Options that it does not know are those of the runs.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.arms import play
from benchmarks.machine import describe
from forge_env.core.env import Env
from forge_env.core.types import Action, Message, Task
from forge_env.rollout.compaction import COMPACT_PROMPT
from forge_env.utils.statistics import clustered_mean

RESULTS = Path(__file__).parent / "results" / "compaction.json"
NAMES = ("red", "blue", "green", "grey", "pink", "black", "white", "brown")
SHORT = 7
"""Boxes of a chain at most, for it to fit into the context."""
ARMS = {"truncate": 0.0, "compact": 0.6}


class Boxes(Env):
    """Open one box after another, and report the code that lay in one of the first."""

    def __init__(self) -> None:
        self._chain: Sequence[str] = ()
        self._code, self._place, self._opened = "", 0, 0

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0, longest: int = 24) -> Sequence[Task]:
        """Draw chains of 3 to `longest` boxes. The sum of code and length is even in training, and odd in other splits:
        held-out tasks have codes and lengths that the model knows, and no pair of them."""
        rng = random.Random(f"{split}/{seed}")
        drawn = dict[str, Task]()
        while len(drawn) < count:  # without repetition
            task = _task(rng, split != "train", longest)
            drawn[task.id] = task
        return list(drawn.values())

    @classmethod
    def limits(cls, longest: int = 24) -> Mapping[str, float]:
        return {"max_turns": longest + 2, "max_turn_tokens": 24, "max_tokens": 144}

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        assert options is not None
        task = options["task"]
        self._chain, self._place = task.metadata["chain"], task.metadata["place"]
        self._code, self._opened = str(task.target), 0
        return task.prompt, {}

    async def step(self, action: Action) -> Any:
        words = action.text.split()
        if self._opened == len(self._chain):
            return [], float(words == ["report", self._code]), True, False, {}
        if words != ["open", self._chain[self._opened]]:
            return [], 0.0, True, False, {}
        self._opened += 1
        code = f"code {self._code} " if self._opened == self._place else ""
        follows = f"next {self._chain[self._opened]}" if self._opened < len(self._chain) else "end"
        return [{"role": "user", "content": code + follows}], 0.0, False, False, {}

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        """Open what is next, and sum up the code and what is next; it reads a summary as it reads the boxes."""
        seen = [m["content"].removesuffix(COMPACT_PROMPT).strip() for m in messages if m["role"] == "user"]
        codes = re.findall(r"code (\d+)", "\n".join(seen))
        follows = re.findall(r"next \w+|end$", seen[-1])[-1]
        if messages[-1]["content"].endswith(COMPACT_PROMPT):
            text = f"code {codes[0]} {follows}" if codes else follows
        else:
            text = f"report {codes[0]}" if follows == "end" else follows.replace("next", "open")
        return {"role": "assistant", "content": text}


def _task(rng: random.Random, is_odd: bool, longest: int) -> Task:
    length = rng.randint(3, longest)
    chain = [rng.choice(NAMES) for _ in range(length)]
    place, code = rng.randint(1, min(3, length)), rng.randrange(10, 100, 2) + (length + is_odd) % 2
    prompt: Message = {"role": "user", "content": f"Open the boxes and report the code at the end: next {chain[0]}"}
    return Task(
        prompt=(prompt,),
        target=code,
        metadata={"chain": chain, "place": place},
        kind="short" if length <= SHORT else "long",
    )


def arguments(seed: int, compact_at: float, options: Sequence[str]) -> list[str]:
    """The arguments of one run."""
    return [
        "trainers.grpo", "--env", "benchmarks.compaction:Boxes", "--seed", str(seed),
        "--context.compact_at", str(compact_at), "--training.signal_error", "0", *options,
    ]  # fmt: skip


def figures(runs: Mapping[tuple[str, int], Mapping[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """The success of both arms after training, over the seeds, and the difference."""
    after = {arm: [runs[arm, seed]["success_after"] for seed in seeds] for arm in ARMS}
    found = clustered_mean([b - a for a, b in zip(after["truncate"], after["compact"], strict=True)])
    return {**after, "difference": found.value, "ci95": found.interval, "holds": len(seeds) > 1 and found.low > 0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given, options = parser.parse_known_args()
    arms = {given.output / f"{arm}-{seed}": (arm, seed) for seed in given.seeds for arm in ARMS}
    played = play(
        {folder: arguments(seed, ARMS[arm], options) for folder, (arm, seed) in arms.items()}, jobs=given.jobs
    )
    runs = {arms[folder]: run for folder, run in played.items()}
    found = figures(runs, given.seeds)
    kept = [{"arm": arm, "seed": seed, **run} for (arm, seed), run in runs.items()]
    written = {"machine": describe(), "options": options, **found, "runs": kept}
    given.results.write_text(json.dumps(written, indent=2) + "\n")
    print("| seed | truncate | compact |\n|---|---|---|")
    for seed, *both in zip(given.seeds, *(found[arm] for arm in ARMS), strict=True):
        print(f"| {seed} | {both[0]:.3f} | {both[1]:.3f} |")
    means = " and ".join(f"{fmean(found[arm]):.3f}" for arm in ARMS)
    print(f"means {means}; the difference is {found['difference']:+.3f} {found['ci95']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
