"""Learner: from the groups of a step to an optimizer step and its record."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from forge_env.core.episode import Group
from forge_env.evaluation.evaluate import is_success
from forge_env.evaluation.metrics import (
    model_call_metrics,
    reward_part_metrics,
    reward_parts,
    row_metrics,
    tool_metrics,
)
from forge_env.rollout.rollout import GroupSpec
from forge_env.utils.threads import invoke
from trainers.controller.alarms import MismatchAlarm
from trainers.controller.drop_counts import SignalCounts
from trainers.controller.ledger import Prompt
from trainers.controller.loop_state import LoopState
from trainers.controller.sample_maker import SampleMaker
from trainers.metrics.engine_use import EngineUse
from trainers.objective.objective import Objective
from trainers.objective.old_logprobs import OldLogprobs
from trainers.run.checkpointing import is_due, save_checkpoint
from trainers.run.run import Run
from trainers.run.teachers import Teachers
from trainers.run.warmup import tasks_after_warmup


@dataclass(kw_only=True)
class Learner:
    """Chooses the tasks of groups, learns from them, and writes down what was learned."""

    run: Run
    objective: Objective
    alarm: MismatchAlarm
    start_time: float
    """`time.perf_counter()` at the beginning of training; of a resumed run, as if it had never stopped."""

    def __post_init__(self) -> None:
        run, objective = self.run, self.objective
        self.tasks = {
            share.label: tasks_after_warmup(share.config.warmup, run.train_tasks[share.label])
            for share in run.plan.environments
        }
        reference = run.trainer.reference_logprobs if objective.kl_reference == "model" else None
        teacher = None if objective.distillation is None else Teachers(run.plan, run.trainer.teacher_answers, run.model)
        self.make_samples = SampleMaker(objective=objective, reference=reference, teacher=teacher)
        self.old: OldLogprobs | None = None  # if the importance ratio is taken against the generator
        if run.plan.old_logprobs == "trainer":
            self.old = OldLogprobs(objective=objective, logprobs=run.trainer.logprobs)
        self.signal, self._engine_use = SignalCounts(run.kinds), EngineUse()
        self._began = time.time()  # since when the groups of the first step are sampled

    def spec(self, prompt: Prompt) -> GroupSpec:
        """The group of a prompt; each environment has one for every number from 0 on."""
        env, place, number = prompt
        count, task = self.run.plan.share(env).group_size, self.tasks[env][number]
        return self.run.rollouts.spec("train", place, task, env=env, agent="policy", count=count)

    def keeps(self, group: Group) -> bool:
        return self.run.plan.share(group.env).config.env.fault_policy().keeps(group)

    def note_drop(self, group: Group, rewards: Sequence[float]) -> None:
        """Take note of a group that dynamic sampling drops, with the task rewards of its valid episodes."""
        self.signal.add(group, rewards)
        for observer in self.run.record.observers:
            observer.waiting(self.signal.metrics)

    def left_out(self, error: str) -> None:
        """Say that an episode is left out, the first one of a run."""
        self.run.record.warn(
            f"warning: an episode is left out, and later ones are counted in episodes_unjudged: {error}"
        )

    def has_gradient(self, metrics: Mapping[str, float]) -> bool:
        """Whether a step with these metrics has learned from its rewards.

        The KL penalty alone does not count: it holds the model near its start, where its gradient is rounding.
        """
        if metrics["skipped"] or not metrics["grad_norm"] > 0:
            return False
        training = self.run.plan.config.training
        has_own_parts = bool(training.entropy_coef or training.loss or training.advantages)
        has_own_parts |= self.objective.distillation is not None
        return metrics["groups_with_signal"] > 0 or has_own_parts or not self.objective.needs_siblings

    # ---- steps ----

    async def begin_window(self, batches: Sequence[Sequence[Group]]) -> dict[str, float]:
        """Prepare the steps of a window, before the first of them; returns metrics of the first step."""
        return await self.old.begin_window(batches) if self.old else {}

    async def train_step(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """Make the samples of a step's groups, and take one optimizer step on them; returns its metrics."""
        run = self.run
        episodes = [episode for group in groups for episode in group.valid]
        ages = run.weights.ages_of(episodes)
        run.record.startup.until_now("first rollouts", self._began)
        async with run.first_step():
            old = self.old.take() if self.old else None
            samples, rewards, sample_metrics = await self.make_samples(groups, old)
            await run.record.wait_for_writes()  # the episodes of the step before: a slow disk is waited for here
            async with self._engine_use.reading(run.rollouts.engines) as use:
                metrics = await run.trainer.step(
                    samples,
                    self.objective.loss,
                    old_is_present=self.old is not None and old is None,
                    compare_replay=run.plan.compares_replay(step),
                    distill_coef=self.objective.top_coef,
                )
                use_metrics = await use
        active = [episode for episode in episodes if self.objective.learns_from(episode)]
        run.record.add_trained(step, zip(active, (sample.advantage for sample in samples), strict=True))
        run.weights.ages.note_step(skipped=bool(metrics["skipped"]))
        for pair in zip(groups, rewards, strict=True):
            self.signal.add(*pair)
        sample_metrics |= self.signal.metrics | {"mismatch_alarm": self.alarm(metrics, is_fresh=not any(ages))}
        self.signal.clear()
        staleness = {"staleness_mean": sum(ages) / len(ages), "staleness_max": float(max(ages))} if ages else {}
        return metrics | sample_metrics | staleness | use_metrics

    # ---- between two steps ----

    def record_step(self, step: int, groups: Sequence[Group], metrics: dict[str, float]) -> None:
        run = self.run
        episodes = [episode for group in groups for episode in group.valid]
        episodes_run = [episode for group in groups for episode in (*group.episodes, *group.replaced)]
        seconds = metrics["seconds/step"]
        limits = Counter(episode.ended_by for episode in episodes if episode.ended_by not in ("", "environment"))
        values = metrics | {
            "reward": fmean(episode.reward or 0.0 for episode in episodes),
            "success": fmean(map(is_success, episodes)),
            "tokens/s": sum(episode.num_sampled for episode in episodes) / seconds,
            "s/step": seconds,
            **row_metrics(episodes),
            **reward_part_metrics(reward_parts(episodes)),
            **tool_metrics(episodes),
            **model_call_metrics(episodes_run),
            "episodes": len(episodes),
            "unstopped": float(sum("unstopped" in episode.info for episode in episodes_run)),
            "processes_replaced": float(run.num_replaced),
            "groups_run_again": float(sum(service.client.retries for service in run.rollouts.envs.values())),
            **{f"ended_by/{limit}": number / len(episodes) for limit, number in limits.items()},
            **run.kinds.training_metrics(episodes),
            **run.cheats.metrics(episodes),
        }
        run.record.metrics("train", step, values)
        run.record.point(step, values)
        run.record.episodes("train", episodes_run)

    def is_evaluated(self, step: int) -> bool:
        """Whether the weights after a step are evaluated; the loop asks only of weights that the engines get."""
        return self.run.evaluations.is_due(step)

    async def evaluate(self, step: int) -> None:
        """Evaluate the weights after a step. Every engine has them, and gets no others meanwhile."""
        await self.run.evaluations.evaluate_step(step)

    async def after_step(self, step: int, state: LoopState | None) -> None:
        """Save a checkpoint if one is due, or if no evaluation before was as good; never inside of a window (no
        `state`)."""
        if state is not None and (is_due(self.run.plan, step) or await invoke(self.run.evaluations.is_best, step)):
            await self.save(state, asynchronous=self.run.plan.config.checkpoint.asynchronous)

    async def end_at(self, steps: int) -> None:
        await self.run.trainer.end_at(steps, self.run.plan.rate)
        self.run.record.console.set_total("train", steps)

    async def save(self, state: LoopState, *, asynchronous: bool = False) -> None:
        seconds = time.perf_counter() - self.start_time
        place, texts = state.to_json()
        place |= {"ages": self.run.weights.ages.state_dict(), "seconds": seconds}
        await save_checkpoint(self.run, state.steps_done, place, texts=texts, asynchronous=asynchronous)
