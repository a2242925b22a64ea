"""Trainer: the model that a run trains, and the frozen models beside it. Every call has a deadline.

The reference model is frozen. It holds the policy that the run's reinforcement learning starts from: the model of
`model.path`, or, where a warm-up of the same run came first, the warmed-up weights. The trainer writes those, exact, to
`reference.safetensors` in the run's folder, where a run that is resumed finds them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from agents.renderer.served import texts_of_export
from agents.served_tokenizer import plain_config
from forge_env.core.errors import InvariantError
from forge_env.runtime.calls.answers import unless_gone, within
from forge_env.runtime.calls.endpoints import Endpoint
from forge_env.runtime.calls.handle import ServiceHandle
from forge_env.runtime.launcher import Spawned
from forge_env.runtime.process.ranks import AllRanks
from forge_env.runtime.service import Service
from trainers.batching.batch import Sample
from trainers.batching.packing import DEFAULT_CROSSOVER, even_shares, flops_crossover, row_cost
from trainers.families.shape import ModelShape
from trainers.run.run_record import RunRecord
from trainers.run.trainer_actor import TrainerActor
from trainers.run.weight_sync import WeightSync
from trainers.settings.distill import SELF
from trainers.setup.checks.resume_checks import REFERENCE, REFERENCE_ADAPTER
from trainers.setup.run_plan import RunPlan
from trainers.titan.settings import RateSettings

if TYPE_CHECKING:
    import numpy as np

    from trainers.objective.loss_call import Loss

STEP = "the trainer, which has training.step_seconds for a step,"


class Trainer:
    """Optimizer steps, logprobs and exports of one model.

    Args:
        weights: told of every change; it puts engines to sleep that have no room beside the trainer.
        model: the folder of the model that the run begins with.
        frozen: the reference model and the teachers, as `RunPlan.frozen_models` calls them, as far as the run has them.
            A trainer of adapters is its own reference model.
    """

    def __init__(
        self,
        plan: RunPlan,
        ranks: AllRanks[TrainerActor],
        weights: WeightSync,
        record: RunRecord,
        model: Path,
        frozen: Mapping[str, Service[TrainerActor]] = MappingProxyType({}),
    ) -> None:
        self.ranks, self.frozen = ranks, frozen
        self.tokens_trained = 0
        self._plan, self._weights, self._record, self._model = plan, weights, record, model
        self._reference_file = record.folder / REFERENCE  # the weights that the reference model gets, if any

    async def end_warmup(self) -> None:
        """Begin the training after a warm-up, with a fresh optimizer and the plan's learning rate."""
        await self.ranks.deadline(self._plan.deadlines.base, "the trainer").call_one(
            TrainerActor.begin, self._plan.rate
        )

    async def end_at(self, steps: int, rate: RateSettings) -> None:
        trainer = self.ranks.deadline(self._plan.deadlines.base, "the trainer")
        await trainer.call_one(TrainerActor.end_at, steps, rate)

    async def step(
        self,
        samples: Sequence[Sample],
        loss: Loss,
        *,
        old_is_present: bool = False,
        compare_replay: bool = False,
        distill_coef: float = 0.0,
    ) -> dict[str, float]:
        """Take one optimizer step, see `TitanTrainer.train_step`; returns its metrics."""
        await self._weights.make_room()
        self._weights.mark_ahead()
        with self._record.span("trainer", "optimizer step", samples=len(samples)):
            metrics = await self.ranks.deadline(self._plan.config.training.step_seconds, STEP).call_one(
                TrainerActor.step,
                samples,
                loss,
                temperature=self._plan.temperature,
                old_is_present=old_is_present,
                compare_replay=compare_replay,
                distill_coef=distill_coef,
            )
        self.tokens_trained += int(metrics.get("tokens", 0))
        return metrics

    async def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        return await self._logprobs(TrainerActor.logprobs, samples, "logprobs")

    async def reference_logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """The reference model's logprobs of the sampled targets, per sample."""
        if self._plan.lora:  # the trainer is its own reference model
            return await self._logprobs(TrainerActor.reference_logprobs, samples, "reference logprobs")
        return await self._ask("reference", samples)

    async def teacher_answers(self, teacher: str, samples: Sequence[Sample]) -> list[Any]:
        """A teacher's logprobs of the sampled targets or, with distill.top_k, its most likely tokens, per sample.

        `teacher` is its setting; the policy itself judges with its present weights.
        """
        top_k = self._plan.config.distill.top_k
        if teacher != SELF:
            models = self._plan.frozen_models.items()
            [what] = [what for what, (_, model) in models if model is self._plan.teachers[teacher]]
            return await self._ask(what, samples, top_k=top_k)
        if top_k:
            return await self._logprobs(TrainerActor.top_logprobs, samples, "own teacher", top_k)
        return await self._logprobs(TrainerActor.logprobs, samples, "own teacher")

    async def _ask(self, what: str, samples: Sequence[Sample], *, top_k: int = 0) -> list[Any]:
        await self._weights.make_room()
        service = self.frozen[what].deadline(self._plan.config.training.step_seconds)
        with self._record.span(f"{what} model", "logprobs", samples=len(samples)):
            name, model = self._plan.frozen_models[what]
            replicas = getattr(self._plan.config.services, name).num_replicas
            return await ask_frozen(
                service, samples, self._plan.temperature, replicas=replicas, shape=model.shape, top_k=top_k
            )

    async def _logprobs(
        self, endpoint: Endpoint[TrainerActor, ..., list[Any] | None], samples: Sequence[Sample], what: str, *more: int
    ) -> list[Any]:
        await self._weights.make_room()
        ranks = self.ranks.deadline(self._plan.config.training.step_seconds, STEP)
        with self._record.span("trainer", what, samples=len(samples)):
            return await ranks.call_one(endpoint, samples, self._plan.temperature, *more)

    async def export(self) -> None:
        """Write the model as a Hugging Face folder, and adapters as a PEFT folder, too. Both have the chat template and
        the sampling of the training, so that others who serve them use them as they were trained."""
        await self._weights.make_room()
        plan, record, model = self._plan, self._record, self._model
        texts, difference = texts_of_export(
            model, plan.config.env.thinking, plan.config.renderer.tools, temperature=plan.temperature
        )
        if difference:
            record.say(
                "warning: the chat template of the exported model does not render what the training did, so that the "
                f"model may do worse behind a server: {difference}"
            )
        if plan.model.tokenizer:
            texts["tokenizer_config.json"] = plain_config(model)
        with record.span("trainer", "export"):
            ranks = self.ranks.deadline(plan.deadlines.weights, "the export")
            await ranks.call_one(TrainerActor.export_hf, str(record.folder / "model"), texts=texts)
        if plan.lora:
            ranks = self.ranks.deadline(plan.deadlines.weights, "the export of the adapter")
            has_own = model.is_relative_to(record.folder)  # made for the run, or with new rows
            folder, base = str(record.folder / "adapter"), str(model.resolve()) if has_own else plan.model.path
            await ranks.call_one(TrainerActor.export_adapter, folder, base=base, texts=texts)

    # ---- the reference model ----

    async def load_reference(self, kl_reference: Literal["", "generator", "model"], *, is_warm: bool) -> None:
        """Give the reference model the weights that reinforcement learning starts from, and say what it is.

        `is_warm` says that a warm-up has changed them.
        """
        if kl_reference == "generator":
            self._record.say(
                "there is no reference model: ref_logprobs, and a KL penalty, are the generator's own logprobs"
            )
        elif kl_reference == "model" and self._plan.lora:
            origin = await self._settle_adapters(self._plan.lora.adapter, is_warm)
            self._record.say(f"the reference model is the trainer's own, {origin}")
        elif kl_reference == "model":
            origin = await self._settle_model(is_warm)
            place = "GPU" if self._plan.config.services.ref_model.with_gpus else "CPU"
            self._record.say(f"the reference model, on {place} and frozen, is {origin}")

    async def _settle_model(self, is_warm: bool) -> str:
        """Give a reference model of its own the warmed-up weights; returns their origin, as words."""
        reference = self.frozen["reference"]
        seconds, what = self._plan.deadlines.weights, "read from"
        if not self._reference_file.exists():  # else the run is resumed, and its policy has changed
            if not is_warm:
                return f"the model {self._model}"
            ranks, what = self.ranks.deadline(seconds, "writing the weights of the reference model"), "kept as"
            await ranks.call_one(TrainerActor.write_weights, str(self._reference_file))
        await reference.deadline(seconds).fanout(TrainerActor.read_weights, str(self._reference_file))
        reference.on_ready = self._hand_over
        return f"the policy after the warm-up, {what} {self._reference_file}"

    async def _settle_adapters(self, adapter: str, is_warm: bool) -> str:
        """Let the trainer keep the adapters after a warm-up; returns what its reference is."""
        if not is_warm:
            return f"with the adapter {adapter}" if adapter else "without its adapters"
        folder = self._record.folder / REFERENCE_ADAPTER
        ranks = self.ranks.deadline(self._plan.deadlines.weights, "writing the weights of the reference model")
        await ranks.call_one(TrainerActor.keep_reference, str(folder), is_written=folder.exists())
        return f"with the adapter that it had after the warm-up, kept as {folder}"

    async def _hand_over(self, replica: Spawned) -> None:
        load = replica.call_one(TrainerActor.read_weights, str(self._reference_file))
        await unless_gone(within(self._plan.deadlines.weights, load, "the reference"), replica.dead)


