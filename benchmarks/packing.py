"""Planning of micro-batches: padding, balance over ranks, and the time that it takes.

    python -m benchmarks.packing [--json FILE]

Rows are lognormal (median 600 tokens, sigma 0.8, at most 8192), sequences 8192 tokens long. The episodes of ten growing
rows are split over several micro-batches. For each mix and number of ranks: padding as a share of all tokens of all
sequences; micro-batches of all ranks; `imbalance`, how much more FLOPs than the mean the busiest rank has; `waiting`,
how much longer than the mean the ranks take in lock-step; and the same two for a plan that balances tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from trainers.batching.packing import Layout, plan_packed, row_cost

LENGTH, REPEATS = 8192, 5
Episodes = list[list[int]]


def lognormal(rows: int, per_episode: int, *, median: float = 600.0, sigma: float = 0.8) -> Episodes:
    """Episodes of `per_episode` rows each."""
    drawn = np.random.default_rng(0).lognormal(math.log(median), sigma, rows)
    lengths = np.clip(drawn, 1, LENGTH).astype(int).tolist()
    return [lengths[start : start + per_episode] for start in range(0, rows, per_episode)]


MIXES = {
    "1024 rows": lognormal(1024, 1),
    "1024 rows, 3 an episode": lognormal(1024, 3),
    "512 long rows": lognormal(512, 1, median=3000.0, sigma=0.5),
    "4096 rows": lognormal(4096, 1),
    "64 episodes of 10 growing rows": [[LENGTH * turn // 10 - e for turn in range(1, 11)] for e in range(64)],
}


def padding(plans: list[list[Layout]], episodes: Episodes) -> float:
    """Padding as a share of all tokens of all sequences."""
    area = sum(len(x) * max(sum(episodes[e][r] for e, r in s) for s in x) for plan in plans for x in plan)
    return 1 - sum(map(sum, episodes)) / area


def balance(plans: list[list[Layout]], episodes: Episodes) -> tuple[float, float]:
    """Imbalance and waiting, in FLOPs."""
    costs = np.zeros((len(plans), max(map(len, plans))))
    for rank, plan in enumerate(plans):
        costs[rank, : len(plan)] = [sum(row_cost(episodes[e][r]) for s in x for e, r in s) for x in plan]
    mean = costs.sum() / len(plans)
    return float(costs.sum(1).max() / mean - 1), float(costs.max(0).sum() / mean - 1)


def measure(episodes: Episodes, ranks: int) -> dict[str, Any]:
    """One line of the table."""
    given: dict[str, Any] = {"max_tokens": LENGTH, "pack_length": LENGTH, "ranks": ranks}
    taken = []
    for _ in range(REPEATS):
        start = time.process_time()
        plans = plan_packed(episodes, **given)
        taken.append(time.process_time() - start)
    imbalance, waiting = balance(plans, episodes)
    by_tokens = balance(plan_packed(episodes, **given, crossover=math.inf), episodes)
    return {
        "ranks": ranks,
        "padding": padding(plans, episodes),
        "micro_batches": sum(map(len, plans)),
        "imbalance": imbalance,
        "waiting": waiting,
        "imbalance_by_tokens": by_tokens[0],
        "waiting_by_tokens": by_tokens[1],
        "cpu_ms": 1000 * min(taken),
    }


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    path = parser.parse_args().json
    results = {name: [measure(episodes, ranks) for ranks in (1, 2, 4, 8)] for name, episodes in MIXES.items()}
    for name, lines in results.items():
        for line in lines:
            print(name, *(f"{k}={v:.4f}" if isinstance(v, float) else f"{k}={v}" for k, v in line.items()), sep="  ")
    if path:
        path.write_text(json.dumps({"machine": describe(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
