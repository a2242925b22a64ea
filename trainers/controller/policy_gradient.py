"""The course of a policy-gradient run: warm up, measure, train, measure again, write everything down."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from forge_env.core.episode import Group
from forge_env.core.errors import UserError
from forge_env.core.types import Task
from forge_env.evaluation.evaluate import Evaluation, is_success
from forge_env.evaluation.metrics import tool_metrics
from forge_env.runtime.launcher import within
from forge_env.tool_env.tool_env import ToolEnv
from trainers.batching.lengths import Lengths
from trainers.checkpoints import Checkpoint
from trainers.config import RunConfig
from trainers.controller.ages import WeightAges, estimate
from trainers.controller.alarms import MismatchAlarm, make_alarm
from trainers.controller.ledger import Ledger
from trainers.controller.loop import Loop
from trainers.controller.passes import Passes, first_whole_pass
from trainers.controller.ready import READY_FILE, ReadyGroup, pack, unpack
from trainers.controller.sample_maker import SampleMaker
from trainers.objective.objective import Objective, kl_remark
from trainers.objective.old_logprobs import OldLogprobs, about_ratio, whose_old_logprobs, window
from trainers.objective.plugins import resolve
from trainers.run.facts import add_fact
from trainers.run.reference import KEPT_AS
from trainers.run.run import SAMPLES_SHOWN, TINY_WARMUP_STEPS, Run, open_run
from trainers.run.warmup import undemonstrated_first, warm_up
from trainers.setup.deadlines import patience


async def run_policy_gradient(algorithm: str, config: RunConfig, objective: Objective) -> None:
    """Run one algorithm from its objective to its summary.

    Raises:
        UserError: for settings that contradict each other, and parts of the user's own that cannot be used, before
            anything starts.
    """
    objective = resolve(objective, config)
    async with open_run(algorithm, config) as run:
        await run.services.guard(_phases(run, objective))


@dataclass(kw_only=True)
class Step:
    """One optimizer step on the groups that the loop hands over, and the on-policy check beside it."""

    run: Run
    objective: Objective
    alarm: MismatchAlarm
    make: SampleMaker
    ages: WeightAges
    old: OldLogprobs | None = None
    """None where the ratio is taken against the generator."""
    number: int = 0
    """Of the last step."""
    began: float = field(default_factory=time.time)
    """Since when the first step's groups are sampled."""

    async def __call__(self, groups: Sequence[Group]) -> dict[str, float]:
        self.number += 1
        self.ages.published(self.run.version)
        episodes = [episode for group in groups for episode in group.valid]
        ages = self.ages.of(episodes)
        self.run.startup.until_now("first rollouts", self.began)
        async with self.run.first_step():
            old = self.old.take() if self.old else None
            samples, seconds = await self.make(groups, old)
            is_present = self.old is not None and old is None
            metrics = await self.run.train_step(samples, self.objective.loss, old_is_present=is_present)
        learned = [episode for episode in episodes if self.objective.learns_from(episode)]
        self.run.report.trained(self.number, zip(learned, (s.advantage for s in samples), strict=True))
        self.ages.trained(skipped=bool(metrics["skipped"]))
        alarm = self.alarm(self.number, metrics, is_fresh=not any(ages))
        return metrics | seconds | {"mismatch_alarm": alarm} | _staleness(ages)


