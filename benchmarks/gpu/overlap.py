"""A step that samples and trains at once, against the longer of the two by itself: on two GPUs, one for each.

    python -m benchmarks.gpu.overlap [--shape 0.6B] [--steps 10] [--json FILE]

The same run twice, of a model with random weights: with `training.staleness` 0 a step samples its groups and then
trains on them, which gives the seconds of each; with 1 it trains on the groups of one step while those of the next are
sampled. The ratio is the median step of the second run over the longer median of the first. The first three steps of
each are left out: they compile. Options that it does not know are those of the runs.

--cpu runs the tiny model on a CPU instead, where both want the same cores: the same course, without a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.learning import graphics, play
from benchmarks.gpu.models import make_random_model, make_tokenizer
from benchmarks.machine import describe

LEFT_OUT = 3
OPTIONS = (
    "--env", "math", "--env.max_turn_tokens", "256", "--env.max_tokens", "1024", "--dataset.held_out", "8",
    "--training.batch_size", "32", "--training.packing", "--training.compile", "--training.learning_rate", "1e-6",
    "--training.max_tokens_per_micro_batch", "32768",
)  # fmt: skip
ON_CPU = ("--env", "math", "--dataset.held_out", "8", "--warmup.steps", "10")
RUN_S = 280.0


def measure(folder: Path, staleness: int, options: Sequence[str]) -> dict[str, float]:
    """Median seconds of a run's steps, and of their parts."""
    command = [sys.executable, "-m", "trainers.grpo", "--output", str(folder), "--training.staleness", str(staleness)]
    if code := play([*command, *options], RUN_S):
        sys.exit(code)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["phase"] == "train"][LEFT_OUT:]
    names = ("rollout", "train", "sync_stall", "step")
    found = {name: statistics.median(step[f"seconds/{name}"] for step in steps) for name in names}
    peaks = {f"peak_{name}": 0.0 for line in lines for name in line if name.endswith("/memory_used_bytes")}
    for line in lines:
        for name in peaks:
            peaks[name] = max(peaks[name], line.get(name.removeprefix("peak_"), 0.0))
    return found | {"tokens_per_second": statistics.median(step["tokens/s"] for step in steps)} | peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.6B")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json", type=Path)
    given, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temp:
        chosen = [*ON_CPU]
        if not given.cpu:
            model = Path(temp) / "model"
            make_random_model(given.shape, make_tokenizer(Path(temp) / "tokenizer"), model)
            chosen = ["--model", str(model), *OPTIONS]
        chosen += ["--steps", str(given.steps + LEFT_OUT), *options]
        apart = measure(Path(temp) / "apart", 0, chosen)
        at_once = measure(Path(temp) / "at_once", 1, chosen)
    result: dict[str, Any] = {
        "machine": describe() | graphics(),
        "settings": {"shape": "tiny" if given.cpu else given.shape, "steps": given.steps, "options": options},
        "apart": apart,
        "at_once": at_once,
        "ratio": at_once["step"] / max(apart["rollout"], apart["train"]),
    }
    print(json.dumps(result, indent=2))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
