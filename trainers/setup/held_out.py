"""The held-out sets of a run: what its evaluations measure, sampled and, unless `evaluation.greedy` is false, greedily.

The first set, sampled on the test split of the run's own environment, is the headline. `evaluation.sets` adds sets of
the same environment by name::

    evaluation:
      sets:
        hard: {options: {level: 4}, tasks: 64}
        validation: {split: validation}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Annotated, Any

from annotated_types import Ge

from forge_env.core.errors import UserError, nearest
from forge_env.core.types import Task
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.options import select_options
from forge_env.utils.settings import read_value
from trainers.config import RunConfig
from trainers.setup.run_tasks import HELD_OUT_TASKS, first_task

_KINDS: dict[str, Any] = {"split": str, "tasks": Annotated[int, Ge(1)]}
SETTINGS = (*_KINDS, "options")
"""Settings of a set in `evaluation.sets`; those that it leaves out are the headline's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutSet:
    """Held-out tasks and how they are sampled: all that a success rate depends on beside the weights."""

    set_name: str = ""
    """Of `evaluation.sets`; "" is the run's own held-out tasks."""
    env: str = ""
    """The label of the environment; "" is the only one."""
    split: str = "test"
    tasks: Sequence[Task]
    n: int = 1
    """Attempts at each task."""
    temperature: float = 1.0
    top_p: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the environment that differ from the run's."""
    env_options: Mapping[str, Any] = field(default_factory=dict)
    """The part of `options` that the environment's constructor takes; the others belong to the tasks."""

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def agent(self) -> str:
        """The name of the agent that samples so, see `trainers.run.start`."""
        return "greedy" if self.is_greedy else "evaluated"

    @property
    def seeds(self) -> str:
        """The phase that gives the episodes their seeds: the same in every evaluation, and for greedy and sampled
        ones."""
        return f"evaluation/{self.set_name}" if self.set_name else "evaluation"

    def settings(self) -> dict[str, float]:
        """How the set is sampled, as numbers."""
        return {"n": float(self.n), "temperature": self.temperature, "top_p": self.top_p}


def held_out_sets(config: RunConfig, tasks: Sequence[Task], *, env: str = "") -> dict[str, HeldOutSet]:
    """The held-out sets of an environment by name: "" is the headline, with `tasks`; the others are "greedy", NAME and
    NAME.greedy."""
    evaluation = config.evaluation
    sampling: dict[str, Any] = {"temperature": evaluation.temperature, "top_p": evaluation.top_p, "n": evaluation.n}
    sampling |= {"env": env}
    headline = HeldOutSet(tasks=tasks, **sampling)
    sampled = [
        headline,
        *(_make_set(config, name, settings, sampling) for name, settings in _given_sets(config).items()),
    ]
    sets = {held_out.set_name: held_out for held_out in sampled}
    if evaluation.greedy and not headline.is_greedy:
        for held_out in sampled:
            sets[".".join(filter(None, (held_out.set_name, "greedy")))] = replace(
                held_out, temperature=0.0, top_p=1.0, n=1
            )
    return sets


def prefix_of(name: str) -> str:
    """What comes before the metrics of a held-out set: the headline's have none.

    >>> [prefix_of(name) for name in ("", "greedy", "hard", "hard.greedy")]
    ['', 'greedy/', 'sets/hard/', 'sets/hard/greedy/']
    """
    if name in ("", "greedy"):
        return f"{name}/" if name else ""
    return f"sets/{name.replace('.', '/')}/"


def check_sets(*configs: RunConfig) -> None:
    """Check the sets of evaluations of each environment, as far as it needs no tasks."""
    for config in configs:
        for name, settings in _given_sets(config).items():
            if not config.env.name:
                raise UserError(f"--evaluation.sets.{name} needs an environment: name it with --env")
            factory, _ = _env_options(config, name, settings)
            split, trained = settings.get("split", "test"), make(config.env.name, **config.env.options)
            if split == config.dataset.split and _of_tasks(factory) == _of_tasks(trained):
                wrong = f"--evaluation.sets.{name}.split is {split!r}, which the run trains on"
                raise UserError(f"{wrong}: hold another one out")
            try:
                first_task(factory, split, config.training.seed)
            except UserError as error:
                raise UserError(f"--evaluation.sets.{name}: {error}") from error


def _of_tasks(factory: EnvFactory) -> dict[str, Any]:
    """All options of an environment's tasks, given or not."""
    usual = {name: parameter.default for name, parameter in signature(factory.env_class.tasks).parameters.items()}
    return usual | select_options(factory.env_class.tasks, factory.options)


def _given_sets(config: RunConfig) -> dict[str, dict[str, Any]]:
    """The sets by name, each with its settings; its options are a dictionary."""
    sets: dict[str, dict[str, Any]] = {}
    for name, settings in config.evaluation.sets.items():
        where = f"--evaluation.sets.{name}"
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name == "greedy":
            raise UserError(f"{where}: {name!r} is no name of a set; take letters, digits and _")
        if not isinstance(settings, Mapping):
            raise UserError(f"{where} is {settings!r}; a set has split, tasks and options.NAME")
        entry = sets[name] = {"options": {}}
        for setting, value in settings.items():
            if setting not in SETTINGS or isinstance(value, Mapping) != (setting == "options"):
                wrong = f"{where}.{setting}: a set has split, tasks and options.NAME, and not {setting!r}"
                raise UserError(f"{wrong}. {nearest(setting, SETTINGS)}")
            is_dictionary = setting == "options"
            entry[setting] = value if is_dictionary else read_value(value, _KINDS[setting], f"{where}.{setting}")
    return sets


def _make_set(config: RunConfig, name: str, settings: Mapping[str, Any], sampling: Mapping[str, Any]) -> HeldOutSet:
    factory, options = _env_options(config, name, settings)
    split, count = settings.get("split", "test"), settings.get("tasks", config.dataset.held_out or HELD_OUT_TASKS)
    at_most = "tasks" not in settings and not config.dataset.held_out
    tasks = factory.tasks(split, count=count, seed=config.training.seed, at_most=at_most)
    return HeldOutSet(
        set_name=name, split=split, tasks=tasks, options=settings["options"], env_options=options, **sampling
    )


def _env_options(config: RunConfig, name: str, settings: Mapping[str, Any]) -> tuple[EnvFactory, dict[str, Any]]:
    """The factory of a set's tasks, and the options of the set that an environment's constructor takes."""
    factory = make(config.env.name, **{**config.env.options, **settings["options"]})
    shared = sorted(factory.shared_options & settings["options"].keys())
    if shared:
        raise UserError(
            f"--evaluation.sets.{name}.options.{shared[0]}: the environment {config.env.name} opens what hangs on this "
            "option once for a whole run; evaluate such a set with forge-env eval --agent checkpoint:RUN"
        )
    return factory, {key: value for key, value in factory.constructor_options.items() if key in settings["options"]}
