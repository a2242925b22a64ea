"""The demo with LoRA: the warmed-up tiny model goes on with adapters alone.

    python -m benchmarks.lora_demo --seeds 0 1 2

Each seed is two runs of `python -m trainers.grpo`: a warm-up, which trains all weights until half of the probe tasks
are solved and ends before GRPO, and then GRPO with `--lora.rank 8` on the model that it leaves. The second run has
another seed, so that its tasks are not those that were demonstrated. Adapters of a random model would have nothing to
adapt. The results, whatever they are, go to benchmarks/results/lora_demo_ENV.json. Further options are those of the
second run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.demo import KEPT, RESULTS, with_interval
from benchmarks.machine import describe

LORA = (
    "--lora.rank", "8", "--lora.alpha", "16", "--training.learning_rate", "5e-3", "--training.steps", "180",
    "--training.warmup_steps", "9",
    # Of a model that is given, the defaults are others; these are those of the first run.
    "--env.max_turns", "3", "--env.max_turn_tokens", "32", "--env.max_tokens", "512",
)  # fmt: skip
"""One and a half times the steps of the demo, which trains all weights."""
WARM_UP = ("--training.steps", "0", "--training.lr_schedule", "constant", "--warmup.until_success", "0.5")
"""Longer than the demo's: embedding and output layer, which the adapters cannot change, are learned here."""
OTHER_TASKS = 1000
"""Between the seeds of the two runs."""


def run_seed(env: str, seed: int, options: list[str], folder: Path) -> dict[str, Any]:
    """The warm-up, and GRPO with adapters after it."""
    warm, adapted = folder / f"{env}-{seed}", folder / f"{env}-{seed}-lora"
    _grpo(env, seed, warm, *WARM_UP)
    _grpo(env, seed + OTHER_TASKS, adapted, "--model", str(warm / "model"), *LORA, *options)
    before, summary = (json.loads((run / "summary.json").read_text()) for run in (warm, adapted))
    return {**{name: summary[name] for name in KEPT}, "seed": seed, "warmup_steps": before["warmup_steps"]}


def _grpo(env: str, seed: int, output: Path, *options: str) -> None:
    command = [sys.executable, "-m", "trainers.grpo", "--env", env, "--seed", str(seed), "--output", str(output)]
    subprocess.run([*command, *options], check=True)


def table(results: list[dict[str, Any]]) -> str:
    """The results in Markdown."""
    lines = ["| seed | success before | after | tool off | steps | step |", "|---|---|---|---|---|---|"]
    for result in results:
        before, after = (with_interval(result, name) for name in ("success_before", "success_after"))
        lines.append(
            f"| {result['seed']} | {before} | {after} | {result['success_tool_off']:.2f} | {result['steps']} "
            f"| {result['median_step_seconds']:.2f} s |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="code_exec")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    known, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        results = [run_seed(known.env, seed, options, Path(folder)) for seed in known.seeds]
    written = {"machine": describe(), "options": [*LORA, *options], "seeds": results}
    (RESULTS / f"lora_demo_{known.env}.json").write_text(json.dumps(written, indent=2) + "\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
