"""Run: a run with all its processes. It has four parts: rollouts, trainer, weights, record.

`trainers.run.open_run.open_run` opens one.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agents.model_folder import INITIAL
from forge_env.core.episode import Episode
from forge_env.core.errors import ServiceError
from forge_env.core.types import Task
from forge_env.evaluation.kinds import Kinds
from forge_env.records.run_files import CONFIG
from forge_env.runtime.actor import ForgeActor
from forge_env.runtime.launcher import Launcher
from forge_env.runtime.service import Service
from forge_env.utils.atomic import replace_file
from trainers.checkpoints import Checkpoint
from trainers.metrics.startup import Span
from trainers.run.audit import Cheats
from trainers.run.controls import Controls
from trainers.run.evaluations import Evaluations, best_text
from trainers.run.rollouts import Rollouts
from trainers.run.run_record import RunRecord, config_text, versions
from trainers.run.trainer import Trainer
from trainers.run.trainer_actor import TrainerActor
from trainers.run.training_run import TrainingRun
from trainers.run.weight_sync import WeightSync
from trainers.setup.run_plan import RunPlan

SAMPLES_SHOWN = 3


@dataclass(kw_only=True)
class Run:
    """The plan of a run, its four parts, and its tasks."""

    plan: RunPlan
    rollouts: Rollouts
    """Groups of episodes, from environments and engines."""
    trainer: Trainer
    """Optimizer steps and logprobs."""
    weights: WeightSync
    """Moves the trainer's weights to the engines."""
    record: RunRecord
    """The files of the run, and its console."""
    evaluations: Evaluations
    launcher: Launcher
    """Owns all processes."""
    model: Path
    """The folder of the model that the run begins with."""
    parameters: int
    """Of that model."""
    setup_seconds: float
    """From the beginning until all processes were up, but the engines."""
    warmup_steps: int = 0
    """Supervised steps that the run has taken before reinforcement learning."""
    caller: TrainingRun = field(default_factory=TrainingRun)
    """Hears of the run, and may stop it."""
    train_tasks: Mapping[str, Sequence[Task]]
    """Of each environment, by its label."""
    cheats: Cheats = field(default_factory=Cheats)
    """Knows the episodes that look like a known cheat."""
    checkpoint: Checkpoint | None
    """The checkpoint that the run resumes from; None for a new run."""
    demonstrations: Sequence[Episode] = ()
    """The expert's episodes for a warm-up that is to come; empty without one."""

    @property
    def controls(self) -> Controls:
        """What may be asked of its loop while it trains."""
        return self.caller.controls

    @property
    def kinds(self) -> Kinds:
        return self.evaluations.kinds

    @property
    def services(self) -> dict[str, Service[Any]]:
        """The services by their names for people."""
        services: dict[str, Service[Any]] = {**self.rollouts.services, "engine": self.rollouts.engines}
        return services | {f"{name} model": service for name, service in self.trainer.frozen.items()}

    @property
    def num_replaced(self) -> int:
        return sum(len(service.deaths) for service in self.services.values())

    def change(self, plan: RunPlan) -> None:
        """Go on with another plan, which a resumed run has too. Groups that begin later have its limits."""
        self.plan = self.rollouts.plan = plan
        self.caller.changed = plan.config
        if plan.environments and not plan.has_several:
            self.rollouts.limits = plan.environments[0].config.env.limits()
        replace_file(self.record.folder / CONFIG, config_text(asdict(plan.config)))
        self.record.add_fact("steps", plan.steps)

    @asynccontextmanager
    async def first_step(self) -> AsyncIterator[None]:
        """Enter it around every optimizer step of the algorithm; the first one ends with a report of the start."""
        record, startup = self.record, self.record.startup
        with record.phase("first optimizer step"):
            yield
        if startup.first_step is None:
            startup.end()
            startup.add_services(await self._start_spans())
            record.add_fact("startup", startup.summary())
            spans = [(name, began, seconds) for name, (began, seconds) in startup.phases.items() if began]
            for observer in record.observers:
                observer.past("start", spans)
            if self.plan.config.metrics.verbose:
                record.say(startup.text())

    async def _start_spans(self) -> dict[str, list[Mapping[str, Span]]]:
        """The start-up phases of the actors of each service that is up, by display name."""
        starts: dict[str, list[Mapping[str, Span]]] = {}
        with suppress(ServiceError):  # a death meanwhile is handled elsewhere
            starts["trainer"] = [await self.trainer.ranks.deadline(10.0, "the trainer").call_one(TrainerActor.started)]
            for name, service in self.services.items():
                if service is not self.rollouts.engines or self.weights.engine_ready.done():
                    starts[name] = [*await service.deadline(10.0).fanout(ForgeActor.started)]
        return starts

    def summarise(self, values: Mapping[str, Any]) -> None:
        """Write summary.json: the values that every run has, and `values`; say which weights are the best."""
        evaluation, record = self.evaluations.summary(), self.record
        of_observers = {name: value for observer in record.observers for name, value in observer.summary().items()}
        if evaluation["best_step"] is not None and self.plan.config.evaluation.interval:
            record.say(best_text(evaluation, self.plan.steps))
        common = {
            "env": self.plan.config.env.name,
            "algorithm": self.plan.algorithm.name,
            "seed": self.plan.config.training.seed,
            "steps": self.plan.steps,
            **model_facts(self.plan, record.folder, self.model, self.parameters),
            "setup_seconds": self.setup_seconds,
            **({} if record.startup.first_step is None else {"startup": record.startup.summary()}),
            **evaluation,
            "total_seconds": time.perf_counter() - self.record.start_time,
            "tokens_generated": self.rollouts.tokens_generated,
            "tokens_trained": self.trainer.tokens_trained,
            **of_observers,
            "versions": versions(),
        }
        record.summary({**common, **values})


def model_facts(plan: RunPlan, folder: Path, model: Path, parameters: int) -> dict[str, Any]:
    """What run.json and summary.json say of the command and of the model that a run begins with."""
    name = INITIAL if model.is_relative_to(folder) else str(model)  # the run's folder may be renamed
    return {"command": plan.algorithm.command, "model": name, "model_parameters": parameters}
