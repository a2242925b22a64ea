"""A tiny mixture-of-experts model learns the demo's tasks, with routing replay and without.

    python -m benchmarks.expert_curves --seeds 0 1 2
    python -m benchmarks.expert_curves --runs outputs/mine         # of outputs/mine/on-SEED and off-SEED, there already

Each run is `python -m trainers.grpo --model.size tiny-moe` with the defaults. The results, whatever they are, go to
benchmarks/results/expert_curves.json, and the curves into expert_curves.png beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.algorithms import WINDOW
from benchmarks.demo import KEPT, RESULTS, with_interval
from benchmarks.machine import describe

PICTURE = RESULTS / "expert_curves.png"
REPLAY = {"on": "#08519c", "off": "#d95f02"}  # and their colours
MISMATCH = ("replay/experts_differ", "mean_abs_logprob_difference")


def run(env: str, replay: str, seed: int, options: list[str], folder: Path) -> None:
    command = [sys.executable, "-m", "trainers.grpo", "--env", env, "--model.size", "tiny-moe", "--seed", str(seed)]
    command += ["--moe.replay", "auto" if replay == "on" else "off", "--output", str(folder / f"{replay}-{seed}")]
    subprocess.run([*command, *options], check=True)


def read(replay: str, seed: int, folder: Path) -> dict[str, Any]:
    """What is kept of one run, and the mean over its steps of what replay is about."""
    output = folder / f"{replay}-{seed}"
    summary = json.loads((output / "summary.json").read_text())
    steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    result = {"replay": replay, "seed": seed, **{name: summary[name] for name in KEPT}}
    for name in MISMATCH:
        values = [step[name] for step in steps if step["phase"] == "train" and name in step]
        result[name] = sum(values) / len(values) if values else None
    return result


def draw(results: list[dict[str, Any]], env: str) -> None:
    """The running mean of each run's reward, and both evaluations."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.4), dpi=110)
    for result in results:
        curve, color = result["reward_curve"], REPLAY[result["replay"]]
        smooth = [sum(curve[max(0, i + 1 - WINDOW) : i + 1]) / min(i + 1, WINDOW) for i in range(len(curve))]
        label = f"replay {result['replay']}" if result["seed"] == results[0]["seed"] else None
        axes.plot(range(1, len(curve) + 1), smooth, color=color, label=label)
        ends = [result["success_before"], result["success_after"]]
        axes.plot([0, len(curve)], ends, "o", color=color, markersize=5)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(f"reward, mean of {WINDOW} steps; dots: held-out success")
    axes.set_title(f"{env}, tiny-moe, GRPO: three seeds each" if len(results) == 6 else f"{env}, tiny-moe, GRPO")
    axes.set_ylim(-0.02, 1.02)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(PICTURE)


def table(results: list[dict[str, Any]]) -> str:
    """The results in Markdown."""
    lines = ["| replay | seed | success before | after | step |", "|---|---|---|---|---|"]
    for result in results:
        before, after = (with_interval(result, name) for name in ("success_before", "success_after"))
        step = result["median_step_seconds"]
        lines.append(f"| {result['replay']} | {result['seed']} | {before} | {after} | {step:.2f} s |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="code_exec")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, help="folder of finished runs")
    known, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = known.runs or Path(temporary)
        pairs = [(replay, seed) for replay in REPLAY for seed in known.seeds]
        for replay, seed in () if known.runs else pairs:
            run(known.env, replay, seed, options, folder)
        results = [read(replay, seed, folder) for replay, seed in pairs]
    written = {"machine": describe(), "env": known.env, "options": options, "runs": results}
    (RESULTS / "expert_curves.json").write_text(json.dumps(written, indent=2) + "\n")
    draw(results, known.env)
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