async def ask_frozen(
    service: ServiceHandle[TrainerActor],
    samples: Sequence[Sample],
    temperature: float,
    *,
    replicas: int,
    shape: ModelShape | None = None,
    top_k: int = 0,
) -> list[Any]:
    """A frozen model's logprobs of the sampled targets, per sample, in order.

    The samples are split by FLOPs into a share for each replica of the plan, even if a replica is down at the moment:
    the shares do not depend on that.

    Args:
        shape: of the model, where its sizes are known.
        top_k: answer with the ids and logprobs of so many tokens, see `TitanTrainer.top_logprobs`; 0 does not.
    """
    crossover = flops_crossover(shape) if shape else DEFAULT_CROSSOVER
    costs = [sum(row_cost(len(row.token_ids), crossover) for row in sample.rows) for sample in samples]

    async def ask(share: list[int]) -> Sequence[Any]:
        own_samples = [samples[index] for index in share]
        result: Sequence[Any] | None
        if top_k:
            result = await service.route(TrainerActor.top_logprobs, own_samples, temperature, top_k)
        else:
            result = await service.route(TrainerActor.logprobs, own_samples, temperature)
        if result is None or len(result) != len(share):
            raise InvariantError(f"a frozen model gave no logprobs for {len(share)} samples")
        return result

    shares = even_shares(costs, replicas)
    answers = await asyncio.gather(*map(ask, shares))
    by_sample = {
        index: values
        for share, answer in zip(shares, answers, strict=True)
        for index, values in zip(share, answer, strict=True)
    }
    return [by_sample[index] for index in range(len(samples))]
