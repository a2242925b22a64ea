"""The course of a policy-gradient run: warm up, measure, train, measure again, write everything down."""

from __future__ import annotations

import time
from collections.abc import Sequence

from forge_env.episode import Group
from forge_env.evaluate import Evaluation, is_success
from forge_env.metrics import tool_metrics
from forge_env.runtime.launcher import within
from forge_env.tool_env import ToolEnv
from trainers.config import RunConfig
from trainers.loop import Loop, repeat
from trainers.objective import Objective
from trainers.own_parts import with_own_parts
from trainers.run import SAMPLES_SHOWN, TINY_WARMUP_STEPS, Run, open_run


async def run_policy_gradient(algorithm: str, config: RunConfig, objective: Objective) -> None:
    """Run one algorithm from its objective to its summary.

    Raises:
        UserError: for a loss or an advantage function of the user's own that cannot be used, before anything starts.
    """
    objective = with_own_parts(objective, config.training)
    async with open_run(algorithm, config) as run:
        await run.services.guard(_phases(run, objective))


async def _phases(run: Run, objective: Objective) -> None:
    config, report = run.config, run.report
    training = config.training
    steps = config.warmup.steps if config.warmup.steps >= 0 else TINY_WARMUP_STEPS * (not config.model.path)
    run.results["warmup_steps"] = await run.warm_up(steps) if steps else 0
    await run.sync_weights()
    before = await run.evaluate("before", run.held_out)
    report.say(f"held-out success before {run.algorithm}: {before}")
    tool_off = None
    if issubclass(run.factory.env_class, ToolEnv):
        tool_off = await run.evaluate("tool_off", run.held_out, use_tools=False)
        report.say(f"held-out success with the tool switched off: {tool_off}")
    if objective.kl_reference == "generator":
        report.say("there is no reference model: ref_logprobs, and a KL penalty, are the generator's own logprobs")

    await within(60.0, run.services.trainer.begin.call_one(training.learning_rate, 0), "the trainer")
    started = time.perf_counter()
    loop = Loop(
        objective=objective,
        tasks=repeat(run.train_tasks),
        run_group=lambda task, i: run.run_group(task, i, phase="train", agent="policy", count=objective.group_size),
        train_step=lambda samples: run.train_step(samples, objective.loss),
        sync_weights=lambda _: run.sync_weights(),
        on_step=lambda step, groups, metrics: _record(run, step, groups, metrics, started),
        steps=training.steps,
        batch_size=training.batch_size,
        staleness=training.staleness,
        patience=training.step_seconds,
        keeps=run.config.env.fault_policy().keeps,
        warn=report.say,
    )
    await loop.run()
    train_seconds = time.perf_counter() - started

    after = await run.evaluate("after", run.held_out)
    await run.finish(training.steps)
    _close(run, before, after, tool_off, train_seconds)


def _record(run: Run, step: int, groups: Sequence[Group], metrics: dict[str, float], started: float) -> None:
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
    counts = {"groups_with_signal": groups_with_signal, "episodes": len(episodes)}
    values = metrics | shown | tool_metrics(episodes) | counts
    run.report.metrics("train", step, values)
    run.report.curve.append({"step": step, "reward": shown["reward"], "success": shown["success"], "seconds": seconds})
    run.report.episodes("train", [episode for group in groups for episode in group.episodes])
    run.report.progress(run.algorithm, step, run.config.training.steps, shown, since=started)


def _close(run: Run, before: Evaluation, after: Evaluation, tool_off: Evaluation | None, train_seconds: float) -> None:
    config, report = run.config, run.report
    report.samples(f"the first {SAMPLES_SHOWN} held-out tasks before {run.algorithm}", before.episodes[:SAMPLES_SHOWN])
    report.samples(f"the same tasks after {run.algorithm}", after.episodes[:SAMPLES_SHOWN])
    step_seconds = sorted(point["seconds"] for point in report.curve)
    run.summarise(
        {
            "success_before": _rate(before),
            "success_before_ci95": before.interval,
            "success_after": _rate(after),
            "success_after_ci95": after.interval,
            "success_tool_off": _rate(tool_off),
            "evaluation_episodes": len(after.episodes),
            "evaluation_faults": before.faults + after.faults,
            "train_seconds": train_seconds,
            "median_step_seconds": step_seconds[len(step_seconds) // 2] if step_seconds else None,
            "reward_curve": [point["reward"] for point in report.curve],
        }
    )
    picture = report.draw_curve(f"{run.algorithm} on {config.env.name}, seed {config.training.seed}", before, after)
    report.say(f"held-out success after {run.algorithm}: {after}")
    off = "" if tool_off is None else f", and {tool_off.success_rate:.3f} with the tool switched off"
    report.say(f"it was {before} before{off}")
    report.say(f"curve {picture}, checkpoint {report.folder / 'checkpoint'}, model {report.folder / 'model'}")


def _rate(evaluation: Evaluation | None) -> float | None:
    """The success rate, or None where nothing could be measured: JSON has no NaN."""
    return evaluation.success_rate if evaluation is not None and evaluation.valid else None
