"""SFT: supervised steps on an environment's own demonstrations, on recorded Episodes, or on a chat dataset.

    python -m trainers.sft --env code_exec --steps 150
    python -m trainers.sft --sft.data outputs/RUN/episodes/train.jsonl --model outputs/RUN/model
    python -m trainers.sft --sft.data chats.jsonl --model Qwen/Qwen3-0.6B --sft.epochs 2

Conversations become tokens through the renderer of the rollouts, and the loss is on what the assistant wrote, up to and
with its end of turn, and on nothing else. With `--sft.data` no environment is started, unless `--env` names one to
measure success in at the end.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forge_env.core.errors import UserError
from trainers.sft.config import Config

if TYPE_CHECKING:
    from trainers.batching.batch import Sample
    from trainers.run.run import Run
    from trainers.sft.data import SFTData

DEMONSTRATION_STEPS = 150
METRICS = ("loss", "grad_norm", "learning_rate", "tokens", "episodes", "skipped", "seconds")
"""What of a step is recorded: there is no ratio where nobody sampled."""


async def train(config: Config) -> None:
    """Minimise -log p(token) over the assistant's tokens, token mean; then measure."""
    if config.training.loss or config.training.advantages or config.training.reward:
        raise UserError("--loss, --advantages and --reward are for the policy gradients: trainers.sft has its own loss")
    if not config.sft.data and (config.resume or config.checkpoint.interval or config.evaluation.interval):
        raise UserError(
            "--resume, --checkpoint.interval and --evaluation.interval need --sft.data: on demonstrations trainers.sft "
            "saves one checkpoint, and evaluates, after its last step"
        )
    if config.sft.data and config.evaluation.interval and not config.env.name:
        raise UserError("--evaluation.interval needs an environment to measure success in: name it with --env")
    if config.sft.data:
        await _train_on_data(config)
    else:
        config.env.name = config.env.name or "code_exec"
        config.training.steps = config.training.steps or DEMONSTRATION_STEPS
        await _train_on_demonstrations(config)


async def _train_on_demonstrations(config: Config) -> None:
    from trainers.run.run import open_run
    from trainers.run.warmup import warm_up

    async def phases(run: Run) -> None:
        started = time.perf_counter()
        await warm_up(run, config.training.steps, around=run.first_step)
        values: dict[str, object] = {"train_seconds": time.perf_counter() - started}
        values |= await _measure(run)
        await _finish(run, {})
        run.summarise(values)

    async with open_run("sft", config) as run:
        await run.services.guard(phases(run))


async def _train_on_data(config: Config) -> None:
    from trainers.run.run import open_run
    from trainers.sft.data import SFTData

    _check(config)
    data = SFTData(config)
    config.training.learning_rate = config.training.learning_rate or (1e-5 if config.model.path else 3e-3)
    # On a CPU attention is dense, and short rows in long sequences cost twice the time that padding does.
    config.training.packing = config.training.packing or config.services.trainer.with_gpus

    async def phases(run: Run) -> None:
        run.report.say(f"{config.sft.data}: {data.found}")
        place = await _steps(run, data)
        before = place["held_out_loss"]
        after = await held_out_loss(run, data.held_out)
        if before is not None and after is not None:
            run.report.say(
                f"loss on {len(data.held_out)} held-out conversations: {before:.4f} before, {after:.4f} after"
            )
        values = await _measure(run) if config.env.name else {}
        await _finish(run, place)
        run.summarise(
            {
                "data": config.sft.data,
                "left_out": data.left_out.total,
                "held_out_conversations": len(data.held_out),
                "held_out_loss_before": before,
                "held_out_loss_after": after,
                "train_seconds": place["seconds"],
                **values,
            }
        )

    async with open_run("sft", config, data) as run:
        await run.services.guard(phases(run))


