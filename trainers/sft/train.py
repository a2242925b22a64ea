"""SFT: supervised steps on an environment's own demonstrations, on recorded Episodes, or on a chat dataset.

    python -m trainers.sft --env code_exec --steps 150
    python -m trainers.sft --sft.data outputs/RUN/episodes/train.jsonl --model outputs/RUN/model
    python -m trainers.sft --sft.data chats.jsonl --model Qwen/Qwen3-0.6B --sft.epochs 2

The renderer of the rollouts turns conversations into tokens. The loss is on what the assistant wrote, up to and with
its end of turn, and on nothing else. With `--sft.data` no environment is started, unless `--env` names one to measure
success in at the end.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from forge_env.core.errors import ServiceError, UserError
from trainers.sft.config import Config

if TYPE_CHECKING:
    from trainers.batching.batch import Sample
    from trainers.run.run import Run
    from trainers.run.training_run import TrainingRun
    from trainers.setup.run_plan import RunPlan
    from trainers.sft.data import SFTData

METRICS = ("loss", "grad_norm", "learning_rate", "tokens", "episodes", "skipped", "seconds")
"""The recorded values of a step. There is no ratio, because nobody sampled."""


async def train(plan: RunPlan, caller: TrainingRun) -> None:
    """Minimise -log p(token) over the assistant's tokens, token mean; then measure."""
    assert isinstance(plan.config, Config)
    if plan.config.sft.data:
        await _train_on_data(plan, plan.config, caller)
    else:
        await _train_on_demonstrations(plan, caller)


async def _train_on_demonstrations(plan: RunPlan, caller: TrainingRun) -> None:
    from trainers.run.open_run import open_run
    from trainers.run.warmup import warm_up

    async def phases(run: Run) -> None:
        start_time = time.perf_counter()
        await warm_up(run, plan.steps, around=run.first_step)
        values: dict[str, object] = {"train_seconds": time.perf_counter() - start_time}
        values |= await _measure(run)
        await _finish(run, {})
        run.summarise(values)

    caller.methods["warmup"] = caller.methods["train"]
    async with open_run(plan, caller) as run:
        await run.launcher.guard(phases(run))


async def _train_on_data(plan: RunPlan, config: Config, caller: TrainingRun) -> None:
    from trainers.run.open_run import open_run
    from trainers.sft.data import SFTData

    sft, tools = config.sft, config.renderer.tools
    data = SFTData(sft, training=config.training, env=config.env, model_size=config.model.size, tools=tools)

    async def phases(run: Run) -> None:
        run.record.say(f"{sft.data}: {data.about}")
        place = await _begin(run, data)
        await _train(run, data, place)
        if sft.streaming:
            run.record.say(f"{sft.data}, as far as it was read: {data.left_out}")
        before = place["held_out_loss"]
        after = await held_out_loss(run, data.held_out)
        if before is not None and after is not None:
            run.record.say(
                f"loss on {len(data.held_out)} held-out conversations: {before:.4f} before, {after:.4f} after"
            )
        try:
            values = await _measure(run) if config.env.name else {}
        except ServiceError:
            await _finish(run, place)  # what was trained is kept
            raise
        await _finish(run, place)
        run.summarise(
            {
                "data": sft.data,
                "left_out": data.left_out.total,
                "held_out_conversations": len(data.held_out),
                "held_out_loss_before": before,
                "held_out_loss_after": after,
                "train_seconds": place["seconds"],
                **values,
            }
        )

    async with open_run(plan, caller, data) as run:
        await run.launcher.guard(phases(run))


async def _begin(run: Run, data: SFTData) -> dict[str, Any]:
    """Begin to train, or go on after the checkpoint.

    Returns:
        State that a checkpoint keeps: "held_out_loss" before the first step, "seconds" of training, and the number of
        steps that were "taken", and not skipped.
    """
    from trainers.run.checkpointing import restore

    if run.checkpoint is None:
        with run.record.phase("held-out loss"):
            return {"held_out_loss": await held_out_loss(run, data.held_out), "seconds": 0.0, "taken": 0}
    with run.record.phase("checkpoint"):
        place = dict(await restore(run, run.checkpoint))
    await _evaluate(run, run.checkpoint.step)  # if it was the last step of a shorter run
    return place


