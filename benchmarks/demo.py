"""The demo over several seeds: success before and after, seconds, and the step as a multiple of the bare loop's.

    python -m benchmarks.demo --env code_exec --seeds 0 1 2

Each seed is one `python -m trainers.grpo`, followed by the bare loop on the same machine. The results, whatever they
are, go to benchmarks/results/demo_ENV.json, and all curves into one picture beside it. The table of results/demo.md is
printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe

RESULTS = Path(__file__).parent / "results"
KEPT = (
    "seed", "steps", "warmup_steps", "success_before", "success_before_ci95", "success_after", "success_after_ci95",
    "success_tool_off", "evaluation_episodes", "evaluation_faults", "setup_seconds", "train_seconds", "total_seconds",
    "median_step_seconds", "tokens_generated", "tokens_trained", "model_parameters", "reward_curve",
)  # fmt: skip


def run_seed(env: str, seed: int, options: list[str], folder: Path) -> dict[str, Any]:
    """One whole run and the bare loop after it."""
    output = folder / f"{env}-{seed}"
    command = [sys.executable, "-m", "trainers.grpo", "--env", env, "--seed", str(seed), "--output", str(output)]
    started = time.perf_counter()
    subprocess.run([*command, *options], check=True)
    wall = time.perf_counter() - started
    subprocess.run([sys.executable, "-m", "benchmarks.bare_loop", "--run", str(output)], check=True)
    summary = json.loads((output / "summary.json").read_text())
    bare = json.loads((output / "bare_loop.json").read_text())
    return {**{name: summary[name] for name in KEPT}, "wall_seconds": wall, "bare_loop": bare}


def with_interval(result: dict[str, Any], name: str) -> str:
    """A share and its interval of 95%."""
    low, high = result[f"{name}_ci95"]
    return f"{result[name]:.2f} [{low:.2f}, {high:.2f}]"


def table(results: list[dict[str, Any]]) -> str:
    """The table of results/demo.md."""
    lines = [
        "| seed | success before | after | tool off | whole run | step | bare loop | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        step, bare = result["median_step_seconds"], result["bare_loop"]
        before, after = (with_interval(result, f"success_{when}") for when in ("before", "after"))
        lines.append(
            f"| {result['seed']} | {before} | {after} | {result['success_tool_off']:.2f} "
            f"| {result['wall_seconds']:.0f} s "
            f"| {step:.2f} s | {bare['bare_step_seconds']:.2f} s | {bare['ratio']:.2f} |"
        )
    return "\n".join(lines)


def draw(results: list[dict[str, Any]], env: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=120)
    for result in results:
        curve = result["reward_curve"]
        smooth = [sum(curve[max(0, i - 9) : i + 1]) / min(i + 1, 10) for i in range(len(curve))]
        label = f"seed {result['seed']}: held-out {result['success_before']:.2f} → {result['success_after']:.2f}"
        (line,) = axes.plot(range(1, len(smooth) + 1), smooth, label=label)
        for step, name in ((0, "success_before"), (len(curve), "success_after")):
            low, high = result[f"{name}_ci95"]
            error = [[result[name] - low], [high - result[name]]]
            axes.errorbar(step, result[name], yerr=error, fmt="o", capsize=3, color=line.get_color())
    axes.set(xlabel="optimizer step", ylabel="reward, running mean of 10 steps", ylim=(-0.02, 1.02))
    axes.set_title(f"GRPO on {env}; dots are held-out success with 95% intervals")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="code_exec")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    known, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        results = [run_seed(known.env, seed, options, Path(folder)) for seed in known.seeds]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"demo_{known.env}.json"
    written = {"machine": describe(), "options": options, "seeds": results}
    path.write_text(json.dumps(written, indent=2) + "\n")
    draw(results, known.env, path.with_suffix(".png"))
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
