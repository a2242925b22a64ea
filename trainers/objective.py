"""Objective: what an algorithm's page hands to the loop, and the parts of it that all pages make alike.

The reward that advantages are taken of is made in this order: the environment's own, or that of the user's function;
what a page adds to it (DAPO's overlong punishment); less the KL penalty, where that is in the reward. Then credit is
given, per episode or per turn (trainers/credit.py), and the advantages are divided by the scale of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from forge_env.episode import Episode, Group
from forge_env.errors import UserError
from trainers.advantages import Baseline, has_signal, make_advantages
from trainers.batch import Sample
from trainers.credit import Credit, per_target, returns_to_go, target_logprobs, turn_advantages
from trainers.kl_reward import KLPenalty

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
    kl_reference: Literal["", "generator", "model"] = ""
    """Whose logprobs the reference logprobs are: the reference model's, or, where there is none, the generator's own;
    empty where nothing needs any."""
    scale: Callable[[Sequence[float]], float] | None = None
    """What the advantages of a step are divided by, given the rewards of all its episodes."""
    reward: Callable[[Episode], float] | None = None
    """The reward that advantages are taken of; None for the episode's own."""
    kl_penalty: KLPenalty | None = None
    """What is taken off that reward, where the KL penalty is not a term of the loss."""
    credit: Credit = "episode"
    needs_siblings: bool = True
    """Whether an advantage compares siblings, so that a turn which one of them alone took has none."""
    skips: Callable[[Episode], bool] | None = None
    """Which episodes take part in the baseline and are not learned from."""
    needs_signal: bool = False
    """Whether a group whose episodes all have one reward is sampled anew (dynamic sampling)."""
    signal_reward: Callable[[Episode], float] | None = None
    """The reward that this is judged by; None for the episode's own. Neither overlong punishment nor KL is in it."""
    signal_warning: int = 32
    """Groups without a signal in a row after which the run says so, once."""
    signal_error: int = 512
    """And after which it ends."""

    def samples(self, groups: Sequence[Group], references: Sequence[Sequence[float]] | None = None) -> list[Sample]:
        """Turn the groups of a step into samples. Faults have no reward, and take no part in a baseline.

        Args:
            groups: of one step.
            references: the reference model's logprobs of the sampled targets of every valid episode, one after the
                other; needed where `kl_reference` is "model".

        Raises:
            UserError: when an advantage function of the user's own returns something else than a number for each.
        """
        episodes = [episode for group in groups for episode in group.valid]
        found = self._references(episodes, references)
        penalties = [self._penalty(episode, found[i]) for i, episode in enumerate(episodes)]
        rewards = [self._reward(e) - sum(penalty) for e, penalty in zip(episodes, penalties, strict=True)]
        scale = self.scale(rewards) if self.scale else 1.0
        advantages: list[float | tuple[float, ...]] = []
        for group in groups:
            members = slice(len(advantages), len(advantages) + len(group.valid))
            advantages += self._credit(group.valid, rewards[members], penalties[members], scale)
        return [
            Sample(rows=episode.rows, advantage=advantages[i], ref_logprobs=found[i])
            for i, episode in enumerate(episodes)
            if self.learns_from(episode)
        ]

    def learns_from(self, episode: Episode) -> bool:
        """Whether a valid episode becomes a sample."""
        return self.skips is None or not self.skips(episode)

    def has_signal(self, group: Group) -> bool:
        """Whether the rewards of a group's valid episodes are not all the same."""
        return has_signal([self.signal(episode) for episode in group.valid])

    def signal(self, episode: Episode) -> float:
        """The reward that `needs_signal` is judged by."""
        assert episode.reward is not None, "a valid episode has a reward"
        return episode.reward if self.signal_reward is None else self.signal_reward(episode)

    def _reward(self, episode: Episode) -> float:
        assert episode.reward is not None, "a valid episode has a reward"
        return episode.reward if self.reward is None else self.reward(episode)

    def _penalty(self, episode: Episode, reference: tuple[float, ...] | None) -> list[float]:
        """What each turn's tokens take off the reward."""
        if self.kl_penalty is None or reference is None:
            return [0.0] * len(episode.turns)
        return self.kl_penalty.by_turn(episode, reference)

    def _credit(
        self, episodes: Sequence[Episode], rewards: Sequence[float], penalties: Sequence[Sequence[float]], scale: float
    ) -> list[float | tuple[float, ...]]:
        """The advantages of one group's valid episodes."""
        if self.credit == "episode":
            return [advantage / scale for advantage in self._advantages(rewards)]
        returns = [
            returns_to_go(reward, [turn.reward - less for turn, less in zip(episode.turns, penalty, strict=True)])
            for episode, reward, penalty in zip(episodes, rewards, penalties, strict=True)
        ]
        found = turn_advantages(returns, self._advantages, needs_siblings=self.needs_siblings)
        return [
            per_target([advantage / scale for advantage in values], episode)
            for values, episode in zip(found, episodes, strict=True)
        ]

    def _advantages(self, rewards: Sequence[float]) -> list[float]:
        found = list(self.advantages(rewards))
        if len(found) != len(rewards) or not all(map(math.isfinite, found)):
            raise UserError(f"the advantages of the rewards {list(rewards)} are {found}: one finite number for each")
        return found

    def _references(
        self, episodes: Sequence[Episode], given: Sequence[Sequence[float]] | None
    ) -> list[tuple[float, ...] | None]:
        if self.kl_reference == "model":
            assert given is not None and len(given) == len(episodes), (
                "logprobs of the reference model, for each episode"
            )
            return [tuple(values) for values in given]
        return [target_logprobs(episode) if self.kl_reference else None for episode in episodes]


def loss_options(config: RunConfig, section: AlgorithmConfig) -> dict[str, Any]:
    """The settings that every loss takes, from an algorithm's section."""
    in_reward = section.kl_in == "reward"
    return {
        "beta": 0.0 if in_reward else section.beta,
        "aggregation": section.aggregation,
        "kl": "k3" if section.kl == "auto" else section.kl,
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
        kl_penalty=_kl_penalty(algorithm, section),
        credit=section.credit,
        needs_siblings=baseline != "none",
        **parts,
    )


def _kl_penalty(algorithm: str, section: AlgorithmConfig) -> KLPenalty | None:
    if section.kl_in == "loss" or not section.beta > 0:
        return None
    if section.kl_straight_through:
        raise UserError(
            f"--{algorithm}.kl_straight_through has no meaning with --{algorithm}.kl_in reward, through which no "
            f"gradient goes: leave it out, or use --{algorithm}.kl_in loss"
        )
    return KLPenalty(beta=section.beta, kind="k1" if section.kl == "auto" else section.kl)
