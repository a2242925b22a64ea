"""Algorithm: what a command and a plan need to know of an algorithm. Every file of an algorithm ends with one.

The trainer's own algorithms and a user's are used alike, by a target: "trainers.grpo:GRPO" or
"path/to/my_file.py:MINE".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_env.core.errors import UserError
from forge_env.utils.targets import is_file, load, split_target
from trainers.config import RunConfig

if TYPE_CHECKING:
    from trainers.objective.loss_call import Loss
    from trainers.objective.objective import Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """An algorithm that trains a model.

    GRPO = Algorithm(name="grpo", config=Config, loss=loss, objective=make_objective)
    """

    name: str
    """Names the algorithm in the record of a run, and in the name of its folder."""
    config: type[RunConfig]
    """The settings of a run. For a policy gradient one field is a section, of a subclass of `AlgorithmConfig`."""
    loss: Callable[[Any], Loss] | None = None
    """Makes the loss from an instance of `config`. None in supervised training, which also has no objective."""
    objective: Callable[[Any, Loss], Objective] | None = None
    """Makes the objective from an instance of `config` and the loss, like
    `trainers.objective.objective.make_objective`."""
    target: str = ""
    """The target that finds it, if its file is not one of the trainer's."""

    def make_objective(self, config: RunConfig) -> Objective:
        """The objective of a policy gradient.

        Raises:
            UserError: a setting is out of range.
        """
        assert self.loss is not None and self.objective is not None
        return self.objective(config, self.loss(config))

    @property
    def command(self) -> str:
        """What `python -m` starts, for example "trainers.grpo"."""
        return f"trainers.train {self.target}" if self.target else f"trainers.{self.name}"


def find_algorithm(target: str) -> Algorithm:
    """Import the algorithm of a target.

    Raises:
        UserError: the target cannot be imported, is no Algorithm, or cannot be used.
    """
    algorithm, (source, name) = load(target), split_target(target)
    if not isinstance(algorithm, Algorithm):
        shown = algorithm.__name__ if isinstance(algorithm, type) else f"a {type(algorithm).__name__}"
        raise UserError(f"{target!r} is {shown} and no Algorithm: name the value that the file makes by Algorithm(...)")
    if algorithm.loss is None or algorithm.objective is None:
        missing = "objective" if algorithm.loss else "loss"
        raise UserError(f"{target!r} is an Algorithm without {missing}=, so that it is no policy gradient")
    if not algorithm.config().algorithm_name:
        raise UserError(
            f"{target!r}: its {algorithm.config.__name__} has no section for the algorithm: add a field of a dataclass "
            "that is made from trainers.settings.algorithm.AlgorithmConfig"
        )
    if source.removeprefix("forge_env.").startswith("trainers."):
        return algorithm
    return replace(algorithm, target=f"{Path(source).expanduser().resolve()}:{name}" if is_file(source) else target)


def check_unchanged(algorithm: Algorithm) -> None:
    """Check that processes which have imported a user's algorithm by now have the version of the start.

    Raises:
        UserError: its file has changed.
    """
    if find_algorithm(algorithm.target) != algorithm:
        raise UserError(f"{algorithm.target} has changed while the run started: start it again")
