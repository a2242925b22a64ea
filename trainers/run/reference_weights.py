"""The weights of the reference model: those that reinforcement learning starts from."""

from __future__ import annotations

from typing import Literal

from forge_env.core.errors import UserError
from forge_env.runtime.calls.answers import within
from trainers.run.reference import KEPT_AS, ReferenceActor
from trainers.run.trainer_actor import TrainerActor
from trainers.run.training_run import TrainingRun

KEPT_ADAPTER = "reference_adapter"
WRITING = "writing the weights of the reference model"


async def settle_reference(run: TrainingRun, kl_reference: Literal["", "generator", "model"]) -> None:
    """Give the reference model the weights that reinforcement learning starts from, and say what it is.

    Raises:
        UserError: when the file of a run that goes on is missing.
    """
    say = run.report.say
    if kl_reference == "generator":
        say("there is no reference model: ref_logprobs, and a KL penalty, are the generator's own logprobs")
    if kl_reference != "model":
        return
    if run.plan.lora:
        await _settle_adapters(run)
        return
    service, kept = run.services.reference, run.report.folder / KEPT_AS
    assert service is not None
    seconds = run.plan.deadlines.weights
    reference = service.deadline(seconds)
    origin = f"the model {run.results['model']}"
    if kept.exists():  # the run is resumed, and its policy is no longer the one that it started from
        await reference.fanout(ReferenceActor.load, str(kept))
        origin = f"the policy after the warm-up, read from {kept}"
    elif run.results["warmup_steps"]:
        if run.checkpoint is not None:
            raise UserError(f"--resume: {kept} is missing, the reference model that this run was trained against")
        await within(seconds, run.services.trainer.call_one(TrainerActor.write_weights, str(kept)), WRITING)
        await reference.fanout(ReferenceActor.load, str(kept))
        origin = f"the policy after the warm-up, kept as {kept}"
    if kept.exists():
        run.services.settle_reference = lambda actor: within(
            seconds, actor.call_one(ReferenceActor.load, str(kept)), "the reference"
        )
    place = "GPU" if run.plan.services.ref_model.with_gpus else "CPU"
    say(f"the reference model, on {place} and frozen, is {origin}")


async def _settle_adapters(run: TrainingRun) -> None:
    """Let the trainer keep the adapters that reinforcement learning starts from, where a warm-up has trained them."""
    assert run.plan.lora is not None
    kept, adapter = run.report.folder / KEPT_ADAPTER, run.plan.lora.adapter
    origin = f"with the adapter {adapter}" if adapter else "without its adapters"
    if run.results["warmup_steps"]:
        if run.checkpoint is not None and not kept.exists():
            raise UserError(f"--resume: {kept} is missing, the adapter that this run was trained against")
        keep = run.services.trainer.call_one(TrainerActor.keep_reference, str(kept), kept.exists())
        await within(run.plan.deadlines.weights, keep, WRITING)
        origin = f"with the adapter that it had after the warm-up, kept as {kept}"
    run.report.say(f"the reference model is the trainer's own, {origin}")
