"""TRL's GRPO on the word problems of benchmarks/real_model.py, with vLLM in its process, on one GPU.

    python -m benchmarks.rivals.trl_words MODEL OUTPUT [--steps 80] [--learning-rate 5e-5]

MODEL is the folder that benchmarks/real_model.py makes. OUTPUT gets the trained model, `steps.jsonl` and
`results.json`: seconds on the clock from this process's start, the reward, and sampled tokens/s of whole steps.

The settings are the fastest of those that were tried in an hour: Liger's loss (142 s for steps 1 to 52) before
`torch_compile` (slower), and before TRL's defaults; the batch, lengths, rates and clipping are those of our run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

BEGUN = time.time()
PROMPTS, SIBLINGS, TOKENS = 32, 16, 128
SETTINGS: dict[str, Any] = {
    "warmup_steps": 10, "lr_scheduler_type": "linear", "optim": "adamw_torch_fused",
    "per_device_train_batch_size": 128, "gradient_accumulation_steps": PROMPTS * SIBLINGS // 128,
    "num_generations": SIBLINGS, "max_completion_length": TOKENS, "temperature": 1.0, "beta": 0.0, "epsilon": 0.2,
    "epsilon_high": 0.28, "loss_type": "dapo", "bf16": True, "tf32": True, "gradient_checkpointing": False,
    "logging_steps": 1, "report_to": "none", "save_strategy": "no", "seed": 0, "use_vllm": True,
    "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3, "vllm_max_model_length": 512, "use_liger_kernel": True,
}  # fmt: skip
WINDOWS = ((1, 4), (13, 16), (25, 28), (37, 40), (49, 52))


def train(model: str, output: Path, steps: int, rate: float) -> list[dict[str, Any]]:
    """Train, and return what each step logged, with its end in seconds."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from envs.math.rewards import MathReward
    from forge_env.rollout.factory import make

    grade, steps_of_run = MathReward(), []
    tasks = make("math", calculator=False, level=0).tasks("train", count=PROMPTS * steps, seed=0)
    system = {"role": "system", "content": "Answer with a number."}
    rows = [{"prompt": [system, task.prompt[-1]], "target": task.target} for task in tasks]

    def right(completions: list[Any], target: list[str], **_: Any) -> list[float]:
        return [float(grade("", one[0]["content"], wanted)) for one, wanted in zip(completions, target, strict=True)]

    class Note(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            steps_of_run.append({"step": state.global_step, "end": time.time() - BEGUN, **logs})

    config = GRPOConfig(
        output_dir=str(output), max_steps=steps, learning_rate=rate, model_init_kwargs={"dtype": "float32"}, **SETTINGS
    )
    trainer = GRPOTrainer(
        model=model, reward_funcs=right, args=config, train_dataset=Dataset.from_list(rows), callbacks=[Note()]
    )
    trainer.train()
    trainer.save_model(str(output / "model"))
    return [step for step in steps_of_run if "reward" in step]


def figures(steps: list[dict[str, Any]]) -> dict[str, Any]:
    ends = [step["end"] for step in steps]
    last = min(52, len(steps))
    sampled = sum(step["completions/mean_length"] for step in steps[1:last]) * PROMPTS * SIBLINGS
    return {
        "steps": len(steps),
        "first_step_ends": ends[0],
        "seconds_of_steps": [1, last, ends[last - 1] - ends[0]],
        "median_step_2_on": statistics.median(after - before for before, after in itertools.pairwise(ends)),
        "reward": {
            f"{first}-{end}": statistics.mean(step["reward"] for step in steps[first - 1 : end])
            for first, end in WINDOWS if end <= len(steps)
        },
        "sampled_tokens": sampled,
        "tokens_per_second": sampled / (ends[last - 1] - ends[0]),
        "settings": SETTINGS,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    steps = train(options.model, options.output, options.steps, options.learning_rate)

    from importlib.metadata import version

    from benchmarks.machine import describe

    (options.output / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    packages = {name: version(name) for name in ("trl", "vllm", "accelerate", "liger-kernel")}
    written = {**figures(steps), "packages": packages, "machine": describe()}
    (options.output / "results.json").write_text(json.dumps(written, indent=2) + "\n")
    print(json.dumps(written, indent=2))


if __name__ == "__main__":
    main()
