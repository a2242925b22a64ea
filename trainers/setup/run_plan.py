"""RunPlan: everything that follows from the config of a run, derived once.

    config = read_config(Config, options)
    plan = make_plan(config, GRPO)  # trainers/setup/plan.py; starts nothing
    plan.check()                    # the first problem, as a UserError
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

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agents.generator.settings import EngineSettings
from forge_env.core.errors import UserError
from forge_env.rollout.factory import EnvFactory
from forge_env.runtime.weights import WeightStore
from trainers.setup.draft import Draft
from trainers.setup.options.defaults import rising_steps
from trainers.setup.run_tasks import RunTasks
from trainers.setup.sizing.card import Card, Processes, cards


@dataclass(frozen=True, kw_only=True)
class RunPlan(Draft):
    """The plan of a run: its draft, and what needs estimates of memory. One with `problems` is only for printing."""

    steps: int
    """Optimizer steps; 0 if they are counted when the data is read."""
    environment: EnvFactory | None
    """None for supervised training on data without an environment."""
    engine: EngineSettings
    about_engine: str
    """A sentence on the engine's cache and sleep; "" for an engine on a CPU that does not sleep."""
    store: WeightStore | None
    """Not open yet; None if it depends on the sizes of a model that is not downloaded yet."""
    store_reason: str
    """Which store it is and why, as a sentence."""
    processes: Processes
    """Every process with the estimate of its memory; None if the sizes of the model are not known."""
    tasks: RunTasks | None
    """Tasks of a local file, which are read before anything is started; None if the start reads them."""
    about_data: Sequence[str]
    """Sentences on the data: what was read, how it is divided, and which rows were left out."""
    missing: Sequence[str]
    """What this machine lacks, as sentences."""
    problems: Sequence[str]
    """Why the run would not start, in the order in which they are found."""

    @property
    def rising_steps(self) -> int:
        """Optimizer steps over which the learning rate rises from 0."""
        return rising_steps(self.config, self.steps)

    @property
    def cards(self) -> list[Card]:
        """What each GPU holds, phase by phase; none if the sizes of the model are not known."""
        return cards(self.processes)

    def check(self) -> None:
        """Raise the first problem.

        Raises:
            UserError: when there is any.
        """
        if self.problems:
            raise UserError(self.problems[0])

    def with_steps(self, steps: int) -> RunPlan:
        """The same plan for another number of optimizer steps."""
        return replace(self, steps=steps)
