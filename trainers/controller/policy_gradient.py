"""A policy-gradient run: warm up, evaluate, train, evaluate again, write the summary."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from forge_env.evaluation.evaluate import Evaluation
from forge_env.tool_env.tool_env import ToolEnv
from forge_env.utils.threads import invoke
from trainers.checkpoints import Checkpoint
from trainers.controller.alarms import MismatchAlarm, make_alarm
from trainers.controller.diagnosis import Diagnosis, Finding
from trainers.controller.diagnosis_rules import RunFacts
from trainers.controller.drop_counts import DropCounts
from trainers.controller.ledger import Ledger
from trainers.controller.length_bias import LengthBias
from trainers.controller.loop import Loop
from trainers.controller.loop_state import LoopSettings, LoopState
from trainers.controller.policy_gradient_summary import check_trained, summarise
from trainers.controller.policy_gradient_work import PolicyGradientWork
from trainers.controller.ready_groups import unpack
from trainers.controller.sample_maker import SampleMaker
from trainers.controller.signal_counts import SignalCounts
from trainers.controller.task_order import TaskOrder
from trainers.objective.objective import Objective
from trainers.objective.old_logprobs import OldLogprobs
from trainers.run.checkpointing import last_checkpoint, restore, until_stopped
from trainers.run.open_run import open_run
from trainers.run.reference_weights import settle_reference
from trainers.run.run_record import add_fact
from trainers.run.training_run import TrainingRun
from trainers.run.warmup import tasks_after_warmup, warm_up
from trainers.setup.meaning import about_approximations, about_ratio
from trainers.setup.run_plan import RunPlan


async def run_policy_gradient(plan: RunPlan) -> None:
    """Execute the plan of a policy-gradient run, from its model to its summary."""
    assert plan.objective is not None
    async with open_run(plan) as run:
        await run.services.guard(_phases(run, plan.objective))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """The state in which training begins or resumes."""

    before: Evaluation
    tool_off: Evaluation | None
    state: LoopState
    seconds: float = 0.0
    """Seconds of training that were spent before."""


async def _phases(run: TrainingRun, objective: Objective) -> None:
    plan, report = run.plan, run.report
    add_fact(report.folder, "old_logprobs", plan.old_logprobs)
    report.say(f"the importance ratio is {about_ratio(plan)}")
    approximate = about_approximations(plan)
    if approximate:
        report.warn(approximate)
    alarm = make_alarm(plan, report.say)
    diagnosis = _diagnosis(run, objective, alarm)
    report.add(diagnosis)
    start = await (_go_on(run, run.checkpoint) if run.checkpoint else _begin(run))
    if diagnosis.findings:  # of the steps before the checkpoint
        add_fact(report.folder, "findings", diagnosis.summary())
    await settle_reference(run, objective.kl_reference)
    if plan.kl_remark:
        report.warn(plan.kl_remark)

    started = time.perf_counter() - start.seconds
    trained_on = ("training_reward",) if plan.training.reward else ()
    shown = (
        "reward",
        *trained_on,
        "success",
        "tokens/s",
        "s/step",
        *(("mean_abs_logprob_difference",) if approximate else ()),
    )
    report.follow("train", title=plan.algorithm, total=plan.steps, names=shown, since=started)
    work = _work(run, objective, start, started, alarm, diagnosis)
    loop = Loop(work, objective, _settings(plan), start.state)
    if work.is_evaluated(loop.steps_done):  # resumed at the last step of a shorter run, now a step between others
        await work.evaluate(loop.steps_done)
    await until_stopped(
        run, loop.run(), stop=loop.stop, steps=lambda: loop.steps_done, save=lambda: work.save(loop.state)
    )
    train_seconds = time.perf_counter() - started
    is_new = run.checkpoint is None or run.checkpoint.step < plan.steps
    async with last_checkpoint(run, partial(work.save, loop.state)) if is_new else nullcontext():
        after = await run.evaluations.evaluate("after", step=plan.steps)
        await run.export()
    diagnosis.finish()
    await invoke(summarise, run, start.before, after, start.tool_off, diagnosis, train_seconds)
    await invoke(check_trained, report.folder)


def _diagnosis(run: TrainingRun, objective: Objective, alarm: MismatchAlarm) -> Diagnosis:
    """Looks for what keeps the run from learning; says it, and keeps it in run.json."""
    plan, report = run.plan, run.report
    facts = RunFacts(
        algorithm=plan.algorithm,
        env=plan.env.name,
        reward=plan.training.reward,
        learning_rate=plan.training.learning_rate,
        n_samples=objective.group_size,
        max_turn_tokens=plan.env.max_turn_tokens,
        max_tokens=plan.env.max_tokens,
        sync_interval=plan.training.sync_interval,
        staleness=plan.staleness,
        entropy_coef=plan.training.entropy_coef,
        needs_siblings=objective.needs_siblings,
        resamples=objective.needs_signal,
        mismatch_bounds=alarm.bounds,
        approximations=alarm.approximations,
    )

    def tell(finding: Finding) -> None:
        report.warn(f"warning: step {finding.step}: this may keep the run from learning: {finding}")
        add_fact(report.folder, "findings", diagnosis.summary())

    diagnosis = Diagnosis(facts, tell)
    return diagnosis


def _work(
    run: TrainingRun,
    objective: Objective,
    start: _Start,
    started: float,
    alarm: MismatchAlarm,
    diagnosis: Diagnosis,
) -> PolicyGradientWork:
    plan = run.plan
    needs_reference_model = objective.kl_reference == "model"
    return PolicyGradientWork(
        run=run,
        objective=objective,
        tasks=TaskOrder(tasks=tasks_after_warmup(plan.warmup, run.train_tasks), seed=plan.training.seed),
        alarm=alarm,
        diagnosis=diagnosis,
        signal=SignalCounts(run.kinds),
        make_samples=SampleMaker(
            objective=objective, reference=run.reference_logprobs if needs_reference_model else None
        ),
        old=OldLogprobs(objective=objective, logprobs=run.old_logprobs) if _has_old_logprobs(plan) else None,
        started=started,
    )


def _settings(plan: RunPlan) -> LoopSettings:
    return LoopSettings(
        steps=plan.steps,
        batch_size=plan.training.groups_per_step,
        staleness=plan.staleness,
        sync_interval=plan.training.sync_interval,
        patience=plan.patience,
        in_waves=plan.training.deterministic,
        in_windows=_has_old_logprobs(plan),
    )


def _has_old_logprobs(plan: RunPlan) -> bool:
    """Whether the importance ratio begins from the trainer's own logprobs, frozen before each window."""
    return plan.old_logprobs == "trainer"


