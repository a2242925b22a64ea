"""SampleMaker: from the groups of a step to its samples, with the logprobs that other models have to compute.

The samples are made in a thread: there are millions of tokens, and functions of the user's own are called.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forge_env.core.episode import Group
from forge_env.utils.threads import invoke
from trainers.batching.batch import Sample
from trainers.objective.advantages import has_signal, spread
from trainers.objective.distillation import teacher_kl
from trainers.objective.objective import Objective
from trainers.objective.old_logprobs import Logprobs, rows_of


@dataclass(frozen=True, kw_only=True)
class SampleMaker:
    objective: Objective
    reference: Logprobs | None = None
    """The reference model; needed where the objective's `kl_reference` is "model"."""
    teacher: Callable[[Sequence[Group]], Awaitable[Sequence[Any]]] | None = None
    """Makes the teacher's answer for every valid episode, None for one that it does not judge; needed where the
    objective distils one."""

    async def __call__(
        self, groups: Sequence[Group], old_logprobs: Sequence[np.ndarray | None] | None = None
    ) -> tuple[list[Sample], list[list[float]], dict[str, float]]:
        """Return the samples of a step, the training rewards of its groups, and metrics.

        Args:
            old_logprobs: of its samples, in order, if they were computed before; None for a sample that needs none.

        Returns:
            The samples; the training reward of every valid episode by group; and as metrics training_reward and
            training_reward_std, their mean and standard deviation over episodes, group_reward_std, the mean over groups
            of their standard deviation, groups_with_signal, seconds/reference and seconds/teacher if these models were
            asked, kl_penalty, the mean of the KL penalty that is subtracted from an episode's reward, taught, the
            share of episodes that a teacher judges, and teacher_kl, see `trainers.objective.distillation.teacher_kl`.
        """
        episodes = [episode for group in groups for episode in group.valid]
        rewards = await invoke(self.objective.rewards, groups)
        metrics = _reward_metrics(rewards)
        answers: dict[str, Sequence[Any]] = {}
        for name, model in (("reference", self.reference), ("teacher", self.teacher)):
            if model is not None:
                start_time = time.perf_counter()
                read: Any = groups if name == "teacher" else await invoke(rows_of, episodes)
                answers[name] = await model(read)
                metrics[f"seconds/{name}"] = time.perf_counter() - start_time
        references, teacher_answers = answers.get("reference"), answers.get("teacher")
        samples = await invoke(self.objective.samples, groups, references, old_logprobs, rewards, teacher_answers)
        if teacher_answers is not None:
            with_answer = [pair for pair in zip(episodes, teacher_answers, strict=True) if pair[1] is not None]
            metrics["taught"] = len(with_answer) / max(len(episodes), 1)
            if with_answer and not self.objective.top_coef:
                metrics["teacher_kl"] = await invoke(teacher_kl, *zip(*with_answer, strict=True))
        if self.objective.reward.kl_penalty is not None and references is not None:
            by_turn, pairs = self.objective.reward.kl_by_turn, zip(episodes, references, strict=True)
            penalties = await invoke(lambda: [sum(by_turn(*pair)) for pair in pairs])
            metrics["kl_penalty"] = sum(penalties) / max(len(penalties), 1)
        return samples, rewards, metrics


def _reward_metrics(rewards: Sequence[Sequence[float]]) -> dict[str, float]:
    values = [reward for of_group in rewards for reward in of_group]
    if not values:
        return {"groups_with_signal": 0.0}
    return {
        "training_reward": math.fsum(values) / len(values),
        "training_reward_std": statistics.pstdev(values),
        "group_reward_std": statistics.fmean(spread(of_group) for of_group in rewards if of_group),
        "groups_with_signal": float(sum(map(has_signal, rewards))),
    }
