"""`forge-env score RUN --again`: recorded episodes are judged by their environment as it is today."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from contrib.records.cli.new_file import new_file
from contrib.records.cli.replay import note_changes
from forge_env.cli.evaluate import parse_options
from forge_env.cli.output import emit, note, say, show_table, stdout_to_stderr
from forge_env.core.errors import UserError
from forge_env.utils.run_async import run_async

if TYPE_CHECKING:
    from contrib.records.again import JudgedAgain
    from contrib.records.run_settings import RunSettings
    from forge_env.core.episode import Episode

MAX_LINES = 20
"""Changed episodes, and reasons of those that were not judged, that are printed; --json has all."""


def score_again(run: Path, option: list[str], at_once: int, out: Path | None, *, as_json: bool) -> int:
    """Judge the episodes of a run again, and list what has changed; returns 1 if none could be judged."""
    from contrib.records.run_settings import all_settings
    from forge_env.records.run_files import episode_files
    from forge_env.registry.registry import check_registered

    if at_once < 1:
        raise UserError(f"--at-once is {at_once}; it is at least 1")
    files = episode_files(run)
    settings, own_options = all_settings(run), parse_options(option)
    if not all(one.env for one in settings.values()) or not settings:
        raise UserError(
            f"{run} does not record the environment and its options, so no episode of it can be judged again: give the "
            "folder of an evaluation or of a training run"
        )
    if "" not in settings and (unknown := sorted(own_options.keys() - settings.keys())):
        raise UserError(
            f"--option {unknown[0]}: the run has the environments {', '.join(settings)}: name the one that has the "
            f"option, as in --option {next(iter(settings))}.NAME=VALUE"
        )
    for label, one in settings.items():
        own = own_options.get(label, {}) if label else own_options
        settings[label] = one = replace(one, options={**one.options, **own})
        check_registered(one.env, one.registered)
        note_changes(run, one)
    with stdout_to_stderr(as_json), new_file(out) as file:
        phases = run_async(_judge(files, settings, at_once, file))
    if as_json:
        emit({"run": str(run), "env": " + ".join(one.env for one in settings.values()), "phases": phases})
    else:
        _show(phases)
    return 0 if any(phase["judged"] for phase in phases) else 1


async def _judge(
    files: dict[str, Path], settings: Mapping[str, RunSettings], at_once: int, file: IO[str] | None
) -> list[dict[str, Any]]:
    from contrib.records.again import TasksOfToday, judge_again
    from forge_env.core.episode import read_jsonl
    from forge_env.rollout.factory import make

    verdicts: dict[str, list[JudgedAgain]] = {name: [] for name in files}

    def episodes_of(label: str, path: Path) -> Iterator[Episode]:
        return (episode for episode in read_jsonl(path) if not label or episode.env == label)

    for label, its in settings.items():
        factory = make(its.env, **its.options)
        factory.add_group_reward(its.group_reward)
        async with factory:
            record = (episode.task for path in files.values() for episode in episodes_of(label, path))
            tasks = TasksOfToday(factory, record)
            if tasks.note:
                note(tasks.note)
            for name, path in files.items():
                async for one in judge_again(episodes_of(label, path), its, factory, tasks, at_once=at_once):
                    verdicts[name].append(one)
                    if file is not None:
                        file.write(one.after.to_json() + "\n")
    return [_summary(*of_phase) for of_phase in verdicts.items()]


def _summary(phase: str, everything: list[JudgedAgain]) -> dict[str, Any]:
    verdicts = [one for one in everything if not one.refused]
    both = [one for one in verdicts if one.before.outcome.is_valid and one.after.outcome.is_valid]
    return {
        "phase": phase,
        "episodes": len(everything),
        "judged": len(verdicts),
        "changed": [_change(one) for one in verdicts if one.has_changed],
        **before_and_now([(one.before, one.after) for one in both]),
        "not_judged": [{"id": one.before.id, "reason": one.refused} for one in everything if one.refused],
    }


def before_and_now(pairs: Sequence[tuple[Episode, Episode]]) -> dict[str, float | None]:
    """The mean rewards and the success rates of episodes before and now; None if there are none."""
    from forge_env.evaluation.evaluate import Evaluation

    before, now = (Evaluation(episodes=tuple(pair[which] for pair in pairs)) for which in (0, 1))
    return {
        "reward_before": before.reward.value if pairs else None,
        "reward_now": now.reward.value if pairs else None,
        "success_before": before.success_rate if pairs else None,
        "success_now": now.success_rate if pairs else None,
    }


def cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def _change(one: JudgedAgain) -> dict[str, Any]:
    def verdict(e: Episode) -> dict[str, Any]:
        return {"outcome": e.outcome, "reward": e.reward, "rewards": dict(e.rewards), "error": e.error}

    return {"id": one.before.id, "before": verdict(one.before), "now": verdict(one.after)}


def _show(phases: list[dict[str, Any]]) -> None:
    rows = []
    for phase in phases:
        cells = [phase["phase"], phase["episodes"], phase["judged"], len(phase["changed"])]
        cells += [phase[name] for name in ("reward_before", "reward_now", "success_before", "success_now")]
        rows.append(list(map(cell, cells)))
    columns = ("phase", "episodes", "judged", "changed", "reward before", "now", "success before", "now")
    show_table(columns, rows)
    for phase in phases:
        for change in phase["changed"][:MAX_LINES]:
            say(f"{change['id']}: {_verdict(change['before'])} before, {_verdict(change['now'])} now")
        if len(phase["changed"]) > MAX_LINES:
            say(f"and {len(phase['changed']) - MAX_LINES} others, which --json lists")
        reasons = Counter(one["reason"] for one in phase["not_judged"])
        for reason, count in reasons.most_common(MAX_LINES):
            note(f"{count} not judged: {reason}")


def _verdict(verdict: dict[str, Any]) -> str:
    return f"{verdict['outcome']}: {verdict['error']}" if verdict["reward"] is None else f"{verdict['reward']:g}"
