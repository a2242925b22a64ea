"""Checkpoints of a run: when one is due, what is saved beside the trainer's state, and resuming."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from forge_env.core.errors import ForgeError
from forge_env.records.run_files import steps_of
from forge_env.utils.secret_values import masked
from forge_env.utils.threads import invoke
from trainers.checkpoints import Checkpoint, clean, path_of
from trainers.run.run import Run
from trainers.run.trainer_actor import TrainerActor
from trainers.setup.run_plan import RunPlan


def is_due(plan: RunPlan, step: int) -> bool:
    """Whether a checkpoint is saved after this step, which is the last of a window (`RunPlan.window`).

    It is if a multiple of `checkpoint.interval` lies within the window. After the run's last step a checkpoint is
    saved in any case, by the caller, and with `checkpoint.keep_best` after an evaluation that is the best so far.
    """
    interval, begin = plan.config.checkpoint.interval, (step - 1) // plan.window * plan.window
    return bool(interval) and step // interval > begin // interval and step < plan.steps


async def save_checkpoint(
    run: Run,
    step: int,
    place: Mapping[str, Any],
    *,
    texts: Mapping[str, Sequence[bytes]] | None = None,
    asynchronous: bool = False,
) -> None:
    """Save the trainer, and everything that the run needs to resume after `step`.

    Args:
        run: its trainer has taken `step` optimizer steps.
        place: state of the algorithm itself, as JSON; `restore` returns it.
        texts: further files of the checkpoint's folder: name -> lines.
        asynchronous: return when the state is copied; the files are written while training goes on.
    """
    extra = {
        "algorithm": run.plan.algorithm.name,
        "command": run.plan.algorithm.command,
        "config": masked(asdict(run.plan.config)),
        "version": run.weights.of_trainer,
        "tokens_generated": run.rollouts.tokens_generated,
        "tokens_trained": run.trainer.tokens_trained,
        "warmup_steps": run.warmup_steps,
        "place": place,
    }
    extra["report"] = await invoke(run.record.mark)  # it waits for the disk
    with run.record.span("checkpoint", f"step {step}"):
        await run.trainer.ranks.deadline(run.plan.deadlines.checkpoint, "the checkpoint").call_one(
            TrainerActor.save,
            str(path_of(run.record.folder, step)),
            step,
            extra,
            texts=texts,
            asynchronous=asynchronous,
            keep_last=run.plan.config.checkpoint.keep_last,
            spare=await invoke(run.evaluations.step_to_keep),
        )


@asynccontextmanager
async def last_checkpoint(run: Run, save: Callable[..., Awaitable[None]]) -> AsyncIterator[None]:
    """Enter it around what a run does after its last step: a checkpoint is written meanwhile.

    It is whole when the block is left, also by an error. Two kinds of weights are written before it is entered:
    offloaded weights, since the host may have no room for a copy; and the weights of a trainer of several processes,
    since a run on two GPUs failed at its end.

    Args:
        save: a checkpoint of it; takes `asynchronous`.
    """
    plan = run.plan
    is_copied = (
        plan.config.checkpoint.asynchronous
        and not plan.config.training.cpu_offload
        and plan.config.services.trainer.procs == 1
    )
    await save(asynchronous=is_copied)
    try:
        yield
    finally:
        if is_copied:
            with run.record.span("checkpoint", "writing the last one"):
                trainer = run.trainer.ranks.deadline(plan.deadlines.checkpoint, "the checkpoint")
                await trainer.call_one(TrainerActor.finish_saving)


async def until_stopped(
    run: Run,
    training: Coroutine[Any, Any, None],
    *,
    stop: Callable[[], None],
    steps: Callable[[], int],
    save: Callable[[], Awaitable[None]],
) -> None:
    """Run the training of a run. If its caller stops it, finish the optimizer step in progress and save a checkpoint.

    That has a deadline, and a second cancellation gives it up.

    Args:
        stop: lets `training` return soon, at a step after which the run can be resumed.
        save: a checkpoint of them.
    """
    task, on_stop = asyncio.ensure_future(training), asyncio.Event()
    waiting, keeps = asyncio.ensure_future(on_stop.wait()), False

    def end() -> None:
        stop()
        on_stop.set()

    async def save_before_last() -> None:
        if steps() < run.plan.steps:  # of the last step the caller saves one
            await save()

    try:
        with run.caller.stopped_by(end):
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not on_stop.is_set():
            return await task
        keeps = True
        await _keep(run, task, steps, save_before_last)
        if steps() < run.plan.steps:
            run.caller.check()
    except asyncio.CancelledError:
        if run.caller.is_stopping and not keeps and (on_stop.is_set() or not task.done()):
            stop()
            await _keep(run, task, steps, save)
        raise
    finally:
        waiting.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _keep(
    run: Run, task: asyncio.Future[None], steps: Callable[[], int], save: Callable[[], Awaitable[None]]
) -> None:
    record, seconds = run.record, run.plan.config.training.step_seconds + run.plan.deadlines.checkpoint
    record.say(f"a step in progress is finished and a checkpoint is kept, within {seconds:.0f} s")
    try:
        async with asyncio.timeout(seconds):
            await task
            if steps() and steps() not in steps_of(record.folder):
                await save()
    except TimeoutError:
        record.warn(f"warning: no checkpoint could be kept within {seconds:.0f} s")
    except (ForgeError, OSError) as error:
        record.warn(f"warning: no checkpoint could be kept: {error}")


async def restore(run: Run, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Restore the trainer and the report from a checkpoint; returns its `place`.

    The next `WeightSync.sync` publishes the weights under the version that they had. The record is cut back only after
    the trainer has loaded: until then, another checkpoint could be chosen.
    """
    extra = checkpoint.extra
    trainer = run.trainer.ranks.deadline(run.plan.deadlines.checkpoint, "loading the checkpoint")
    await trainer.call_one(TrainerActor.load, str(checkpoint.path))
    clean(run.record.folder, checkpoint.step)
    run.caller.from_step = 0
    run.record.go_back(extra["report"])
    run.record.begin(run)
    run.warmup_steps = extra["warmup_steps"]
    run.rollouts.tokens_generated, run.trainer.tokens_trained = extra["tokens_generated"], extra["tokens_trained"]
    run.weights.restore(extra["version"])
    run.record.say(f"{run.plan.algorithm.name} goes on after step {checkpoint.step}, from {checkpoint.path}")
    place: Mapping[str, Any] = extra["place"]
    return place
