"""A policy-gradient run: warm up, evaluate, train, evaluate again, write the summary."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from agents.generator.engine_args import approximations
from forge_env.core.errors import ForgeError, ServiceError
from forge_env.core.faults import broken_note
from forge_env.evaluation.evaluate import Evaluation
from forge_env.evaluation.kinds import verdict_note
from forge_env.evaluation.profile import rates_of
from forge_env.records.run_files import steps_of
from forge_env.utils.threads import invoke
from trainers.checkpoints import Checkpoint
from trainers.controller.alarms import make_alarm
from trainers.controller.learner import Learner
from trainers.controller.ledger import Ledger
from trainers.controller.loop import Loop
from trainers.controller.loop_state import LoopSettings, LoopState
from trainers.controller.mixture import Mixture
from trainers.controller.sampler import TaskSampler
from trainers.objective.objective import Objective
from trainers.run.checkpointing import last_checkpoint, restore, until_stopped
from trainers.run.open_run import open_run
from trainers.run.run import SAMPLES_SHOWN, Run
from trainers.run.training_run import TrainingRun
from trainers.run.warmup import kinds_left_out, tasks_after_warmup, warm_up
from trainers.setup.run_plan import RunPlan


async def run_policy_gradient(plan: RunPlan, caller: TrainingRun | None = None) -> None:
    assert plan.objective is not None
    async with open_run(plan, caller) as run:
        await run.launcher.guard(_phases(run, plan.objective))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """The state in which training begins or resumes."""

    before: Evaluation
    tool_off: Evaluation | None
    state: LoopState
    seconds: float = 0.0
    """Seconds of training that were spent before."""


async def _phases(run: Run, objective: Objective) -> None:
    alarm = make_alarm(run.plan, run.record.say)
    run.record.add_fact("old_logprobs", run.plan.old_logprobs)
    start = await (_resume(run, run.checkpoint) if run.checkpoint else _begin(run))
    await run.trainer.load_reference(objective.kl_reference, is_warm=run.warmup_steps > 0)
    start_time = time.perf_counter() - start.seconds
    learner = Learner(run=run, objective=objective, alarm=alarm, start_time=start_time)
    state = await _train(run, learner, start.state)
    train_seconds = time.perf_counter() - learner.start_time
    is_new = run.checkpoint is None or run.checkpoint.step < run.plan.steps
    async with last_checkpoint(run, partial(learner.save, state)) if is_new else nullcontext():
        try:
            after = await run.evaluations.evaluate("after", step=run.plan.steps)
        except ServiceError:
            await run.trainer.export()  # what was trained is kept
            raise
        await run.trainer.export()
    await invoke(summarise, run, start.before, after, start.tool_off, train_seconds, state.ledger.mixture)
    if state.drops.broken:
        run.record.warn(broken_note(state.drops.broken))
    state.drops.check_trained()


async def _begin(run: Run) -> _Start:
    record, algorithm, steps = run.record, run.plan.algorithm.name, run.plan.config.warmup.steps
    if steps:
        groups = run.plan.steps * run.plan.config.training.groups_per_step
        for share in run.plan.environments:
            tasks = math.ceil(groups * run.plan.part(share))
            if left_out := kinds_left_out(share.config.warmup, run.train_tasks[share.label], tasks):
                sentence = (
                    f"the warm-up demonstrates tasks of kind {', '.join(left_out)}, and the {tasks:,} tasks of this "
                    "run's steps have none of them: the policy may forget the kind; set --warmup.demonstrations lower"
                )
                record.warn(*share.about([sentence]))
        with record.phase("warm-up"):
            run.warmup_steps = await warm_up(run, steps)
    await run.weights.sync(steps=0)
    with record.phase("evaluation"):
        before = await run.evaluations.evaluate("before", step=0)
    record.say(f"held-out success before {algorithm}: {before}")
    run.evaluations.say_parts(before)
    tool_off = None
    if with_tools := await run.evaluations.with_tools():
        with record.phase("evaluation without tools"):
            tool_off = await run.evaluations.evaluate("tool_off", of=with_tools, use_tools=False)
        record.say(f"held-out success with the tool switched off: {tool_off}")
    if steps:
        await run.trainer.end_warmup()
    return _Start(before=before, tool_off=tool_off, state=LoopState(ledger=_ledger(run)))


async def _resume(run: Run, checkpoint: Checkpoint) -> _Start:
    state = await invoke(LoopState.of, checkpoint.extra["place"], checkpoint.step, checkpoint.path, _ledger(run))
    with run.record.phase("checkpoint"):
        place = await restore(run, checkpoint)
    await run.weights.sync(steps=checkpoint.step)
    run.weights.ages.load_state_dict(place["ages"])
    before = run.record.evaluation("before")
    assert before is not None, "a checkpoint is written after the first evaluation"
    return _Start(before=before, tool_off=run.record.evaluation("tool_off"), state=state, seconds=place["seconds"])


async def _train(run: Run, learner: Learner, state: LoopState) -> LoopState:
    """Take all optimizer steps that are left; returns the last state of the loop."""
    plan = run.plan
    names = ["reward", "success", "tokens/s", "s/step"]
    if plan.config.training.reward:
        names.insert(1, "training_reward")
    if approximations(plan.engine.engine_args):
        names.append("mean_abs_logprob_difference")
    run.record.follow("train", title=plan.algorithm.name, total=plan.steps, names=names, since=learner.start_time)
    loop = Loop(run.rollouts, learner, run.weights, _settings(plan), state, run.controls)
    if learner.is_evaluated(loop.steps_done):  # resumed at the last step of a shorter run, now a step between others
        await learner.evaluate(loop.steps_done)
    try:
        await until_stopped(
            run, loop.run(), stop=loop.stop, steps=lambda: loop.steps_done, save=lambda: learner.save(loop.state)
        )
    except ForgeError as error:
        is_new = loop.steps_done > 0 and loop.steps_done not in steps_of(run.record.folder)
        if error is loop.ended_by and is_new and not loop.is_in_window:
            await learner.save(loop.state)
        raise
    return loop.state


def _ledger(run: Run) -> Ledger:
    seed, environments = run.plan.config.training.seed, run.plan.environments
    weights = {share.label: share.weight for share in environments}
    samplers = {
        share.label: TaskSampler(
            tasks=tasks_after_warmup(share.config.warmup, run.train_tasks[share.label]),
            seed=seed,
            by=share.config.dataset.sampler,
            rates=rates_of(share.config.dataset.pass_rate),
        )
        for share in environments
    }
    return Ledger(Mixture(weights=weights, by=run.plan.config.training.mixture_by), samplers)


def _settings(plan: RunPlan) -> LoopSettings:
    return LoopSettings(
        steps=plan.steps,
        batch_size=plan.config.training.groups_per_step,
        staleness=plan.config.training.most_behind,
        sync_interval=plan.config.training.sync_interval,
        patience=plan.patience,
        signal_error=plan.config.training.signal_error,
        in_waves=plan.config.training.deterministic,
        in_windows=plan.old_logprobs == "trainer",  # frozen before each window
    )


def summarise(
    run: Run, before: Evaluation, after: Evaluation, tool_off: Evaluation | None, train_seconds: float, mixture: Mixture
) -> None:
    """Write the summary of a run that is done."""
    record, algorithm = run.record, run.plan.algorithm.name
    record.samples(f"the first {SAMPLES_SHOWN} held-out tasks before {algorithm}", before.episodes[:SAMPLES_SHOWN])
    record.samples(f"the same tasks after {algorithm}", after.episodes[:SAMPLES_SHOWN])
    step_seconds = sorted(point["seconds"] for point in record.curve)
    rewards = [point["reward"] for point in record.curve]
    signal = [point["signal"] for point in record.curve if "signal" in point]
    trained_on = [point.get("training_reward", point["reward"]) for point in record.curve]
    by_kind = run.kinds.changes(before, after)
    run.summarise(
        {
            "warmup_steps": run.warmup_steps,
            **before.summary("before"),
            **after.summary("after"),
            "success_tool_off": tool_off.success_rate if tool_off and tool_off.attempts else None,
            "evaluation_episodes": len(after.episodes),
            "evaluation_timeouts": before.timeouts + after.timeouts,
            "evaluation_faults": before.faults + after.faults,
            "evaluation_ended_by": after.ended_by,
            "train_seconds": train_seconds,
            "median_step_seconds": step_seconds[len(step_seconds) // 2] if step_seconds else None,
            "signal_share": fmean(signal) if signal else None,
            "reward_curve": rewards,
            **({"training_reward_curve": trained_on} if trained_on != rewards else {}),
            **({"by_kind": {name: change.summary() for name, change in by_kind.items()}} if by_kind else {}),
            **({"mixture": mixture.summary()} if run.plan.has_several else {}),
        }
    )
    record.say(f"held-out success after {algorithm}: {after}")
    off = (
        ""
        if tool_off is None or not tool_off.attempts
        else f", and {tool_off.success_rate:.3f} with the tool switched off"
    )
    record.say(f"it was {before} before{off}")
    record.say(after.change_text(before) or "no task was measured before and after it")
    for when, evaluation in {"before": before, "after": after}.items():
        if parts := evaluation.parts_text:
            record.say(f"parts of the reward {when}: {parts}")
    if greedy := run.evaluations.greedy_change:
        record.say(greedy)
    for name, change in by_kind.items():
        record.say(f"held-out success of {name}: {change}")
    if level := verdict_note(by_kind, run.kinds.environments):
        record.say(level)
    for observer in record.observers:
        for sentence in observer.last_words():
            record.say(sentence)
    record.say(f"checkpoints {record.folder / 'checkpoints'}, model {record.folder / 'model'}")
