"""Two environments at once against each alone, with the same number of its own groups, over several seeds.

    python -m benchmarks.mixture --seeds 0 1 2 3 4 --jobs 4 --out outputs/mixture

For each seed three runs: `--env math`, `--env code_exec`, and `--env math --env code_exec`, which has twice the steps
(or, with --doubled batch, twice the groups of a step). The folders of the runs stay below --out, and a run that is
complete there is not started again. For each environment the mean over the seeds of the difference in held-out success
is printed, with its 95% interval, and the time of the joint run as a multiple of the time of both others. All of it
goes to benchmarks/results/mixture.json (--results). Further options are handed to every run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.arms import play
from benchmarks.machine import describe
from forge_env.utils.statistics import clustered_mean

RESULTS = Path(__file__).parent / "results" / "mixture.json"
ALLOWED = -0.10
"""The interval of each mean difference must be above this."""
BATCH = 12


def arguments(environments: Sequence[str], seed: int, options: argparse.Namespace) -> list[str]:
    """Of one whole run."""
    several = len(environments)
    steps = options.steps * (several if options.doubled == "steps" else 1)
    batch = options.batch_size * (several if options.doubled == "batch" else 1)
    chosen = [f"--seed={seed}", *(f"--env={env}" for env in environments)]
    return [
        f"trainers.{options.algorithm}",
        *chosen,
        f"--steps={steps}",
        f"--training.batch_size={batch}",
        *options.more,
    ]


def figures(environments: Sequence[str], seeds: Sequence[int], runs: dict[tuple[str, int], Any]) -> dict[str, Any]:
    """The difference in success of each environment, and the time of the joint runs."""
    joint = "-".join(environments)
    by_env = {}
    for env in environments:
        alone = [runs[env, seed]["success_after"] for seed in seeds]
        mixed = [runs[joint, seed]["by_kind"][env]["success_after"] for seed in seeds]
        before = {
            "alone": [runs[env, seed]["success_before"] for seed in seeds],
            "joint": [runs[joint, seed]["by_kind"][env]["success_before"] for seed in seeds],
        }
        difference = clustered_mean([b - a for a, b in zip(alone, mixed, strict=True)])
        by_env[env] = {
            "alone": alone,
            "joint": mixed,
            "before": before,
            "groups": [runs[joint, seed]["mixture"][env]["groups"] for seed in seeds],
            "difference": difference.value,
            "ci95": difference.interval,
            "holds": len(seeds) > 1 and difference.low > ALLOWED,
        }
    seconds = [
        runs[joint, seed]["train_seconds"] / sum(runs[env, seed]["train_seconds"] for env in environments)
        for seed in seeds
    ]
    return {"environments": by_env, "seconds_ratio": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", action="append", help="an environment; math and code_exec by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--steps", type=int, default=120, help="of a run with one environment")
    parser.add_argument("--batch-size", type=int, default=BATCH, help="groups of a step of a run with one environment")
    parser.add_argument("--doubled", choices=("steps", "batch"), default="steps", help="in the joint run")
    parser.add_argument("--algorithm", default="grpo")
    parser.add_argument("--out", type=Path, default=Path("outputs/mixture"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    options, more = parser.parse_known_args()
    options.more, environments = more, options.env or ["math", "code_exec"]
    wanted = [(names, seed) for seed in options.seeds for names in [*([env] for env in environments), environments]]
    folders = {("-".join(names), seed): options.out / f"{'-'.join(names)}-{seed}" for names, seed in wanted}
    every = (arguments(names, seed, options) for names, seed in wanted)
    play(dict(zip(folders.values(), every, strict=True)), jobs=options.jobs)
    runs = {key: json.loads((folder / "summary.json").read_text()) for key, folder in folders.items()}
    result = figures(environments, options.seeds, runs)
    given = {name: value for name, value in vars(options).items() if name not in ("out", "jobs", "results")}
    written = {"machine": describe(), "options": given, **result}
    options.results.write_text(json.dumps(written, indent=2) + "\n")
    print("| environment | alone | joint | difference | above -0.10 |\n|---|---|---|---|---|")
    for env, found in result["environments"].items():
        (low, high), holds = found["ci95"], "yes" if found["holds"] else "no"
        difference = f"{found['difference']:+.3f} [{low:+.3f}, {high:+.3f}]"
        print(f"| {env} | {fmean(found['alone']):.3f} | {fmean(found['joint']):.3f} | {difference} | {holds} |")
    print(f"joint training took {fmean(result['seconds_ratio']):.2f} of the time of the others together")
    return 0


if __name__ == "__main__":
    sys.exit(main())
