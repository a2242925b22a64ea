"""PolicyGradientWork: the `LoopWork` of a policy-gradient run, done by the services of the run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from forge_env.core.episode import Group
from forge_env.evaluation.evaluate import is_success
from forge_env.evaluation.metrics import model_call_metrics, row_metrics, tool_metrics
from forge_env.rollout.rollout import GroupSpec
from trainers.controller.alarms import MismatchAlarm
from trainers.controller.diagnosis import Diagnosis
from trainers.controller.loop_state import LoopState
from trainers.controller.loop_work import LoopWork
from trainers.controller.ready_groups import READY_FILE, pack
from trainers.controller.sample_maker import SampleMaker
from trainers.controller.signal_counts import SignalCounts
from trainers.controller.task_order import TaskOrder
from trainers.objective.objective import Objective
from trainers.objective.old_logprobs import OldLogprobs
from trainers.run.checkpointing import is_due, save_checkpoint
from trainers.run.engine_use import EngineUse
from trainers.run.training_run import TrainingRun


@dataclass(kw_only=True)
class PolicyGradientWork(LoopWork):
    """Groups from the environments, steps of the trainer, weights for the engines, and the record of all of it."""

    run: TrainingRun
    objective: Objective
    tasks: TaskOrder
    alarm: MismatchAlarm
    diagnosis: Diagnosis
    signal: SignalCounts
    make_samples: SampleMaker
    old: OldLogprobs | None = None
    """None where the importance ratio is taken against the generator."""
    started: float
    """`time.perf_counter()` at the beginning of training; of a resumed run, as if it had never stopped."""
    _engines: EngineUse = field(default_factory=EngineUse, init=False)
    _began: float = field(default_factory=time.time, init=False)  # since when the first step's groups are sampled

    @property
    def engine_steps(self) -> int:
        return self.run.weights.engine_steps

    # ---- groups ----

    def spec(self, number: int) -> GroupSpec:
        task, count = self.tasks.task(number), self.objective.group_size
        return self.run.rollouts.spec("train", number, task, agent="policy", count=count)

    async def run_group(self, spec: GroupSpec) -> Group:
        return await self.run.rollouts.run_group(spec)

    async def run_wave(self, specs: Sequence[GroupSpec]) -> list[Group]:
        return await self.run.rollouts.run_wave(specs)

    def keeps(self, group: Group) -> bool:
        return self.run.plan.env.fault_policy().keeps(group)

    def dropped(self, group: Group, rewards: Sequence[float]) -> None:
        self.signal.add(group, rewards)
        self.diagnosis.waiting(self.signal.metrics)

    async def progress(self) -> object:
        return await self.run.services.progress()

    # ---- steps ----

    async def begin_window(self, batches: Sequence[Sequence[Group]]) -> dict[str, float]:
        return await self.old.begin_window(batches) if self.old else {}

    async def train_step(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """One optimizer step on the groups that the loop hands over, and the on-policy check beside it."""
        run = self.run
        episodes = [episode for group in groups for episode in group.valid]
        ages = run.weights.ages_of(episodes)
        run.startup.until_now("first rollouts", self._began)
        async with run.first_step():
            old = self.old.take() if self.old else None
            samples, rewards, made = await self.make_samples(groups, old)
            await run.report.written()  # the episodes of the step before: a slow disk is waited for here
            is_present = self.old is not None and old is None
            async with self._engines.reading(run.services.policy) as use:
                options = {"old_is_present": is_present, "compare_replay": run.plan.compares_replay(step)}
                metrics = await run.train_step(samples, self.objective.loss, **options)
                used = await use
        learned = [episode for episode in episodes if self.objective.learns_from(episode)]
        run.report.trained(step, zip(learned, (sample.advantage for sample in samples), strict=True))
        run.weights.ages.trained(skipped=bool(metrics["skipped"]))
        for pair in zip(groups, rewards, strict=True):
            self.signal.add(*pair)
        made |= self.signal.metrics | {"mismatch_alarm": self.alarm(metrics, is_fresh=not any(ages))}
        self.signal.clear()
        return metrics | made | _staleness(ages) | used

    async def publish_weights(self, step: int) -> dict[str, float]:
        return await self.run.weights.publish(step)

    async def pull_weights(self, step: int) -> dict[str, float]:
        return await self.run.weights.pull()

    async def prove_weights(self, step: int) -> dict[str, float]:
        return await self.run.weights.prove()

    # ---- between two steps ----

    def record_step(self, step: int, groups: Sequence[Group], metrics: dict[str, float]) -> None:
        """Write one optimizer step down, and show it."""
        report, services = self.run.report, self.run.services
        episodes = [episode for group in groups for episode in group.valid]
        seconds = metrics["seconds/step"]
        shown = {
            "reward": sum(episode.reward or 0.0 for episode in episodes) / len(episodes),
            "success": sum(map(is_success, episodes)) / len(episodes),
            "tokens/s": sum(episode.num_sampled for episode in episodes) / seconds,
            "s/step": seconds,
        }
        counts = {
            "episodes": len(episodes),
            "processes_replaced": float(services.replaced),
            "groups_run_again": float(services.envs.client.retries),
        }
        by_kind = self.run.kinds.training_metrics(episodes)
        played = [episode for group in groups for episode in (*group.episodes, *group.replaced)]
        ended = Counter(episode.ended_by for episode in episodes if episode.ended_by not in ("", "environment"))
        counts |= {f"ended_by/{limit}": number / len(episodes) for limit, number in ended.items()}
        figures = row_metrics(episodes) | tool_metrics(episodes) | model_call_metrics(played)
        values = metrics | shown | figures | counts | by_kind
        report.metrics("train", step, values)
        report.point(step, values)
        report.episodes("train", played)

    def is_evaluated(self, step: int) -> bool:
        return self.run.evaluations.is_due(step)

    async def evaluate(self, step: int) -> None:
        await self.run.evaluations.evaluate_step(step)

    async def after_step(self, step: int, state: LoopState | None) -> None:
        if state is not None and is_due(self.run.plan, step):
            await self.save(state, asynchronous=self.run.plan.checkpoint.asynchronous)

    async def save(self, state: LoopState, *, asynchronous: bool = False) -> None:
        """Save a checkpoint of the run."""
        seconds = time.perf_counter() - self.started
        ready, lines = pack(state.ready)
        place = {
            "ledger": state.ledger.state_dict(),
            "ready": ready,
            "lengths": state.lengths.state_dict(),
            "ages": self.run.weights.ages.state_dict(),
            "drops": asdict(state.drops),
            "seconds": seconds,
        }
        texts = {READY_FILE: lines} if ready else {}
        await save_checkpoint(self.run, state.steps_done, place, texts=texts, asynchronous=asynchronous)


def _staleness(ages: Sequence[int]) -> dict[str, float]:
    return {"staleness_mean": sum(ages) / len(ages), "staleness_max": float(max(ages))} if ages else {}
