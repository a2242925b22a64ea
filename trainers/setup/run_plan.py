"""RunPlan: everything that follows from the config of a run, derived once.

    config = read_config(Config, options)
    plan = make_plan(config, GRPO)  # trainers/setup/plan.py; starts nothing
    plan.check()                    # that this machine can start it
    await run_policy_gradient(plan)

`--dry-run` prints the plan, and a run executes the same object. A run reads what the plan has resolved, and sections of
the settings under their own names (`plan.training`). It reads no config: that is for set-up, and for the run's record
(`trainers.run.run_record`). Nothing derives a fact of the plan a second time. The user's own loss, advantages and
reward are made once, with the plan; the loss is made a second time in the trainer's process, which imports it by its
target.

What can only be measured while a run starts is not in the plan, with two exceptions that make a new plan from this one:
the sizes of a model that is downloaded (`trainers.setup.plan.with_model`), and the number of steps of supervised
training on data (`RunPlan.with_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from agents.generator.settings import EngineSettings
from forge_env.core.errors import UserError
from forge_env.data.rows import find_file
from forge_env.rollout.factory import EnvFactory
from forge_env.runtime.host_settings import slurm_nodes
from forge_env.runtime.weights import WeightStore
from trainers.setup.checks.machine_checks import check_gpus, check_host_memory
from trainers.setup.draft import Draft
from trainers.setup.options.defaults import rising_steps
from trainers.setup.packages import check_packages, missing_packages
from trainers.setup.run_tasks import RunTasks, data_digests
from trainers.setup.sizing.card import Card, Processes, cards
from trainers.setup.sizing.fit import MemoryPlan, check_fit, check_store_room, find_store, plan_memory
from trainers.titan.settings import RateSettings


@dataclass(frozen=True, kw_only=True)
class RunPlan(Draft):
    """The plan of a run: its draft, its tasks, and what follows from the memory of its processes."""

    steps: int
    """Optimizer steps; 0 if they are counted when the data is read."""
    environment: EnvFactory | None
    """None for supervised training on data without an environment."""
    tasks: RunTasks | None
    """Tasks of a local file, which are read before anything is started; None if the start reads them."""
    about_data: Sequence[str]
    """Sentences on the data: what was read, how it is divided, and which rows were left out."""

    @property
    def rising_steps(self) -> int:
        """Optimizer steps over which the learning rate rises from 0."""
        return rising_steps(self.config, self.steps)

    @property
    def rate(self) -> RateSettings:
        """The learning rate of training."""
        training = self.training
        return RateSettings(
            learning_rate=training.learning_rate, lr_schedule=training.lr_schedule, warmup_steps=self.rising_steps
        )

    @property
    def warmup_rate(self) -> RateSettings:
        """The learning rate of the warm-up: it rises and then stays."""
        return RateSettings(learning_rate=self.warmup.learning_rate, warmup_steps=self.warmup.learning_rate_warmup)

    def with_steps(self, steps: int) -> RunPlan:
        """The same plan for another number of optimizer steps."""
        return replace(self, steps=steps)

    def data_digests(self) -> dict[str, str]:
        """The digests of the local files that the run learns from and is measured on, by path."""
        return data_digests(self.config)

    # ---- memory ----

    @property
    def store(self) -> WeightStore | None:
        """Not open yet; None if it depends on the sizes of a model that is not downloaded yet."""
        return self._found_store[0] if self._found_store else None

    @property
    def store_reason(self) -> str:
        """Which store it is and why, as a sentence."""
        return self._found_store[1] if self._found_store else ""

    @property
    def engine(self) -> EngineSettings:
        return self.memory.engine

    @property
    def about_engine(self) -> str:
        """A sentence on the engine's cache and sleep; "" for an engine on a CPU that does not sleep."""
        return self.memory.about_engine

    @property
    def processes(self) -> Processes:
        """Every process with the estimate of its memory; None if the sizes of the model are not known."""
        return self.memory.processes

    @property
    def cards(self) -> list[Card]:
        """What each GPU holds, phase by phase; none if the sizes of the model are not known."""
        return cards(self.processes)

    @cached_property
    def memory(self) -> MemoryPlan:
        """The memory of every process."""
        return plan_memory(self, self.store)

    @cached_property
    def _found_store(self) -> tuple[WeightStore, str] | None:
        return find_store(self)

    # ---- this machine ----

    @cached_property
    def problems(self) -> list[str]:
        """Why this machine cannot start the run, as sentences."""
        checks = (
            check_packages,
            self.training.check_packages,
            *([slurm_nodes] if self.config.launcher.kind == "slurm" else []),
            lambda: check_gpus(self),
            lambda: check_store_room(self),
            lambda: check_fit(self, self.memory),
            lambda: check_host_memory(self, self.processes),
        )
        return [sentence for check in checks if (sentence := _refusal(check))]

    def check(self) -> None:
        """Check that this machine can start the run."""
        for problem in self.problems:
            raise UserError(problem)

    @property
    def missing(self) -> list[str]:
        """What this machine lacks, as sentences."""
        placement, data = self.placement, self.config.dataset
        missing = [f"{package} is not installed" for package in missing_packages()]
        missing += [self.model.missing] if self.model.missing else []
        if self.shape is None:
            missing.append("the sizes of the model, and so the estimates of its memory")
        if data.path and find_file(data.path, data.split) is None:
            missing.append(
                f"the data set {data.path} is no local file: the start reads it from the hub, or from its cache"
            )
        if placement.gpus_wanted and self.card is None:
            missing.append(
                "the memory of the GPUs, which --launcher.gpu_memory_gib says: whether the run fits is not known"
            )
        needed = placement.gpus_needed
        available = placement.num_hosts * placement.gpus_per_host if needed else 0
        if needed > available:
            missing.append(f"{needed - available} of {needed} GPUs")
        return missing


def _refusal(check: Callable[[], object]) -> str:
    """The sentence of a check that fails; "" if it does not."""
    try:
        check()
    except UserError as error:
        return str(error)
    return ""
