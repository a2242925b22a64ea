"""Checkpoints of a run: when one is due, what is saved beside the trainer's state, and resuming."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from forge_env.runtime.calls.answers import within
from forge_env.utils.threads import invoke
from trainers.checkpoints import Checkpoint, clean, path_of
from trainers.run.trainer_actor import TrainerActor
from trainers.run.training_run import TrainingRun
from trainers.setup.run_plan import RunPlan


def is_due(plan: RunPlan, step: int) -> bool:
    """Whether a checkpoint is saved after this step, which is the last of a window (`RunPlan.window`).

    It is if a multiple of `checkpoint.interval` lies within the window. After the run's last step a checkpoint is
    saved in any case, by the caller.
    """
    interval, begin = plan.config.checkpoint.interval, (step - 1) // plan.window * plan.window
    return bool(interval) and step // interval > begin // interval and step < plan.steps


async def save_checkpoint(
    run: TrainingRun,
    step: int,
    place: Mapping[str, Any],
    *,
    texts: Mapping[str, Sequence[bytes]] | None = None,
    asynchronous: bool = False,
) -> None:
    """Save the trainer, and everything that the run needs to resume after `step`.

    Args:
        run: whose trainer has taken `step` optimizer steps.
        step: optimizer steps that are done.
        place: state of the algorithm itself, as JSON; `restore` returns it.
        texts: further files of the checkpoint's folder: name -> lines.
        asynchronous: return when the state is copied; the files are written while training goes on.
    """
    extra = {
        "algorithm": run.plan.algorithm,
        "config": asdict(run.config),
        "version": run.weights.of_trainer,
        "tokens_generated": run.rollouts.tokens_generated,
        "tokens_trained": run.tokens_trained,
        "results": run.results,
        "place": place,
    }
    extra["report"] = await invoke(run.report.mark)  # it waits for the disk
    folder = str(path_of(run.report.folder, step))
    call = run.services.trainer.call_one(
        TrainerActor.save,
        folder,
        step,
        extra,
        texts=dict(texts) if texts else None,
        asynchronous=asynchronous,
        keep_last=run.config.checkpoint.keep_last,
    )
    with run.report.timeline.span("checkpoint", f"step {step}"):
        await within(run.plan.deadlines.checkpoint, call, "the checkpoint")


async def restore(run: TrainingRun, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Restore the trainer and the report from a checkpoint; returns its `place`.

    The next `WeightSync.sync` publishes the weights under the version that they had. The record is cut back only after
    the trainer has loaded: until then, another checkpoint could be chosen.
    """
    saved = checkpoint.extra
    load = run.services.trainer.call_one(TrainerActor.load, str(checkpoint.path))
    await within(run.plan.deadlines.checkpoint, load, "loading the checkpoint")
    clean(run.report.folder, checkpoint.step)
    run.report.go_back(saved["report"])
    run.measure_system()
    run.results |= saved["results"]
    run.rollouts.tokens_generated, run.tokens_trained = saved["tokens_generated"], saved["tokens_trained"]
    run.weights.restore(saved["version"])
    run.report.say(f"{run.plan.algorithm} goes on after step {checkpoint.step}, from {checkpoint.path}")
    place: Mapping[str, Any] = saved["place"]
    return place