async def _steps(run: Run, data: SFTData) -> dict[str, Any]:
    """Every optimizer step, or those after the checkpoint.

    Returns:
        What a checkpoint keeps: "held_out_loss" before the first step, and "seconds" of training.
    """
    from forge_env.runtime.launcher import within
    from trainers.objective.plain_losses import SFTLoss

    training, loss = run.config.training, SFTLoss()
    begin = run.services.trainer.begin.call_one(
        learning_rate=training.learning_rate,
        warmup_steps=training.warmup_steps,
        lr_schedule=training.lr_schedule,
        total_steps=training.steps,
    )
    await within(run.deadlines.base, begin, "the trainer")
    place: dict[str, Any]
    if run.checkpoint is None:
        with run.startup.phase("held-out loss"):
            done, place = 0, {"held_out_loss": await held_out_loss(run, data.held_out), "seconds": 0.0}
    else:
        with run.startup.phase("checkpoint"):
            done, place = run.checkpoint.step, dict(await run.restore(run.checkpoint))
        await _evaluate(run, done)  # where it was the last step of a shorter run
    started = time.perf_counter() - place["seconds"]
    run.report.follow("train", title="sft", total=training.steps, names=("loss", "tokens"), since=started)
    batches = itertools.islice(data.batches(), done, None)
    for step in range(done + 1, training.steps + 1):
        # In a thread: of a stream the next rows may have to come over the network.
        with run.startup.phase("first batch"):
            batch = await within(training.step_seconds, asyncio.to_thread(next, batches), "reading the data")
        async with run.first_step():
            metrics = await run.train_step(batch, loss)
        run.report.metrics("train", step, {name: metrics[name] for name in METRICS if name in metrics})
        place["seconds"] = time.perf_counter() - started
        await _evaluate(run, step)
        if run.is_due(step):
            version = run.version + (not run.is_evaluated(step))  # that which the weights have, or will have
            await run.save_checkpoint(step, place, version=version, asynchronous=run.config.checkpoint.asynchronous)
    return place


async def _evaluate(run: Run, step: int) -> None:
    """Measure the weights of a step in the environment, if that is wanted and was not done yet."""
    if run.is_evaluated(step) and step not in run.evaluations:
        await run.sync_weights()
        await run.evaluate_step(step)


async def held_out_loss(run: Run, samples: Sequence[Sample]) -> float | None:
    """The mean negative log-likelihood of the assistant's tokens of these samples; None without samples."""
    from forge_env.runtime.launcher import within

    if not samples:
        return None
    call = run.services.trainer.logprobs.call_one(samples, 1.0)
    found = await within(run.config.training.step_seconds, call, "the trainer")
    values = list(itertools.chain.from_iterable(found))
    return -sum(values) / len(values)


async def _measure(run: Run) -> dict[str, object]:
    """Put the weights into the engine, and measure on held-out tasks; returns what the summary says of it."""
    from trainers.run.run import SAMPLES_SHOWN

    await run.sync_weights()
    after = await run.evaluate("after", step=run.config.training.steps)
    run.report.samples(f"the first {SAMPLES_SHOWN} held-out tasks after sft", after.episodes[:SAMPLES_SHOWN])
    run.report.say(f"held-out success after sft: {after}")
    return {
        "success_after": after.success_rate if after.attempts else None,
        "success_after_ci95": after.interval,
        "success_after_without_timeouts": after.without_timeouts.value if after.valid else None,
        "evaluation_episodes": len(after.episodes),
        "evaluation_timeouts": after.timeouts,
    }


async def _finish(run: Run, place: Mapping[str, Any]) -> None:
    # With an environment the weights have been measured, and so have a version.
    await run.save_checkpoint(run.config.training.steps, place, version=max(0, run.version))
    await run.export()
    run.report.say(f"checkpoints {run.report.folder / 'checkpoints'}, model {run.report.folder / 'model'}")


def _check(config: Config) -> None:
    sft = config.sft
    if sft.streaming and not config.training.steps:
        raise UserError("with --sft.streaming the length of the data is not known: say with --steps when to end")
    if not 0.0 <= sft.held_out_share < 1.0:
        raise UserError(f"--sft.held_out_share is {sft.held_out_share}; it must be at least 0 and below 1")
    for name, value, least in (("epochs", sft.epochs, 1), ("tokens_per_step", sft.tokens_per_step, 0)):
        if value < least:
            raise UserError(f"--sft.{name} is {value}; it must be at least {least}")


def main() -> int:
    from trainers.setup.entry import main as enter

    return enter(Config, train)
