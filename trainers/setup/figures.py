"""What an evaluation of a run measures: one figure for each held-out set, and for each a greedy one beside it.

The first figure, sampled on the test split of the run's own environment, is the headline. `evaluation.sets` adds sets
of the same environment by name::

    evaluation:
      greedy: true
      sets:
        hard: {options: {level: 4}, tasks: 64}
        validation: {split: validation}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forge_env.core.errors import UserError, nearest
from forge_env.core.types import Task
from forge_env.rollout.factory import EnvFactory, make
from trainers.config import RunConfig

SETTINGS = ("split", "tasks", "options")
"""What a set of `evaluation.sets` may say; what it leaves out is as in the headline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure, and what it depends on beside the weights."""

    set_name: str = ""
    """Of `evaluation.sets`; "" is the run's own held-out tasks."""
    split: str = "test"
    tasks: Sequence[Task]
    n: int = 1
    """Attempts at each task."""
    temperature: float = 1.0
    top_p: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the environment, where they differ from the run's."""
    env_options: Mapping[str, Any] = field(default_factory=dict)
    """Those of them that the environment's constructor takes; others are of the tasks alone."""

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def agent(self) -> str:
        """The name of the agent that samples so, see `trainers.run.services`."""
        return "greedy" if self.is_greedy else "evaluated"

    @property
    def seeds(self) -> str:
        """The phase whose seeds the episodes have: the same in every evaluation, and of greedy and sampled ones."""
        return f"evaluation/{self.set_name}" if self.set_name else "evaluation"

    def settings(self) -> dict[str, float]:
        """What the figure depends on, as numbers."""
        return {"n": float(self.n), "temperature": self.temperature, "top_p": self.top_p}


def find_figures(config: RunConfig, held_out: Sequence[Task]) -> dict[str, Figure]:
    """The figures of a run by name: "" is the headline; the others are "greedy", NAME and NAME.greedy.

    Args:
        config: of the run.
        held_out: the tasks of the headline.

    Raises:
        UserError: for a set that cannot be made.
    """
    evaluation = config.evaluation
    sampling: dict[str, Any] = {"temperature": evaluation.temperature, "top_p": evaluation.top_p, "n": evaluation.n}
    first = Figure(tasks=held_out, **sampling)
    sampled = [first, *(_figure(config, name, own, sampling) for name, own in _sets(config).items())]
    found = {figure.set_name: figure for figure in sampled}
    if evaluation.greedy and not first.is_greedy:
        for figure in sampled:
            found[".".join(filter(None, (figure.set_name, "greedy")))] = Figure(
                set_name=figure.set_name,
                split=figure.split,
                tasks=figure.tasks,
                options=figure.options,
                env_options=figure.env_options,
                temperature=0.0,
            )
    return found


def prefix_of(name: str) -> str:
    """What comes before the metrics of a figure: the headline's have none.

    >>> [prefix_of(name) for name in ("", "greedy", "hard", "hard.greedy")]
    ['', 'greedy/', 'sets/hard/', 'sets/hard/greedy/']
    """
    if name in ("", "greedy"):
        return f"{name}/" if name else ""
    return f"sets/{name.replace('.', '/')}/"


def check_sets(config: RunConfig) -> None:
    """Check the settings of evaluations, as far as it needs no tasks.

    Raises:
        UserError: for a set that cannot be made, or sampling that makes no sense.
    """
    evaluation = config.evaluation
    if evaluation.top_p > 1:
        raise UserError(f"--evaluation.top_p is {evaluation.top_p}; it must be above 0 and at most 1")
    if evaluation.temperature == 0 and evaluation.n > 1:
        raise UserError(
            f"--evaluation.temperature is 0 and --evaluation.n is {evaluation.n}: greedy attempts at a task are all "
            "the same, so set --evaluation.n to 1"
        )
    for name, own in _sets(config).items():
        if not config.env.name:
            raise UserError(f"--evaluation.sets.{name} needs an environment: name it with --env")
        _env_options(config, name, own)


def _sets(config: RunConfig) -> dict[str, dict[str, Any]]:
    """The sets by name, each with its settings; its options are a dictionary."""
    found: dict[str, dict[str, Any]] = {}
    for dotted, value in config.evaluation.sets.items():
        name, _, rest = dotted.partition(".")
        setting, _, option = rest.partition(".")
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or name == "greedy":
            raise UserError(f"--evaluation.sets.{dotted}: {name!r} is no name of a set; take letters, digits and _")
        if setting not in SETTINGS or bool(option) != (setting == "options"):
            wrong = f"--evaluation.sets.{dotted}: a set has split, tasks and options.NAME, and not {rest!r}"
            raise UserError(f"{wrong}. {nearest(setting, SETTINGS)}")
        own = found.setdefault(name, {"options": {}})
        if option:
            own["options"][option] = value
        else:
            own[setting] = value
    return found


def _figure(config: RunConfig, name: str, own: Mapping[str, Any], sampling: Mapping[str, Any]) -> Figure:
    factory, options = _env_options(config, name, own)
    split, count = str(own.get("split", "test")), _count(name, own.get("tasks", config.dataset.held_out))
    if split == config.dataset.split and not own["options"]:
        raise UserError(f"--evaluation.sets.{name}.split is {split!r}, which the run trains on: hold another one out")
    tasks = factory.tasks(split, count=count, seed=config.training.seed)
    return Figure(set_name=name, split=split, tasks=tasks, options=own["options"], env_options=options, **sampling)


def _env_options(config: RunConfig, name: str, own: Mapping[str, Any]) -> tuple[EnvFactory, dict[str, Any]]:
    """The factory of a set's tasks, and those of its options that an environment's constructor takes."""
    factory = make(config.env.name, **{**config.env.options, **own["options"]})
    shared = sorted(factory.shared_options & own["options"].keys())
    if shared:
        raise UserError(
            f"--evaluation.sets.{name}.options.{shared[0]}: the environment {config.env.name} opens what hangs on this "
            "option once for a whole run; evaluate such a set with forge-env eval --agent checkpoint:RUN"
        )
    return factory, {key: value for key, value in factory.constructor_options.items() if key in own["options"]}


def _count(name: str, value: Any) -> int:
    try:
        count = int(str(value))
    except ValueError:
        count = 0
    if count < 1:
        raise UserError(f"--evaluation.sets.{name}.tasks is {value!r}; it must be a whole number, at least 1")
    return count