async def _train(run: Run, data: SFTData, place: dict[str, Any]) -> None:
    """Take every optimizer step, or the steps after the checkpoint; a signal ends it between two steps."""
    from forge_env.runtime.calls.answers import within
    from forge_env.utils.threads import invoke
    from trainers.objective.plain_losses import SFTLoss
    from trainers.run.checkpointing import is_due, save_checkpoint, until_stopped
    from trainers.run.warmup import SkippedSteps

    loss, is_stopped = SFTLoss(), asyncio.Event()
    step = run.checkpoint.step if run.checkpoint else 0
    start_time = time.perf_counter() - place["seconds"]
    run.record.follow("train", title="sft", total=run.plan.steps, names=("loss", "tokens"), since=start_time)
    batches = itertools.islice(data.batches(), step, None)
    most, rate = run.plan.config.training.signal_error, "training.learning_rate"
    steps = SkippedSteps(phase="the run", rate=rate, most=most, taken=place["taken"], skipped=step - place["taken"])

    async def training() -> None:
        nonlocal step
        while step < run.plan.steps and not is_stopped.is_set():
            # In a thread: the next rows of a stream may come over the network.
            with run.record.phase("first batch"):
                reading = asyncio.to_thread(next, batches)
                batch = await within(run.plan.config.training.step_seconds, reading, "reading the data")
            async with run.first_step():
                metrics = await run.trainer.step(batch, loss)
            step += 1
            steps.add(metrics)
            place["taken"] = steps.taken
            run.record.metrics("train", step, {name: metrics[name] for name in METRICS if name in metrics})
            place["seconds"] = time.perf_counter() - start_time
            if not is_stopped.is_set():
                try:
                    await _evaluate(run, step)
                except ServiceError:
                    await save()  # what was trained is kept
                    raise
            if is_due(run.plan, step) or await invoke(run.evaluations.is_best, step):
                await save_checkpoint(run, step, place, asynchronous=run.plan.config.checkpoint.asynchronous)
            if step == run.plan.steps:
                steps.check(metrics)

    async def save() -> None:
        await save_checkpoint(run, step, place)

    await until_stopped(run, training(), stop=is_stopped.set, steps=lambda: step, save=save)


async def _evaluate(run: Run, step: int) -> None:
    """Measure the weights of a step in the environment, if this is wanted and not done yet."""
    if run.evaluations.is_due(step) and step not in run.evaluations.by_step:
        await run.weights.sync(steps=step)
        await run.evaluations.evaluate_step(step)


async def held_out_loss(run: Run, samples: Sequence[Sample]) -> float | None:
    """The mean negative log-likelihood of the assistant's tokens of these samples; None without samples."""
    if not samples:
        return None
    logprobs = await run.trainer.logprobs(samples)
    values = list(itertools.chain.from_iterable(of_sample.tolist() for of_sample in logprobs))
    if not math.isfinite(loss := -sum(values) / len(values)):
        raise UserError(
            f"the model's loss on {len(samples)} held-out conversations is {loss}: its weights are too large to "
            "compute with; take another model, or a lower --training.learning_rate"
        )
    return loss


async def _measure(run: Run) -> dict[str, object]:
    """Put the weights into the engine, and measure on held-out tasks; returns the result for the summary."""
    from trainers.run.run import SAMPLES_SHOWN

    await run.weights.sync(steps=run.plan.steps)
    after = await run.evaluations.evaluate("after", step=run.plan.steps)
    run.record.samples(f"the first {SAMPLES_SHOWN} held-out tasks after sft", after.episodes[:SAMPLES_SHOWN])
    run.record.say(f"held-out success after sft: {after}")
    if greedy := run.evaluations.greedy_change:
        run.record.say(greedy)
    run.evaluations.say_parts(after)
    by_kind = run.kinds.changes(None, after)
    return {
        **after.summary("after"),
        "evaluation_episodes": len(after.episodes),
        "evaluation_timeouts": after.timeouts,
        **({"by_kind": {name: change.summary() for name, change in by_kind.items()}} if by_kind else {}),
    }


async def _finish(run: Run, place: Mapping[str, Any]) -> None:
    from trainers.run.checkpointing import last_checkpoint, save_checkpoint

    async with last_checkpoint(run, partial(save_checkpoint, run, run.plan.steps, place)):
        await run.trainer.export()
    run.record.say(f"checkpoints {run.record.folder / 'checkpoints'}, model {run.record.folder / 'model'}")