async def _begin(run: TrainingRun) -> _Start:
    """Warm up and measure, then begin to train."""
    report, algorithm, steps = run.report, run.plan.algorithm, run.plan.warmup.steps
    run.results["warmup_steps"] = 0
    if steps:
        with run.startup.phase("warm-up"):
            run.results["warmup_steps"] = await warm_up(run, steps)
    await run.weights.sync(steps=0)
    with run.startup.phase("evaluation"):
        before = await run.evaluations.evaluate("before", step=0)
    report.say(f"held-out success before {algorithm}: {before}")
    run.evaluations.say_by_kind(before)
    tool_off = None
    if _has_tools(run.plan):
        with run.startup.phase("evaluation without tools"):
            tool_off = await run.evaluations.evaluate("tool_off", use_tools=False)
        report.say(f"held-out success with the tool switched off: {tool_off}")
    await run.begin_training()
    return _Start(before=before, tool_off=tool_off, state=LoopState())


async def _go_on(run: TrainingRun, checkpoint: Checkpoint) -> _Start:
    """Restore the state of the run from a checkpoint."""
    ready = await invoke(unpack, checkpoint.extra["place"]["ready"], checkpoint.path)
    await run.begin_training()  # of the present settings; the checkpoint says how far it has come
    with run.startup.phase("checkpoint"):
        place = await restore(run, checkpoint)
    await run.weights.sync(steps=checkpoint.step)
    ledger, lengths = Ledger(), LengthBias()
    ledger.load_state_dict(place["ledger"])
    lengths.load_state_dict(place["lengths"])
    run.weights.ages.load_state_dict(place["ages"])
    return _Start(
        before=run.report.evaluation("before"),
        tool_off=run.report.evaluation("tool_off") if _has_tools(run.plan) else None,
        state=LoopState(
            steps_done=checkpoint.step, ledger=ledger, ready=ready, lengths=lengths, drops=DropCounts(**place["drops"])
        ),
        seconds=place["seconds"],
    )


def _has_tools(plan: RunPlan) -> bool:
    return plan.environment is not None and issubclass(plan.environment.env_class, ToolEnv)
