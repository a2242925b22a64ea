"""Every algorithm on the tiny CPU recipe: success on held-out tasks before and after, and the learning curves.

    python -m benchmarks.algorithms --env code_exec
    python -m benchmarks.algorithms --runs outputs/mine            # of outputs/mine/ALGORITHM, which is there already

Each algorithm is one `python -m trainers.ALGORITHM` with its page's own defaults and seed 0. The results, whatever they
are, go to benchmarks/results/algorithms.json, and the curves into docs/algorithms.png.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.demo import KEPT
from benchmarks.machine import REPOSITORY, describe

ALGORITHMS = ("grpo", "dapo", "gspo", "sapo", "cispo", "reinforce")
RESULTS = REPOSITORY / "benchmarks" / "results" / "algorithms.json"
PICTURE = REPOSITORY / "docs" / "algorithms.png"
WINDOW = 10  # steps of the running mean


def run(algorithm: str, env: str, options: list[str], folder: Path) -> None:
    command = [sys.executable, "-m", f"trainers.{algorithm}", "--env", env, "--output", str(folder / algorithm)]
    subprocess.run([*command, *options], check=True)


def read(algorithm: str, folder: Path) -> dict[str, Any]:
    """What is kept of one run, with the options of the environment that its checkpoint names."""
    summary = json.loads((folder / algorithm / "summary.json").read_text())
    manifest = next((folder / algorithm).glob("checkpoint*/**/forge_env.json"))
    options = json.loads(manifest.read_text())["extra"]["config"]["env"]["options"]
    return {"algorithm": algorithm, "env_options": options, **{name: summary[name] for name in KEPT}}


def draw(results: list[dict[str, Any]], env: str) -> None:
    """One panel for each algorithm: the mean reward of every step, its running mean, and both evaluations."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(2, 3, figsize=(12, 6.6), dpi=110, sharex=True, sharey=True)
    for axes, result in zip(panels.flat, results, strict=False):
        curve = result["reward_curve"]
        steps = range(1, len(curve) + 1)
        smooth = [sum(curve[max(0, i + 1 - WINDOW) : i + 1]) / min(i + 1, WINDOW) for i in range(len(curve))]
        axes.plot(steps, curve, color="#9ecae1", linewidth=1)
        axes.plot(steps, smooth, color="#08519c", linewidth=2)
        for step, name in ((0, "success_before"), (len(curve), "success_after")):
            low, high = result[f"{name}_ci95"]
            error = [[result[name] - low], [high - result[name]]]
            axes.errorbar(step, result[name], yerr=error, fmt="o", capsize=3, color="#d95f02")
        change = f"{result['success_before']:.2f} → {result['success_after']:.2f}"
        axes.set_title(f"{result['algorithm'].upper()}: held-out success {change}", fontsize=10)
        axes.grid(alpha=0.3)
        axes.set_ylim(-0.02, 1.02)
    for axes in panels[-1]:
        axes.set_xlabel("optimizer step")
    for axes in panels[:, 0]:
        axes.set_ylabel("reward")
    figure.suptitle(
        f"{env}, tiny CPU recipe: reward of each step, its mean of {WINDOW} steps, held-out success", y=0.99
    )
    figure.tight_layout()
    figure.savefig(PICTURE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="code_exec")
    parser.add_argument("--runs", type=Path, nargs="+", help="folders of finished runs, one for each algorithm")
    known, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        folders = known.runs or [Path(temporary)]
        for algorithm in () if known.runs else ALGORITHMS:
            run(algorithm, known.env, options, folders[0])
        newest = {name: next(f for f in folders if (f / name / "summary.json").is_file()) for name in ALGORITHMS}
        results = [read(algorithm, folder) for algorithm, folder in newest.items()]
    written = {"machine": describe(), "env": known.env, "options": options, "runs": results}
    RESULTS.write_text(json.dumps(written, indent=2) + "\n")
    draw(results, known.env)
    for result in results:
        print(f"{result['algorithm']:>10}: {result['success_before']:.3f} -> {result['success_after']:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
