"""Several runs of `benchmarks.gpu.learning` as one file of figures, and one picture beside it.

    python -m benchmarks.gpu.curves "seed 0.json" "seed 1.json" --what "code_exec, two seeds" --json NAME.json

The files are those of `learning --json`, and their names are those of the runs. Kept are means of 20 steps of GRPO, and
the last 10 probes of the warm-up. The picture has a panel for each run: held-out success, over all tasks and by kind,
over the seconds since the command.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MEAN_OF = 20  # steps
PROBES = 10
COLUMNS = 3
SHOWN_MEAN_OF = 5  # steps, in the picture
LEFT_OUT = ("machine", "curve", "by_kind", "env", "seed", "steps", "success_before_ci95", "success_after_ci95")


def figures(result: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a run: its settings and times, the probes of the warm-up, means of steps, every evaluation."""
    curve = result["curve"]
    train = curve["train"]
    parts = [train[first : first + MEAN_OF] for first in range(0, len(train), MEAN_OF)]
    return {
        **{name: value for name, value in result.items() if name not in LEFT_OUT},
        "grpo_steps": len(train),
        "seconds_until_grpo": round(train[0]["time"] - train[0]["s/step"], 1) if train else None,
        "warmup_probes": [_rounded(point) for point in curve["warmup"][-PROBES:]],
        f"means_of_{MEAN_OF}_steps": [_rounded(_means(part)) for part in parts],
        "held_out": [_rounded(point) for point in curve["held_out"]],
    }


def _means(points: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each value over the points that have it; of step and time the last."""
    last = {name: points[-1][name] for name in ("step", "time")}
    names = dict.fromkeys(name for point in points for name in point if name not in last)
    found = {name: [point[name] for point in points if name in point] for name in names}
    return last | {name: sum(values) / len(values) for name, values in found.items()}


def _rounded(point: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in point.items()}


def draw(results: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """A panel for each run: points are evaluations, the thin line is GRPO's own episodes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    columns = min(COLUMNS, len(results))
    rows = -(-len(results) // columns)
    size = (3.4 * columns + 1.2, 3.4 * rows)
    style = {"sharey": True, "squeeze": False, "layout": "constrained"}
    figure, grid = plt.subplots(rows, columns, figsize=size, dpi=100, **style)
    for axes in grid.flat[len(results) :]:
        axes.remove()
    for axes, (title, result) in zip(grid.flat, results.items(), strict=False):
        train, held_out = result["curve"]["train"], result["curve"]["held_out"]
        own = [[p["success"] for p in train[max(0, i + 1 - SHOWN_MEAN_OF) : i + 1]] for i in range(len(train))]
        means = [sum(values) / len(values) for values in own]
        axes.plot([p["time"] for p in train], means, color="#bdbdbd", linewidth=1, label="sampled in training")
        kinds = dict.fromkeys(name for point in held_out for name in point if name.startswith("success/"))
        for name in ("success", *kinds) if held_out else ():
            points = [(point["time"], point[name]) for point in held_out if name in point]
            of_all = {"color": "black", "linewidth": 2, "zorder": 3} if name == "success" else {}
            axes.plot(*zip(*points, strict=True), "o-", markersize=3, label=name.removeprefix("success/"), **of_all)
        axes.set(xlabel="seconds since the command", ylim=(-0.02, 1.02), xlim=(0, None))
        axes.set_title(title, fontsize=9)
        axes.grid(alpha=0.3)
    for axes in grid[:, 0]:
        axes.set_ylabel("held-out success")
    figure.legend(*grid[0][0].get_legend_handles_labels(), fontsize=8, loc="outside right center")
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="files of learning --json")
    parser.add_argument("--what", required=True, help="what the runs are, in a sentence")
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    if len({path.stem for path in given.runs}) < len(given.runs):
        parser.error("two of the files have one name, and their names are those of the runs: rename one")
    results = {path.stem: json.loads(path.read_text()) for path in given.runs}
    machines = [result["machine"] for result in results.values()]
    same = all(machine == machines[0] for machine in machines)
    runs = {name: figures(result) for name, result in results.items()}
    if not same:
        runs = {name: {"machine": results[name]["machine"], **run} for name, run in runs.items()}
    written = {"what": given.what, **({"machine": machines[0]} if same else {}), "runs": runs}
    given.json.write_text(json.dumps(written, indent=1) + "\n")
    draw(results, given.json.with_suffix(".png"))


if __name__ == "__main__":
    main()