def _staleness(ages: Sequence[int]) -> dict[str, float]:
    return {"staleness_mean": sum(ages) / len(ages), "staleness_max": float(max(ages))} if ages else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Where the training begins, or goes on."""

    before: Evaluation
    tool_off: Evaluation | None
    steps_done: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    ready: Sequence[ReadyGroup] = ()
    ages: WeightAges
    lengths: Lengths = field(default_factory=Lengths)
    faults: Counter[str] = field(default_factory=Counter)
    shuffled_from: int = 1
    """The first pass over the tasks that is in an order of its own, see `Passes`."""
    seconds: float = 0.0
    """Seconds of training that were spent before."""


async def _phases(run: Run, objective: Objective) -> None:
    config, report = run.config, run.report
    training, whose = config.training, whose_old_logprobs(config)
    add_fact(report.folder, "old_logprobs", whose)
    report.say(f"the importance ratio is {about_ratio(config)}")
    start = await (_go_on(run, run.checkpoint) if run.checkpoint else _begin(run))
    await _settle_reference(run, objective)
    if remark := kl_remark(config):
        report.warn(remark)

    started = time.perf_counter() - start.seconds
    shown = ("reward", "success", "tokens/s", "s/step")
    report.follow("train", title=run.algorithm, total=training.steps, names=shown, since=started)
    step = Step(
        run=run,
        objective=objective,
        alarm=make_alarm(config, report.say),
        make=SampleMaker(
            objective=objective, reference=run.reference_logprobs if objective.kl_reference == "model" else None
        ),
        ages=start.ages,
        old=OldLogprobs(objective=objective, logprobs=run.old_logprobs) if whose == "trainer" else None,
        number=start.steps_done,
    )

    async def after_step(number: int) -> None:
        if not loop.is_in_window and run.is_due(number, window=window(config)):
            await _save(run, loop, step, passes, started, asynchronous=config.checkpoint.asynchronous)

    async def run_wave(numbered: Sequence[tuple[Task, int]]) -> list[Group]:
        return await run.run_wave(numbered, phase="train", agent="policy", count=objective.group_size)

    tasks = _train_tasks(config, run.train_tasks)
    passes = Passes(tasks=tasks, seed=training.seed, shuffled_from=start.shuffled_from)
    loop = Loop(
        objective=objective,
        task=passes.task,
        run_group=lambda task, i: run.run_group(task, i, phase="train", agent="policy", count=objective.group_size),
        run_wave=run_wave if training.deterministic else None,
        train_step=step,
        begin_window=step.old.begin_window if step.old else None,
        publish_weights=lambda _: run.publish_weights(),
        pull_weights=lambda _: run.pull_weights(),
        on_step=lambda step, groups, metrics: _record(run, step, groups, metrics),
        evaluate=run.evaluate_step,
        is_evaluated=run.is_evaluated,
        after_step=after_step,
        steps=training.steps,
        steps_done=start.steps_done,
        ledger=start.ledger,
        ready=start.ready,
        lengths=start.lengths,
        faults=start.faults,
        batch_size=config.groups_per_step,
        sync_interval=training.sync_interval,
        staleness=config.staleness,
        patience=patience(config),
        progress=run.services.progress,
        keeps=run.config.env.fault_policy().keeps,
        warn=report.warn,
    )
    if run.is_evaluated(start.steps_done):  # it goes on from the last step of a shorter run, which is none any more
        await run.evaluate_step(start.steps_done)
    await loop.run()
    train_seconds = time.perf_counter() - started
    if run.checkpoint is None or run.checkpoint.step < training.steps:
        await _save(run, loop, step, passes, started)

    after = await run.evaluate("after", step=training.steps)
    await run.export()
    _close(run, start.before, after, start.tool_off, loop, train_seconds)


def _train_tasks(config: RunConfig, tasks: Sequence[Task]) -> Sequence[Task]:
    return undemonstrated_first(tasks, config.warmup) if _warmup_steps(config) else tasks


def _warmup_steps(config: RunConfig) -> int:
    return config.warmup.steps if config.warmup.steps >= 0 else TINY_WARMUP_STEPS * (not config.model.path)


async def _begin(run: Run) -> _Start:
    """Warm up and measure, then begin to train."""
    config, report = run.config, run.report
    steps = _warmup_steps(config)
    run.results["warmup_steps"] = 0
    if steps:
        with run.startup.phase("warm-up"):
            run.results["warmup_steps"] = await warm_up(run, steps)
    await run.sync_weights()
    with run.startup.phase("evaluation"):
        before = await run.evaluate("before", step=0)
    report.say(f"held-out success before {run.algorithm}: {before}")
    tool_off = None
    if _has_tools(run):
        with run.startup.phase("evaluation without tools"):
            tool_off = await run.evaluate("tool_off", use_tools=False)
        report.say(f"held-out success with the tool switched off: {tool_off}")
    await _begin_training(run)
    return _Start(before=before, tool_off=tool_off, ages=WeightAges(staleness=config.staleness))


async def _go_on(run: Run, checkpoint: Checkpoint) -> _Start:
    """Take everything that came before from a checkpoint."""
    ready = unpack(checkpoint.extra["place"].get("ready", ()), checkpoint.path)
    await _begin_training(run)  # of the present settings; the checkpoint says how far it has come
    with run.startup.phase("checkpoint"):
        place = await run.restore(checkpoint)
    await run.sync_weights()
    ledger, lengths, ages = Ledger(), Lengths(), WeightAges(staleness=run.config.staleness)
    ledger.load_state_dict(place["ledger"])
    lengths.load_state_dict(place.get("lengths", lengths.state_dict()))
    guess = estimate(checkpoint.step, run.version, run.config.training.sync_interval)
    ages.load_state_dict(place.get("ages", guess))
    return _Start(
        before=run.report.evaluation("before"),
        tool_off=run.report.evaluation("tool_off") if _has_tools(run) else None,
        steps_done=checkpoint.step,
        ledger=ledger,
        ready=ready,
        ages=ages,
        lengths=lengths,
        faults=Counter(place["faults"]),
        # A checkpoint that does not say was written by a version whose passes were all in one order.
        shuffled_from=place.get("shuffled_from", first_whole_pass(ledger.counts["begun"], len(run.train_tasks))),
        seconds=place["seconds"],
    )


async def _begin_training(run: Run) -> None:
    training = run.config.training
    begin = run.services.trainer.begin.call_one(
        learning_rate=training.learning_rate,
        warmup_steps=training.warmup_steps,
        lr_schedule=training.lr_schedule,
        total_steps=training.steps,
    )
    await within(run.deadlines.base, begin, "the trainer")


def _has_tools(run: Run) -> bool:
    return issubclass(run.factory.env_class, ToolEnv)


async def _save(
    run: Run, loop: Loop, step: Step, passes: Passes, started: float, *, asynchronous: bool = False
) -> None:
    seconds = time.perf_counter() - started
    places, episodes = pack(loop.ready_groups)
    place = {
        "ledger": loop.ledger.state_dict(),
        "ready": places,
        "lengths": loop.lengths.state_dict(),
        "ages": step.ages.state_dict(),
        "faults": dict(loop.faults),
        "shuffled_from": passes.shuffled_from,
        "seconds": seconds,
    }
    texts = {READY_FILE: episodes} if places else {}
    # Between two updates of the engines, the trainer's weights have no version yet.
    version = run.version if loop.is_synced else run.version + 1
    await run.save_checkpoint(loop.steps_done, place, version=version, texts=texts, asynchronous=asynchronous)


async def _settle_reference(run: Run, objective: Objective) -> None:
    """Give the reference model the weights that reinforcement learning starts from, and say what it is."""
    say = run.report.say
    if objective.kl_reference == "generator":
        say("there is no reference model: ref_logprobs, and a KL penalty, are the generator's own logprobs")
    if objective.kl_reference != "model":
        return
    service, kept = run.services.reference, run.report.folder / KEPT_AS
    assert service is not None
    # Checked, fetched, and written to a file: the weights go three ways.
    seconds = 3 * run.deadlines.weights
    reference = service.deadline(seconds)
    origin = f"the model {run.results['model']}"
    if kept.exists():  # the run is resumed, and its policy is no longer the one that it started from
        await reference.load.fanout(str(kept))
        origin = f"the policy after the warm-up, read from {kept}"
    elif run.results["warmup_steps"]:
        if run.checkpoint is not None:
            raise UserError(f"--resume: {kept} is missing, the reference model that this run was trained against")
        await reference.pull.route(run.version, str(kept), seconds)
        await reference.load.fanout(str(kept))
        origin = f"the policy after the warm-up, kept as {kept}"
    if kept.exists():
        run.services.settle_reference = lambda actor: within(seconds, actor.load.call_one(str(kept)), "the reference")
    place = "GPU" if run.config.services.ref_model.with_gpus else "CPU"
    say(f"the reference model, on {place} and frozen, is {origin}")


def _record(run: Run, step: int, groups: Sequence[Group], metrics: dict[str, float]) -> None:
    """Write one optimizer step down, and show it."""
    episodes = [episode for group in groups for episode in group.valid]
    tokens = sum(episode.num_sampled for episode in episodes)
    seconds = metrics["seconds/step"]
    shown = {
        "reward": sum(e.reward or 0.0 for e in episodes) / len(episodes),
        "success": sum(map(is_success, episodes)) / len(episodes),
        "tokens/s": tokens / seconds,
        "s/step": seconds,
    }
    groups_with_signal = sum(len(set(group.rewards)) > 1 for group in groups)
    counts = {
        "groups_with_signal": groups_with_signal,
        "episodes": len(episodes),
        "processes_replaced": float(run.services.replaced),
        "groups_run_again": float(run.services.envs.client.retries),
    }
    values = metrics | shown | tool_metrics(episodes) | counts
    run.report.metrics("train", step, values)
    run.report.point(step, values)
    run.report.episodes("train", [episode for group in groups for episode in (*group.episodes, *group.replaced)])


def _close(
    run: Run, before: Evaluation, after: Evaluation, tool_off: Evaluation | None, loop: Loop, train_seconds: float
) -> None:
    config, report = run.config, run.report
    report.samples(f"the first {SAMPLES_SHOWN} held-out tasks before {run.algorithm}", before.episodes[:SAMPLES_SHOWN])
    report.samples(f"the same tasks after {run.algorithm}", after.episodes[:SAMPLES_SHOWN])
    step_seconds = sorted(point["seconds"] for point in report.curve)
    warned_of = loop.rows_without_signal | {
        "mismatch_alarms": sum(bool(r["mismatch_alarm"]) for r in run.records("train"))
    }
    run.summarise(
        {
            "success_before": _rate(before),
            "success_before_ci95": before.interval,
            "success_after": _rate(after),
            "success_after_ci95": after.interval,
            "success_tool_off": _rate(tool_off),
            "evaluation_episodes": len(after.episodes),
            "success_before_without_timeouts": _number(before.without_timeouts.value),
            "success_after_without_timeouts": _number(after.without_timeouts.value),
            "evaluation_timeouts": before.timeouts + after.timeouts,
            "evaluation_faults": before.faults + after.faults,
            "evaluation_ended_by": after.ended_by,
            "train_seconds": train_seconds,
            "median_step_seconds": step_seconds[len(step_seconds) // 2] if step_seconds else None,
            "reward_curve": [point["reward"] for point in report.curve],
            **warned_of,
        }
    )
    picture = report.draw_curve(f"{run.algorithm} on {config.env.name}, seed {config.training.seed}", before, after)
    report.say(f"held-out success after {run.algorithm}: {after}")
    off = "" if tool_off is None else f", and {tool_off.success_rate:.3f} with the tool switched off"
    report.say(f"it was {before} before{off}")
    for sentence in _counted(warned_of):
        report.say(sentence)
    report.say(f"curve {picture}, checkpoints {report.folder / 'checkpoints'}, model {report.folder / 'model'}")


def _counted(counts: Mapping[str, int]) -> Iterator[str]:
    """What a run warns of once, and how often it came; nothing of what never came."""
    for kind, said in (("groups_idle", "were trained on"), ("groups_without_signal", "were dropped")):
        if counts[kind]:
            row = counts[f"{kind}_longest_row"]
            yield f"{counts[kind]} groups with one reward for all their episodes {said}, at most {row} in a row"
    if counts["mismatch_alarms"]:
        yield f"trainer and engine were too far apart in {counts['mismatch_alarms']} steps, see mismatch_alarm"


def _rate(evaluation: Evaluation | None) -> float | None:
    """The success rate, or None where nothing could be measured: JSON has no NaN."""
    return _number(evaluation.success_rate) if evaluation is not None else None


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
