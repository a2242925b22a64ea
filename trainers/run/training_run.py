"""TrainingRun: a run whose services are up. `trainers.run.open_run.open_run` makes one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.renderer.served import texts_of_export
from forge_env.core.types import Task
from forge_env.evaluation.kinds import Kinds
from forge_env.runtime.calls.answers import within
from trainers.batching.batch import Sample
from trainers.checkpoints import Checkpoint
from trainers.metrics.report import Report
from trainers.metrics.system import SystemMetrics
from trainers.run.evaluations import Evaluations
from trainers.run.reference_calls import ask_reference
from trainers.run.rollouts import Rollouts
from trainers.run.run_record import add_fact, versions
from trainers.run.services import Services
from trainers.run.startup import Startup
from trainers.run.trainer_actor import TrainerActor
from trainers.run.weight_sync import WeightSync
from trainers.setup.run_plan import RunPlan

if TYPE_CHECKING:
    import numpy as np

SAMPLES_SHOWN = 3
STEP = "the trainer, which has training.step_seconds for a step,"


@dataclass(kw_only=True)
class TrainingRun:
    """The plan of a run, its services, and the operations that all algorithms need."""

    plan: RunPlan
    report: Report
    startup: Startup
    services: Services
    rollouts: Rollouts
    evaluations: Evaluations
    train_tasks: Sequence[Task]
    checkpoint: Checkpoint | None
    """The checkpoint that the run resumes from; None for a new run."""
    pids: Callable[[], Mapping[str, Sequence[int]]]
    """The processes of each service on this machine."""
    results: dict[str, Any]
    """Values for the summary beside the metrics, such as the model."""
    tokens_trained: int = field(default=0, init=False)

    @property
    def kinds(self) -> Kinds:
        """The kinds of task that have metrics of their own."""
        return self.evaluations.kinds

    @property
    def weights(self) -> WeightSync:
        return self.services.weights

    @asynccontextmanager
    async def first_step(self) -> AsyncIterator[None]:
        """Enter it around every optimizer step of the algorithm; the first one ends with a report of the start."""
        with self.startup.phase("first optimizer step"):
            yield
        if self.startup.first_step is None:
            self.startup.end()
            self.startup.add_services(await self.services.started())
            self.results["startup"] = self.startup.summary()
            add_fact(self.report.folder, "startup", self.results["startup"])
            spans = [(name, began, seconds) for name, (began, seconds) in self.startup.phases.items() if began]
            self.report.timeline.past("start", spans)
            if self.plan.metrics.verbose:
                self.report.say(self.startup.text())

    async def begin_training(self, **settings: Any) -> None:
        """Begin a phase of training with a fresh optimizer; without settings, with those of the plan."""
        training = self.plan.training
        planned = {
            "learning_rate": training.learning_rate,
            "warmup_steps": self.plan.rising_steps,
            "lr_schedule": training.lr_schedule,
            "total_steps": self.plan.steps,
        }
        begin = self.services.trainer.call_one(TrainerActor.begin, **(settings or planned))
        await within(self.plan.deadlines.base, begin, "the trainer")

    async def train_step(
        self, samples: Sequence[Sample], loss: Any, *, old_is_present: bool = False, compare_replay: bool = False
    ) -> dict[str, float]:
        """One optimizer step; returns its metrics. `old_is_present` says that the old logprobs are the present ones,
        and `compare_replay` that it is also measured without routing replay."""
        await self.weights.make_room()
        self.weights.changed()
        options = self.plan.temperature, old_is_present, compare_replay
        call = self.services.trainer.call_one(TrainerActor.step, samples, loss, *options)
        with self.report.timeline.span("trainer", "optimizer step", samples=len(samples)):
            metrics = await within(self.plan.training.step_seconds, call, STEP)
        self.tokens_trained += int(metrics.get("tokens", 0))
        return metrics

    async def old_logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """The trainer's logprobs of the sampled targets under its present weights, per sample."""
        await self.weights.make_room()
        return await self._trainers_logprobs(TrainerActor.logprobs, samples, "old logprobs")

    async def reference_logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """The reference model's logprobs of the sampled targets, per sample."""
        await self.weights.make_room()
        if self.plan.lora:  # the trainer is its own reference model
            return await self._trainers_logprobs(TrainerActor.reference_logprobs, samples, "reference logprobs")
        assert self.services.reference is not None
        reference = self.services.reference.deadline(self.plan.training.step_seconds)
        with self.report.timeline.span("reference model", "logprobs", samples=len(samples)):
            replicas, shape = self.plan.services.ref_model.num_replicas, self.plan.model.shape
            return await ask_reference(reference, samples, self.plan.temperature, replicas=replicas, shape=shape)

    async def _trainers_logprobs(self, endpoint: Any, samples: Sequence[Sample], what: str) -> list[np.ndarray]:
        """What an endpoint of the trainer gives, per sample; `what` it is, for the timeline."""
        call = self.services.trainer.call_one(endpoint, samples, self.plan.temperature)
        with self.report.timeline.span("trainer", what, samples=len(samples)):
            logprobs: list[np.ndarray] = await within(self.plan.training.step_seconds, call, STEP)
        return logprobs

    async def export(self) -> None:
        """Write the model as a Hugging Face folder, and adapters as a PEFT folder, too. Both have the chat template and
        the sampling of the training, so that others who serve them use them as they were trained."""
        await self.weights.make_room()
        model, plan = Path(str(self.results["model"])), self.plan
        texts, left = texts_of_export(model, plan.env.thinking, temperature=plan.temperature)
        if left:
            self.report.say(
                "warning: the chat template of the exported model does not render what the training did, so that the "
                f"model may do worse behind a server: {left}"
            )
        call = self.services.trainer.call_one(TrainerActor.export_hf, str(self.report.folder / "model"), texts)
        with self.report.timeline.span("trainer", "export"):
            await within(self.plan.deadlines.weights, call, "the export")
        if self.plan.lora:
            base = self.plan.model.path or str(self.results["model"])
            folder = str(self.report.folder / "adapter")
            call = self.services.trainer.call_one(TrainerActor.export_adapter, folder, base, texts)
            await within(self.plan.deadlines.weights, call, "the export of the adapter")

    def measure_system(self) -> None:
        """Start to measure the load of this machine."""
        interval = self.plan.metrics.system_seconds
        if interval:
            gpus = self.plan.placement.gpus_of_this_machine
            self.report.measure_system(SystemMetrics(self.report.folder, self.pids, gpus), interval)

    def summarise(self, values: Mapping[str, Any]) -> None:
        """Write summary.json: the values that every run has, and `values`."""
        common = {
            "env": self.plan.env.name,
            "algorithm": self.plan.algorithm,
            "seed": self.plan.training.seed,
            "steps": self.plan.steps,
            **self.evaluations.summary(),
            "total_seconds": time.perf_counter() - self.report.started,
            "tokens_generated": self.rollouts.tokens_generated,
            "tokens_trained": self.tokens_trained,
            **self.report.peaks(),
            "versions": versions(),
        }
        self.report.summary({**common, **self.results, **values})
