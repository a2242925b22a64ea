"""The end of a policy-gradient run: summary.json and the last messages."""

from __future__ import annotations

from statistics import fmean

from forge_env.evaluation.evaluate import Evaluation
from forge_env.evaluation.kinds import verdict_note
from trainers.controller.mixture import Mixture
from trainers.run.run import SAMPLES_SHOWN, Run


def summarise(
    run: Run,
    before: Evaluation,
    after: Evaluation,
    tool_off: Evaluation | None,
    train_seconds: float,
    mixture: Mixture,
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
