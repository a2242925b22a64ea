"""What set-ups of 0.6B to 32B parameters need on cards of 40, 80 and 141 GB, and whether they fit, by the plan alone.

    python -m benchmarks.fit [--json FILE]

Nothing is started, and no GPU is needed: each set-up is planned as `--dry-run` does it. Rows are at most 8,192 tokens
long, micro-batches are packed to 16,384, and all activations are checkpointed. The figures are estimates from the
formulas of `trainers/setup/memory.py`; `measured` is what a GPU's driver said of the fullest card, where that is known.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from trainers.grpo import GRPO, Config
from trainers.setup.card import GIB
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan
from trainers.setup.run_plan import RunPlan

COMMON = (
    "--generator.with_gpus", "--trainer.with_gpus", "--env.max_tokens=8192", "--env.max_turn_tokens=1024",
    "--training.packing", "--training.max_tokens_per_micro_batch=16384", "--training.activation_checkpoint=full",
)  # fmt: skip
OFFLOAD = "--training.cpu_offload"
SHARED, APART = "--launcher.share_gpus=yes", "--launcher.share_gpus=no"


def ranks(trainer: int, generator: int = 1, replicas: int = 1) -> tuple[str, ...]:
    """Processes of the trainer, and of the engines."""
    engines = (f"--generator.procs={generator}", f"--generator.num_replicas={replicas}")
    return (f"--trainer.procs={trainer}", *engines)


# model, cards, GiB of each, further options
SET_UPS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("Qwen/Qwen3-0.6B", 1, 40, (SHARED,)),
    ("Qwen/Qwen3-1.7B", 1, 80, (SHARED,)),
    ("Qwen/Qwen3-4B", 1, 80, (SHARED,)),
    ("Qwen/Qwen3-4B", 1, 141, (SHARED,)),
    ("Qwen/Qwen3-8B", 1, 80, (SHARED, OFFLOAD)),
    ("Qwen/Qwen3-8B", 1, 80, (SHARED, "--lora.rank=16")),
    ("Qwen/Qwen3-8B", 2, 80, (SHARED, *ranks(2))),
    ("Qwen/Qwen3-8B", 2, 80, (SHARED, OFFLOAD, *ranks(2))),
    ("Qwen/Qwen3-8B", 2, 80, (APART, OFFLOAD, "--training.staleness=1")),
    ("Qwen/Qwen3-8B", 2, 141, (SHARED, *ranks(2))),
    ("Qwen/Qwen3-8B", 2, 141, (APART, "--training.staleness=1")),
    ("Qwen/Qwen2.5-7B-Instruct", 4, 80, (SHARED, *ranks(4, 2, 2))),
    ("Qwen/Qwen2.5-7B-Instruct", 4, 40, (SHARED, OFFLOAD, *ranks(4, 2, 2))),
    ("meta-llama/Llama-3.1-8B", 8, 80, (APART, "--training.staleness=1", *ranks(4, 1, 4))),
    ("Qwen/Qwen3-14B", 8, 80, (SHARED, *ranks(8, 2, 4))),
    ("Qwen/Qwen3-32B", 8, 80, (SHARED, *ranks(8, 4, 2))),
    ("Qwen/Qwen3-32B", 8, 141, (SHARED, *ranks(8, 4, 2))),
    ("Qwen/Qwen3-32B", 16, 80, (APART, "--training.staleness=1", *ranks(8, 4, 2))),
)  # fmt: skip


def plan_of(model: str, cards: int, gib: int, options: tuple[str, ...]) -> RunPlan:
    """The plan of one set-up, as if this machine had so many cards."""
    given = [f"--launcher.gpus_per_host={cards}", f"--launcher.gpu_memory_gib={gib}"]
    return make_plan(read_config(Config, [f"--model={model}", *COMMON, *options, *given]), GRPO)


def measure(model: str, cards: int, gib: int, options: tuple[str, ...]) -> dict[str, Any]:
    """What the plan says of one set-up."""
    plan = plan_of(model, cards, gib, options)
    fullest = max(plan.cards, key=lambda card: card.worst)
    refusal = next((problem for problem in plan.problems if problem.startswith("a GPU has ")), "")
    return {
        "model": model,
        "cards": cards,
        "gib_of_a_card": gib,
        "options": " ".join(options),
        "fits": not refusal,
        "fullest_card": {
            phase: {process: round(size / GIB, 1) for process, size in parts.items()}
            for phase, parts in fullest.phases.items()
        },
        "fullest_card_gib": round(fullest.worst / GIB, 1),
        "engine": plan.about_engine,
        "remedy": refusal.rpartition("; ")[2],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    results = [measure(*set_up) for set_up in SET_UPS]
    for result in results:
        verdict = "fits" if result["fits"] else f"no: {result['remedy']}"
        where = f"{result['cards']} x {result['gib_of_a_card']} GiB"
        print(f"{result['model']:28} {where:12} {result['fullest_card_gib']:6} GiB  {verdict}")
        print(f"    {result['options']}")
        for phase, parts in result["fullest_card"].items():
            print(f"    {phase}: " + ", ".join(f"{process} {size}" for process, size in parts.items()))
    if options.json:
        options.json.write_text(json.dumps({"machine": describe(), "common": COMMON, "set_ups": results}, indent=2))


if __name__ == "__main__":
    main()
