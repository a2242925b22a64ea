"""Objective: what an algorithm's page hands to the loop, and the parts of it that all pages make alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge_env.episode import Episode, Group
from forge_env.errors import UserError
from trainers.advantages import Baseline, make_advantages
from trainers.batch import Sample

if TYPE_CHECKING:
    from trainers.config import AlgorithmConfig, RunConfig
    from trainers.loss_call import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What is optimised: a loss, and how groups of episodes become its samples."""

    loss: Loss
    advantages: Callable[[Sequence[float]], list[float]]
    """Of the rewards of one group's valid members, in order."""
    group_size: int
    kl_reference: str = ""
    """"generator" where the loss names reference logprobs and there is no reference model."""
    scale: Callable[[Sequence[float]], float] | None = None
    """What the advantages of a step are divided by, given all of its rewards."""
    reward: Callable[[Episode], float] | None = None
    """The reward that advantages are taken of; None for the episode's own."""
    skips: Callable[[Episode], bool] | None = None
    """Which episodes take part in the baseline and are not learned from."""
    needs_signal: bool = False
    """Whether a group whose episodes all have one reward is sampled anew (dynamic sampling)."""

    def samples(self, groups: Sequence[Group]) -> list[Sample]:
        """Turn the groups of a step into samples. Faults have no reward, and take no part in a baseline.

        Raises:
            UserError: when an advantage function of the user's own returns something else than a number for each.
        """
        rewards = [[self._reward(episode) for episode in group.valid] for group in groups]
        scale = self.scale([reward for group in rewards for reward in group]) if self.scale else 1.0
        return [
            Sample(rows=episode.rows, advantage=advantage / scale, ref_logprobs=self._reference(episode))
            for group, values in zip(groups, rewards, strict=True)
            for episode, advantage in zip(group.valid, self._advantages(values), strict=True)
            if self.skips is None or not self.skips(episode)
        ]

    def _reward(self, episode: Episode) -> float:
        assert episode.reward is not None, "a valid episode has a reward"
        return episode.reward if self.reward is None else self.reward(episode)

    def _advantages(self, rewards: Sequence[float]) -> list[float]:
        found = list(self.advantages(rewards))
        if len(found) != len(rewards) or not all(map(math.isfinite, found)):
            raise UserError(f"the advantages of the rewards {list(rewards)} are {found}: one finite number for each")
        return found

    def _reference(self, episode: Episode) -> tuple[float, ...] | None:
        if not self.kl_reference:
            return None
        return tuple(
            logprob for row in episode.rows for logprob, sampled in zip(row.logprobs, row.mask, strict=True) if sampled
        )


def loss_options(config: RunConfig, section: AlgorithmConfig) -> dict[str, Any]:
    """The settings that every loss takes, from an algorithm's section."""
    return {
        "beta": section.beta,
        "aggregation": section.aggregation,
        "kl": section.kl,
        "kl_straight_through": section.kl_straight_through,
        "entropy_coef": config.training.entropy_coef,
        "constant": section.constant or float(config.env.max_tokens),
        "correction": section.correction,
        "correction_low": section.correction_low,
        "correction_high": section.correction_high,
    }


def make_objective(
    algorithm: str, loss: Loss, section: AlgorithmConfig, *, baseline: Baseline = "mean", **parts: Any
) -> Objective:
    """Put an objective together: group size, advantages and the KL's reference come from the algorithm's section.

    Args:
        algorithm: the section's name, for what an error says.
        loss: see `Objective`, as `parts`.
        section: the algorithm's settings.
        baseline: what is subtracted from the rewards of a group.

    Raises:
        UserError: for a setting out of range.
    """
    least = 1 if baseline == "none" else 2
    if section.n_samples < least:
        option = f"--{algorithm}.n_samples is {section.n_samples}"
        raise UserError(f"{option}; an advantage needs at least {least} episodes of each task")
    advantages, scale = make_advantages(baseline, section.normalization, std_eps=section.std_eps, ddof=section.std_ddof)
    return Objective(
        loss=loss,
        advantages=advantages,
        scale=scale,
        group_size=section.n_samples,
        kl_reference="generator" if section.beta > 0 else "",
        **parts,
    )
