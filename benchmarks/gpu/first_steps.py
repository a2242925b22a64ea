"""From the command to the first optimizer step, twice, and what the first steps lose to compiling new lengths.

    python -m benchmarks.gpu.first_steps [--shape 0.6B] [--steps 10] [--starts 2] [--json FILE] [OPTIONS OF THE RUN]

A packed, compiled run of `python -m trainers.grpo` on code_exec with a model of random weights: its answers have every
length up to a turn's limit, so that every micro-batch has a length of its own. The run is started again and again with
the same command, and a new output folder. The first start finds the compile caches of the machine as they are, and
the later ones find what the starts before them left there. For each start: the seconds of its phases, the seconds
of each step, and the reasons why torch compiled a block again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gpu.models import make_random_model, make_tokenizer
from benchmarks.gpu.runs import end_on_sigterm, play, records, startup_of
from benchmarks.machine import describe

OPTIONS = (
    "--env=code_exec", "--env.max_turns=3", "--env.max_turn_tokens=256", "--env.max_tokens=2048",
    "--dataset.held_out=16", "--training.steps=1000", "--training.packing", "--training.compile",
    "--training.max_tokens_per_micro_batch=16384", "--training.learning_rate=1e-6", "--metrics.tensorboard=false",
    "--training.reward=benchmarks.gpu.any_reward:any_reward",
)  # fmt: skip


def start(model: Path, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """One run from its command until so many steps are done."""
    options = [f"--model={model}", *OPTIONS, *given.options]
    seconds, trouble = play(folder, options, steps=given.steps, seconds=60 * given.minutes)
    steps = records(folder, "train")
    return {
        "trouble": trouble,
        "seconds": seconds,
        "startup": startup_of(folder),
        "seconds_of_each_step": [step["seconds/step"] for step in steps],
        "seconds_of_each_training": [step["seconds/train"] for step in steps],
        "compiled_again": compiled_again(folder / "logs"),
    }


def compiled_again(logs: Path) -> list[str]:
    """Why torch compiled a function again: the reasons in the order of the logs."""
    reasons = []
    for path in sorted(logs.glob("*")):
        text = path.read_text(errors="replace") if path.is_file() else ""
        reasons += re.findall(r"\[__recompiles\]\s+(- .{1,200})", text)
    return reasons


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.6B")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=4.0, help="of one start at most")
    parser.add_argument("--json", type=Path)
    given, options = parser.parse_known_args()
    given.options = options
    end_on_sigterm()
    os.environ["TORCH_LOGS"] = "recompiles"
    with tempfile.TemporaryDirectory() as temp:
        model = Path(temp) / "model"
        make_random_model(given.shape, make_tokenizer(Path(temp) / "tokenizer"), model)
        starts = []
        for number in range(given.starts):
            starts.append(start(model, Path(temp) / f"run{number}", given))
            print(json.dumps(starts[-1]), flush=True)
    settings = {name: value for name, value in vars(given).items() if name != "json"}
    result = {"machine": describe(), "settings": settings, "run": OPTIONS, "starts": starts}
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if any(item["trouble"] for item in starts) else 0


if __name__ == "__main__":
    raise SystemExit(main())
