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

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from agents.generator.settings import EngineSettings
from forge_env.core.errors import UserError
from forge_env.core.types import EpisodeLimits
from forge_env.rollout.factory import EnvFactory
from forge_env.runtime.hosts.settings import HostSettings
from forge_env.runtime.weights import WeightStore
from trainers.algorithm import Algorithm
from trainers.config import RunConfig, TrainingConfig
from trainers.lora import Lora
from trainers.model.shape import FoundModel
from trainers.objective.objective import Objective
from trainers.settings.record import CheckpointConfig, EvaluationConfig, MetricsConfig
from trainers.settings.services import ServicesConfig
from trainers.settings.supervised import SFTConfig
from trainers.settings.tasks import EnvConfig, WarmupConfig
from trainers.setup.deadlines import Deadlines
from trainers.setup.memory import Memory, trainer_dtype
from trainers.setup.options.defaults import Default, rising_steps
from trainers.setup.placement import Placement, Process
from trainers.setup.run_tasks import RunTasks
from trainers.setup.sizing.card import Card, cards
from trainers.titan.settings import TitanSettings


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The plan of a run; one with `problems` can be printed, and not started."""

    config: RunConfig
    """The complete settings, for set-up and for the run's record; they do not change any more."""
    defaults: Mapping[str, Default]
    """The defaults of what is trained, by the names of the settings."""
    algorithm: str
    """Its name, for example "grpo"."""
    command: str
    """What `python -m` starts, for example "trainers.grpo"."""
    own_algorithm: Algorithm | None
    """An algorithm of the user's, which the trainer's process has to import; None for one of the trainer's."""
    steps: int
    """Optimizer steps; 0 if they are counted when the data is read."""
    environment: EnvFactory | None
    """None for supervised training on data without an environment."""
    objective: Objective | None
    """The loss, and how groups become samples, the user's own plugins among them; None for supervised training."""
    old_logprobs: Literal["generator", "trainer"]
    """Whose logprobs are the denominator of the importance ratio."""
    kl_remark: str
    """A warning on the KL penalty; "" for none."""
    model: FoundModel
    hosts: HostSettings | None
    """How the hosts are reached; None where this machine is the only one."""
    placement: Placement
    card: float | None
    """Bytes that the run may use of each GPU; None without GPUs, or where that is not known."""
    engine: EngineSettings
    about_engine: str
    """A sentence on the engine's cache and sleep; "" for an engine on a CPU that does not sleep."""
    trainer: TitanSettings
    reference: TitanSettings
    """For a run with a reference model in its placement."""
    store: WeightStore | None
    """Not open yet; None where it depends on the sizes of a model that is not downloaded yet."""
    store_reason: str
    """Which store it is and why, as a sentence."""
    deadlines: Deadlines
    patience: float
    """Seconds after which a run in which nothing moves has failed."""
    episodes_at_once: int
    """Episodes in flight in an evaluation."""
    processes: Sequence[tuple[Process, Memory | None]]
    """Every process with the estimate of its memory; None where the sizes of the model are not known."""
    tasks: RunTasks | None
    """Those of a local file, which is read before anything is started; None where the start reads them."""
    about_data: Sequence[str]
    """Sentences on the data: what was read, how it is divided, and which rows were left out."""
    missing: Sequence[str]
    """What this machine lacks, as sentences."""
    problems: Sequence[str]
    """Why the run would not start, in the order in which they are found."""

    @property
    def training(self) -> TrainingConfig:
        return self.config.training

    @property
    def env(self) -> EnvConfig:
        return self.config.env

    @property
    def warmup(self) -> WarmupConfig:
        return self.config.warmup

    @property
    def services(self) -> ServicesConfig:
        return self.config.services

    @property
    def evaluation(self) -> EvaluationConfig:
        return self.config.evaluation

    @property
    def checkpoint(self) -> CheckpointConfig:
        return self.config.checkpoint

    @property
    def metrics(self) -> MetricsConfig:
        return self.config.metrics

    @property
    def sft(self) -> SFTConfig | None:
        """The section of supervised training; None for a policy-gradient run."""
        return getattr(self.config, "sft", None)

    @property
    def output(self) -> str:
        """The folder that the user names; "" for a new one."""
        return self.config.output

    @property
    def resume(self) -> bool:
        """Whether the run goes on from a checkpoint in `output`."""
        return self.config.resume

    @property
    def record(self) -> dict[str, Any]:
        """All settings as nested dictionaries, for the run's record and for sinks."""
        return asdict(self.config)

    @property
    def lora(self) -> Lora | None:
        """The adapters that are trained; None if all weights are."""
        return self.trainer.lora

    @property
    def temperature(self) -> float:
        """The sampling temperature of training; all logprobs are taken at it."""
        return self.config.temperature

    @property
    def staleness(self) -> int:
        """Optimizer steps between the weights that sampled a group and those that it trains, at most."""
        return self.config.staleness

    @property
    def precision(self) -> Literal["float32", "bfloat16"]:
        """The coarser of what the trainer and the engine compute in."""
        return self.config.precision

    @property
    def trainer_dtype(self) -> str:
        """What the trainer computes in."""
        return trainer_dtype(self.config)

    @property
    def rising_steps(self) -> int:
        """Optimizer steps over which the learning rate rises from 0."""
        return rising_steps(self.config, self.steps)

    @property
    def limits(self) -> EpisodeLimits:
        """Limits of an episode."""
        return self.env.limits()

    @property
    def cards(self) -> list[Card]:
        """What each GPU holds, phase by phase; none where the sizes of the model are not known."""
        return cards(self.processes)

    @property
    def window(self) -> int:
        """Optimizer steps whose old logprobs are of the same weights; their groups are all sampled before the first."""
        return self.training.sync_interval if self.old_logprobs == "trainer" else 1

    @property
    def replays_routes(self) -> bool:
        """Whether the engine returns the experts that it chose, and the trainer computes with them."""
        return self.engine.return_routes

    def compares_replay(self, step: int) -> bool:
        """Whether a step, from 1, is also measured without replay."""
        interval = self.config.moe.compare_interval
        return self.replays_routes and interval > 0 and (step - 1) % interval == 0

    def check(self) -> None:
        """Raise the first problem.

        Raises:
            UserError: when there is any.
        """
        if self.problems:
            raise UserError(self.problems[0])

    def with_steps(self, steps: int) -> RunPlan:
        """The same plan for so many optimizer steps."""
        return replace(self, steps=steps)
