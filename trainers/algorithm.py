"""Algorithm: what a command and a plan need to know of an algorithm. Every file of an algorithm ends with one.

`loss_options` and `make_objective` put its parts together from the settings that all algorithms share.

The trainer's own algorithms and a user's are used alike, by a target: "trainers.grpo:GRPO" or
"path/to/my_file.py:MINE".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.utils.targets import is_file, load, split_target
from trainers.config import RunConfig
from trainers.objective.advantages import BASELINES, Baseline, Normalization, make_advantages, no_baseline
from trainers.objective.reward import KLPenalty, TrainingReward
from trainers.objective.reward_parts import make_parts

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
    """Makes the objective from an instance of `config` and the loss, like the function `make_objective`."""
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
        return f"trainers {self.target}" if self.target else f"trainers.{self.name}"


def kl_warning(config: RunConfig) -> str:
    """A warning about a KL penalty in the loss that adds only noise; "" if there is none.

    The gradient of k1 is the gradient of the token's logprob, with mean 0 over the policy's samples.
    """
    section, name = config.algorithm, config.algorithm_name
    if section is None or config.training.loss or (section.kl, section.kl_in) != ("k1", "loss") or not section.beta > 0:
        return ""
    return (
        f"--{name}.kl k1 in the loss has no expected gradient on the policy's own samples, so "
        f"--{name}.beta {section.beta:g} holds nothing back: take --{name}.kl k2, or --{name}.kl_in reward"
    )


def loss_options(config: RunConfig) -> dict[str, Any]:
    """The settings that every loss takes, from the algorithm's section."""
    section = config.algorithm
    assert section is not None
    in_reward = section.kl_in == "reward"
    return {
        "beta": 0.0 if in_reward else section.beta,
        "aggregation": section.aggregation,
        "kl": "k3" if section.kl == "auto" else section.kl,
        "entropy_coef": config.training.entropy_coef,
        "constant": section.constant or (float(config.env.max_tokens) if section.aggregation == "constant" else 1.0),
        "correction": section.correction,
        "correction_low": section.correction_low,
        "correction_high": section.correction_high,
    }


def make_objective(
    config: RunConfig,
    loss: Loss,
    *,
    baseline: Baseline = "mean",
    addition: Callable[[Episode], float] | None = None,
    **parts: Any,
) -> Objective:
    """Put an objective together: group size, advantages and the KL's reference come from the algorithm's section.

    Args:
        addition: what the algorithm adds to an episode's reward.
        baseline: what is subtracted from the rewards of a group. `section.normalization` says what divides the
            difference.

    Raises:
        UserError: for a setting out of range.
    """
    from trainers.objective.objective import Objective  # imports torch, which --help and a typo do not need

    section, algorithm = config.algorithm, config.algorithm_name
    assert section is not None
    distill = config.distill
    least = 1 if baseline == "none" or distill.only else 2
    if section.n_samples < least:
        option = f"--{algorithm}.n_samples is {section.n_samples}"
        raise UserError(f"{option}; an advantage needs at least {least} episodes of each task")
    if section.n_samples == 1 and section.normalization == "group" and not distill.only:
        raise UserError(
            f"--{algorithm}.n_samples is 1 and --{algorithm}.normalization is group, which divides by the deviation of "
            "a group, and one episode has none: set it to none or batch"
        )
    options: dict[str, Any] = {"std_eps": section.std_eps, "ddof": section.std_ddof}
    advantages, scale = make_advantages(baseline, section.normalization, **options)
    of_part: Normalization = "group" if section.normalization == "batch" else section.normalization
    others = {
        "--reward": config.training.reward,
        "--advantages": config.training.advantages,
        f"--{algorithm}.credit turn": section.credit == "turn",
        f"--{algorithm}.overlong_penalty": addition is not None and getattr(section, "overlong_penalty", True),
    }
    of_part_only = make_advantages(baseline, of_part, **options)[0]
    vector = make_parts(section.reward_parts, f"--{algorithm}.reward_parts", of_part_only, others=others)
    penalty = None
    if section.kl_in != "loss" and section.beta > 0:
        penalty = KLPenalty(beta=section.beta, kind="k1" if section.kl == "auto" else section.kl)
    return Objective(
        loss=loss,
        advantages=advantages if vector is None else no_baseline,
        scale=scale,
        parts=vector,
        group_size=section.n_samples,
        kl_reference="generator" if section.beta > 0 else "",
        reward=TrainingReward(addition=addition, kl_penalty=penalty),
        penalty_baseline=BASELINES[baseline],
        credit=section.credit,
        needs_siblings=baseline != "none",
        **parts,
    )


def find_algorithm(target: str) -> Algorithm:
    algorithm, (source, name) = load(target), split_target(target)
    if not isinstance(algorithm, Algorithm):
        type_name = algorithm.__name__ if isinstance(algorithm, type) else f"a {type(algorithm).__name__}"
        raise UserError(
            f"{target!r} is {type_name} and no Algorithm: name the value that the file makes by Algorithm(...)"
        )
    if algorithm.loss is None or algorithm.objective is None:
        missing = "objective" if algorithm.loss else "loss"
        raise UserError(f"{target!r} is an Algorithm without {missing}=, so that it is no policy gradient")
    if not algorithm.config().algorithm_name:
        raise UserError(
            f"{target!r}: its {algorithm.config.__name__} has no section for the algorithm: add a field of a dataclass "
            "that is made from trainers.objective.settings.AlgorithmConfig"
        )
    if source.removeprefix("forge_env.").startswith("trainers."):
        return algorithm
    return replace(algorithm, target=f"{Path(source).expanduser().resolve()}:{name}" if is_file(source) else target)


def check_unchanged(algorithm: Algorithm) -> None:
    """Check that processes which have imported a user's algorithm by now have the version of the start."""
    if find_algorithm(algorithm.target) != algorithm:
        raise UserError(f"{algorithm.target} has changed while the run started: start it again")
