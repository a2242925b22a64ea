"""Evaluations: the policy on held-out tasks, before, during and after the training."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forge_env.core.errors import InvariantError
from forge_env.core.reward_value import reaches
from forge_env.evaluation.evaluate import Evaluation
from forge_env.evaluation.kinds import Kinds
from forge_env.records.run_files import metrics_of, steps_of
from forge_env.records.run_weights import best_step, success_by_step
from forge_env.rollout.rollout import GroupSpec
from forge_env.utils.statistics import compare_all
from forge_env.utils.threads import invoke
from trainers.run.rollouts import Rollouts
from trainers.run.run_record import RunRecord
from trainers.setup.held_out import HeldOutSet, prefix_of


@dataclass(kw_only=True)
class Evaluations:
    """Measures the held-out sets of a run, and reads earlier results from its metrics."""

    rollouts: Rollouts
    held_out: Mapping[str, Sequence[HeldOutSet]]
    """The sets by name; "" is the headline. Each has a part of every environment that it measures."""
    kinds: Kinds = field(default_factory=Kinds)
    """The kinds of task that have metrics of their own."""

    @property
    def record(self) -> RunRecord:
        return self.rollouts.record

    async def evaluate(
        self, phase: str, *, step: int | None = None, of: Collection[str] | None = None, **env_options: Any
    ) -> Evaluation:
        """Measure the policy on the held-out tasks. Every evaluation of a run has the same seeds.

        Args:
            phase: name of the file of episodes; further sets have PHASE.NAME.
            step: optimizer steps behind the weights that the engines have; where given, all sets are measured, and
                their results are metrics. Otherwise the headline alone is.
            of: the labels of the environments that are measured; all of them by default.

        Returns:
            The headline.
        """
        start_time = time.perf_counter()
        headline = await self._measure(phase, "", step, env_options, of)
        if step is None:
            return headline
        values = self._metrics(headline) | _settings(self.held_out[""])
        for name, parts in self.held_out.items():
            if name:
                result = await self._measure(f"{phase}.{name}", name, step, env_options, of)
                metrics = self._metrics(result) | _settings(parts)
                values |= {f"{prefix_of(name)}{key}": value for key, value in metrics.items()}
                self.record.say(f"{phase}, {name}: held-out success {result}")
        values |= {"version": self.rollouts.weights.in_engines, "seconds/evaluation": time.perf_counter() - start_time}
        self.record.metrics("evaluation", step, values)
        return headline

    async def with_tools(self) -> list[str]:
        """The labels of the environments of which an instance for the first task has tools, and can switch them off."""
        return [
            part.env
            for part in self.held_out[""]
            if await self.rollouts.offers_tools(self._spec(part, 0, part.env_options))
        ]

    @property
    def greedy_change(self) -> str:
        """The greedy success of the first and of the last evaluation, in a sentence; "" if none is measured."""
        rates = self._greedy_success(self.by_step).items()
        text = ", ".join(f"{rate:.3f} {name.rpartition('_')[2]}" for name, rate in rates if rate is not None)
        return f"held-out success at temperature 0: {text}" if text else ""

    async def evaluate_step(self, step: int) -> None:
        """Evaluate the weights of a step between the first and the last, which the engines have; each step once."""
        if step in await invoke(lambda: self.by_step):  # the file grows with the run
            self.record.say(f"the weights after {step} steps are evaluated already")
            return
        result = await self.evaluate(_phase(step), step=step)
        self.record.say(f"held-out success after {step} steps: {result}")
        self.say_parts(result)

    def say_parts(self, result: Evaluation) -> None:
        """Print the success of each kind of task and the mean of each part of the reward, if there are several."""
        for title, text in {
            f"by {'environment' if self.kinds.environments else 'kind of task'}": self.kinds.text(result),
            "parts of the reward": result.parts_text,
        }.items():
            if text:
                self.record.say(f"{title}: {text}")

    def is_due(self, step: int) -> bool:
        """Whether the weights of a step between the first and the last are evaluated."""
        interval = self.rollouts.plan.config.evaluation.interval
        return bool(interval) and step % interval == 0 and 0 < step < self.rollouts.plan.steps

    @property
    def by_step(self) -> dict[int, dict[str, float]]:
        return {int(record["step"]): record for record in metrics_of(self.record.folder, "evaluation")}

    def best_step(self) -> int | None:
        """The best step of those with weights in the run's folder, see `run_weights.best_step`. Reads a file.

        The best of 0 steps are the weights that the run began with, which are not in its folder.
        """
        folder = self.record.folder
        return best_step(success_by_step(folder), [*steps_of(folder), self.rollouts.plan.steps])

    def step_to_keep(self) -> int | None:
        """The step of the checkpoint that is never removed; None without `checkpoint.keep_best`. Reads a file."""
        return self.best_step() if self.rollouts.plan.config.checkpoint.keep_best else None

    def is_best(self, step: int) -> bool:
        """Whether a checkpoint is kept of a step, as no evaluated one before it is as good. Reads a file."""
        if not self.is_due(step) or not self.rollouts.plan.config.checkpoint.keep_best:
            return False
        success = {at: rate for at, rate in success_by_step(self.record.folder).items() if at}
        return step in success and not any(reaches(rate, success[step]) for at, rate in success.items() if at < step)

    def summary(self) -> dict[str, Any]:
        """For summary.json: the best and the last step, and each set with its settings, its first and last success."""
        by_step, best, last = self.by_step, self.best_step(), self.rollouts.plan.steps
        steps = {"best": by_step.get(best, {}) if best is not None else {}, "last": by_step.get(last, {})}
        return {
            **self._greedy_success(by_step),
            "best_step": best,
            **{f"{name}_success": values.get("success") for name, values in steps.items()},
            **{f"{name}_success_ci95": _interval(values) for name, values in steps.items()},
            "last_minus_best": self._change_since(best),
            "evaluations": self._sets_measured([record for _, record in sorted(by_step.items())]),
        }

    def _change_since(self, best: int | None) -> dict[str, Any] | None:
        """How the success of the last step differs from the best; None if it is the best, or one has no episodes."""
        if best in (None, self.rollouts.plan.steps):
            return None
        before, after = self.record.evaluation(_phase(best)), self.record.evaluation("after")
        pairs = after.pairs_since(before) if before and after else None
        if pairs is None:
            return None
        change = compare_all([pairs])[0].difference
        return {"difference": change.value, "ci95": change.interval, "tasks": change.tasks}

    def _greedy_success(self, by_step: Mapping[int, Mapping[str, float]]) -> dict[str, float | None]:
        steps = {"before": 0, "after": self.rollouts.plan.steps}
        return {f"greedy_success_{when}": by_step.get(step, {}).get("greedy/success") for when, step in steps.items()}

    def _sets_measured(self, records: list[dict[str, float]]) -> dict[str, dict[str, Any]]:
        return {
            name or "headline": {
                "split": parts[0].split,
                "options": dict(parts[0].options),
                "tasks": sum(len(part.tasks) for part in parts),
                **_settings(parts),
                "success_first": records[0].get(f"{prefix_of(name)}success"),
                "success_last": records[-1].get(f"{prefix_of(name)}success"),
            }
            for name, parts in self.held_out.items()
            if records
        }

    def _metrics(self, result: Evaluation) -> dict[str, float]:
        return result.metrics() | self.kinds.evaluation_metrics(result)

    async def _measure(
        self, phase: str, name: str, step: int | None, env_options: Mapping[str, Any], of: Collection[str] | None
    ) -> Evaluation:
        start_time = time.perf_counter()
        specs = [
            self._spec(part, i, {**part.env_options, **env_options})
            for part in self.held_out[name]
            if of is None or part.env in of
            for i in range(len(part.tasks))
        ]
        result = await self.rollouts.measure(
            specs, lambda count: self.record.progress(phase, count, len(specs), {}, since=start_time)
        )
        self.record.episodes(phase, result.episodes)
        expected = self.rollouts.weights.in_engines
        versions = {version for episode in result.valid for version in episode.versions}
        if step is not None and versions - {expected}:
            raise InvariantError(f"version {expected} was to be evaluated, and {sorted(versions)} were")
        return result

    def _spec(self, held_out: HeldOutSet, index: int, options: Mapping[str, Any]) -> GroupSpec:
        """The group of a task. The phase of its seeds is not the name of an evaluation: all have the same seeds."""
        of_set: dict[str, Any] = {"agent": held_out.agent, "count": held_out.n, "is_measured": True}
        return self.rollouts.spec(
            held_out.seeds, index, held_out.tasks[index], env=held_out.env, env_options=options, **of_set
        )


def best_text(summary: Mapping[str, Any], last: int) -> str:
    """The best and the last step of a summary in a sentence, with their intervals, and whether they differ."""
    best, change = summary["best_step"], summary["last_minus_best"]
    rate = {name: _rate(summary[f"{name}_success"], summary[f"{name}_success_ci95"]) for name in ("best", "last")}
    if best == last:
        return f"the best evaluated step is the last, {last}: success {rate['last']}"
    text = f"the best evaluated step is {best}: success {rate['best']}; the last is {last}: {rate['last']}"
    if change is None:
        return text
    low, high = change["ci95"]
    verb = "do not differ" if low <= 0 <= high else "differ"
    difference = f"{change['difference']:+.3f} [{low:+.3f}, {high:+.3f}]"
    return f"{text}; on the same {change['tasks']:,} tasks they {verb}: {difference}"


def _settings(parts: Sequence[HeldOutSet]) -> dict[str, float]:
    """How a set is sampled, as numbers; those in which environments differ have their labels."""
    first = parts[0].settings()
    if all(part.settings() == first for part in parts):
        return first
    return {f"{name}/{part.env}": value for part in parts for name, value in part.settings().items()}


def _phase(step: int) -> str:
    """The name of an evaluation between the first and the last step."""
    return f"evaluation_{step:06d}"


def _interval(values: Mapping[str, float]) -> tuple[float, float] | None:
    return (values["success_low"], values["success_high"]) if "success" in values else None


def _rate(success: float | None, interval: tuple[float, float] | None) -> str:
    return "not measured" if interval is None else f"{success:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"
