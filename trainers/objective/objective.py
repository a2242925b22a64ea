"""Objective: what an algorithm hands to the training loop, with the parts that all algorithms share.

It turns groups of episodes into samples: the reward (trainers/objective/reward.py), its baseline and scale
(trainers/objective/advantages.py), and the tokens that get it (trainers/objective/credit.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from forge_env.core.episode import Episode, Group
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome
from trainers.batching.batch import Sample
from trainers.objective.credit import Credit, by_step, per_target, returns_to_go, target_logprobs, turn_advantages
from trainers.objective.distillation import taught_advantages
from trainers.objective.reward import TrainingReward
from trainers.objective.reward_parts import RewardParts
from trainers.settings.distill import DistillConfig

if TYPE_CHECKING:
    from trainers.objective.loss_call import Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What is optimised: a loss, and the way from groups of episodes to its samples."""

    loss: Loss
    advantages: Callable[[Sequence[float]], list[float]]
    """Makes an advantage for each reward of one group's valid members, in order."""
    group_size: int
    kl_reference: Literal["", "generator", "model"] = ""
    """The source of the reference logprobs. "model": a frozen reference model, or the trainer without its adapters.
    "generator": the policy that sampled. "": nothing needs them."""
    scale: Callable[[Sequence[float]], float] | None = None
    """Makes the divisor of a step's advantages from the rewards of all its episodes."""
    reward: TrainingReward = field(default_factory=TrainingReward)
    """The reward that advantages are taken of."""
    parts: RewardParts | None = None
    """Makes the numbers that advantages are taken of from the parts of the rewards instead, with their baselines."""
    penalty_baseline: Callable[[Sequence[float]], list[float]] | None = None
    """A group's KL penalties less their baseline, which are subtracted from the advantages. None subtracts the
    penalties from the rewards instead, before `advantages` is called: for an advantage function of the user's."""
    credit: Credit = "episode"
    needs_siblings: bool = True
    """Whether an advantage compares siblings. If so, a turn that only one sibling took has none."""
    skips: Callable[[Episode], bool] | None = None
    """True for an episode that takes part in the baseline and is not learned from."""
    needs_signal: bool = False
    """Whether a group is sampled anew if all its episodes have one task reward (dynamic sampling)."""
    distillation: DistillConfig | None = None
    """What a teacher adds to the advantages or to the loss; None without one."""

    def samples(
        self,
        groups: Sequence[Group],
        reference_logprobs: Sequence[np.ndarray] | None = None,
        old_logprobs: Sequence[np.ndarray | None] | None = None,
        rewards: Sequence[Sequence[float]] | None = None,
        teacher_answers: Sequence[Any] | None = None,
    ) -> list[Sample]:
        """Turn the groups of a step into samples. Faults have no reward, and take no part in a baseline.

        Args:
            reference_logprobs: of the sampled targets of every valid episode, by the reference model; needed if
                `kl_reference` is "model".
            old_logprobs: of the sampled targets of every sample, by the trainer, if they were computed before the step;
                None for a sample that needs none.
            rewards: the result of `rewards(groups)`, if it is known already.
            teacher_answers: the teacher's answer for every valid episode, needed with `distillation`: its logprobs of
                the sampled targets or, with top_k, ids and logprobs of its most likely tokens. None means no teacher.
        """
        episodes = [episode for group in groups for episode in group.valid]
        _check_sampled(episodes)
        references = self._references(episodes, reference_logprobs)
        penalties = [self.reward.kl_by_turn(*pair) for pair in zip(episodes, references, strict=True)]
        by_group = self.rewards(groups) if rewards is None else rewards
        scale = self.scale([reward for of_group in by_group for reward in of_group]) if self.scale else 1.0
        advantages: list[float | np.ndarray] = []
        for group, of_group in zip(groups, by_group, strict=True):
            members = slice(len(advantages), len(advantages) + len(group.valid))
            advantages += self._credit(group.valid, of_group, penalties[members], scale)
        top: Sequence[Any] = [(None, None)] * len(episodes)
        if self.distillation is not None:
            assert teacher_answers is not None and len(teacher_answers) == len(episodes), (
                "the teacher's answer for each episode"
            )
            if self.distillation.top_k:
                top = [answer or (None, None) for answer in teacher_answers]
            else:
                by_episode = zip(episodes, advantages, teacher_answers, strict=True)
                coef = self.distillation.coef
                advantages = [a if t is None else taught_advantages(coef, e, a, t) for e, a, t in by_episode]
        numbers = [i for i, episode in enumerate(episodes) if self.learns_from(episode)]
        old = [None] * len(numbers) if old_logprobs is None else old_logprobs
        return [
            Sample(
                rows=episodes[i].rows,
                advantage=advantages[i],
                reference_logprobs=references[i],
                old_logprobs=values,
                teacher_ids=top[i][0],
                teacher_logprobs=top[i][1],
            )
            for i, values in zip(numbers, old, strict=True)
        ]

    def with_verdicts(self, group: Group) -> Group:
        """The group as it is trained on: an episode that the user's reward function fails for is a fault."""
        if self.reward.user_reward is None:
            return group

        def judge(episode: Episode) -> Episode:
            try:
                self.reward.of_task(episode)
            except UserError as error:
                return replace(
                    episode, outcome=Outcome.ENV_FAULT, reward=None, success=None, ended_by="", error=str(error)
                )
            return episode

        return replace(group, episodes=tuple(judge(e) if e.outcome.is_valid else e for e in group.episodes))

    def rewards(self, groups: Sequence[Group]) -> list[list[float]]:
        """The training reward of each valid episode, by group. Advantages are taken of it."""
        if self.parts is not None:
            return [self.parts(group.valid) for group in groups]
        return [[self.reward(episode) for episode in group.valid] for group in groups]

    @property
    def top_coef(self) -> float:
        """Weight of the reverse KL over a teacher's most likely tokens; 0 if it is not a term of the loss."""
        return self.distillation.coef if self.distillation is not None and self.distillation.top_k else 0.0

    def learns_from(self, episode: Episode) -> bool:
        """Whether a valid episode becomes a sample."""
        return self.skips is None or not self.skips(episode)

    def task_rewards(self, group: Group) -> list[float]:
        """The task rewards of a group's valid episodes. Dynamic sampling judges the group by them, see `has_signal`."""
        if self.parts is not None:
            return self.parts(group.valid)
        return [self.reward.of_task(episode) for episode in group.valid]

    def _credit(
        self, episodes: Sequence[Episode], rewards: Sequence[float], penalties: Sequence[Sequence[float]], scale: float
    ) -> list[float | np.ndarray]:
        """The advantages of one group's valid episodes, from their rewards and the KL penalty of each turn."""
        is_own = self.reward.user_reward is not None  # then the environment's step rewards are not parts of the reward
        step_rewards = [by_step([0.0 if is_own else turn.reward for turn in e.work], e) for e in episodes]
        penalties = [by_step(penalty, episode) for penalty, episode in zip(penalties, episodes, strict=True)]
        if (scale_of := self.reward.scale) is not None:
            step_rewards = [[scale_of(e) * r for r in of_e] for e, of_e in zip(episodes, step_rewards, strict=True)]
        totals = [sum(penalty) for penalty in penalties]
        if self.penalty_baseline is None:
            rewards = [reward - total for reward, total in zip(rewards, totals, strict=True)]
            step_rewards = _differences(step_rewards, penalties)
        is_taught = self.distillation is not None and self.distillation.only
        values = self._by_turn(rewards, step_rewards, (lambda of: [0.0] * len(of)) if is_taught else self._advantages)
        values = [[advantage / scale for advantage in of_episode] for of_episode in values]
        if self.penalty_baseline is not None and self.reward.kl_penalty is not None:
            values = _differences(values, self._by_turn(totals, penalties, self.penalty_baseline))
        if self.credit == "episode":
            return [of_episode[0] for of_episode in values]
        return [per_target(of_turns, episode) for of_turns, episode in zip(values, episodes, strict=True)]

    def _by_turn(
        self,
        totals: Sequence[float],
        step_rewards: Sequence[Sequence[float]],
        advantages: Callable[[Sequence[float]], list[float]],
    ) -> list[list[float]]:
        """For each sibling, the advantage of its total, or the advantages of its returns, one for each turn."""
        if self.credit == "episode":
            return [[advantage] for advantage in advantages(totals)]
        returns = [returns_to_go(*of_episode) for of_episode in zip(totals, step_rewards, strict=True)]
        return turn_advantages(returns, advantages, needs_siblings=self.needs_siblings)

    def _advantages(self, rewards: Sequence[float]) -> list[float]:
        advantages = list(self.advantages(rewards))
        if len(advantages) != len(rewards) or not all(map(math.isfinite, advantages)):
            raise UserError(
                f"the advantages of the rewards {list(rewards)} are {advantages}: one finite number for each"
            )
        return advantages

    def _references(
        self, episodes: Sequence[Episode], references: Sequence[np.ndarray] | None
    ) -> Sequence[np.ndarray | None]:
        if self.kl_reference == "model":
            assert references is not None and len(references) == len(episodes), (
                "logprobs of the reference model, for each episode"
            )
            return references
        return [target_logprobs(episode) if self.kl_reference else None for episode in episodes]


def _differences(values: Sequence[Sequence[float]], less: Sequence[Sequence[float]]) -> list[list[float]]:
    """The first less the second, number by number."""
    return [[a - b for a, b in zip(*both, strict=True)] for both in zip(values, less, strict=True)]


def _check_sampled(episodes: Sequence[Episode]) -> None:
    """Raise UserError if a turn was not sampled, and so has no logprobs. An episode may have no turn at all."""
    for episode in episodes:
        kind = next((turn.kind for turn in episode.turns if turn.kind != "sampled"), None)
        if kind is not None:
            raise UserError(
                f"the episode {episode.id} has a turn of the kind {kind!r}, without the logprobs that it was sampled "
                "by: reinforcement learning needs turns of the kind 'sampled'; train on others with trainers.sft"
            )
