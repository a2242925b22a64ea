"""SFT: supervised steps on an environment's own demonstrations, the warm-up on its own.

    python -m trainers.sft --env code_exec --steps 150

The expert's episodes are token-exact, so the loss is on what the expert wrote and on nothing else.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

from forge_env.errors import UserError
from trainers.config import RunConfig, TrainingConfig, WarmupConfig


@dataclass(kw_only=True)
class Config(RunConfig):
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(steps=150))
    warmup: WarmupConfig = field(default_factory=lambda: WarmupConfig(until_success=1.0))


async def train(config: Config) -> None:
    """Minimise -log p(token) over the expert's tokens, token mean; then measure on held-out tasks."""
    from trainers.run import SAMPLES_SHOWN, Run, open_run

    if config.training.loss or config.training.advantages:
        raise UserError("--loss and --advantages are for the policy gradients: trainers.sft has its own loss")

    async def phases(run: Run) -> None:
        started = time.perf_counter()
        await run.warm_up(config.training.steps)
        train_seconds = time.perf_counter() - started
        await run.sync_weights()
        after = await run.evaluate("after", run.held_out)
        await run.finish(config.training.steps)
        run.report.samples(f"the first {SAMPLES_SHOWN} held-out tasks after sft", after.episodes[:SAMPLES_SHOWN])
        run.summarise(
            {
                "success_after": after.success_rate if after.valid else None,
                "success_after_ci95": after.interval,
                "evaluation_episodes": len(after.episodes),
                "train_seconds": train_seconds,
            }
        )
        run.report.say(f"held-out success after sft: {after}")
        run.report.say(f"checkpoint {run.report.folder / 'checkpoint'}, model {run.report.folder / 'model'}")

    async with open_run("sft", config) as run:
        await run.services.guard(phases(run))


def main() -> int:
    from trainers.entry import main as enter

    return enter(Config, train)


if __name__ == "__main__":
    sys.exit(main())
