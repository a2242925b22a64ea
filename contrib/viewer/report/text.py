"""The state of a training run as text: what its steps measured, its evaluations, its findings, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from contrib.viewer.report import tables
from contrib.viewer.report.numbers import short
from contrib.viewer.report.run_data import RunData, read_run

METRICS = """reward success loss groups_with_signal signal/failed signal/solved episodes tokens tokens_left_out entropy
    grad_norm skipped clipped_low clipped_high kl mean_abs_logprob_difference ess staleness_mean seconds/rollout
    seconds/train s/step"""
"""Metrics of the phase "train" that say whether and why a run learns; those that a run has are shown."""


def run_text(folder: Path) -> str:
    """The state of a training run, from the present content of its folder; the run may be going on."""
    run = read_run(folder)
    state = "complete" if run.is_complete else f"not complete: {run.why_incomplete}"
    figures = (f"{label}: {figure}{f' ({remark})' * bool(remark)}" for label, figure, remark in tables.headline(run))
    parts = {
        "": [f"{run.title}, seed {run.fact('seed')}: {state}", *figures],
        "Steps": [*_steps(run)],
        "Held-out success": [*_evaluations(run)],
        "What may keep it from learning": [
            f"{when}: {evidence}. Likely cause: {cause}. Try: {settings}."
            for when, evidence, cause, settings in tables.finding_parts(run)
        ],
    }
    blocks = ("\n".join([*[f"{head}:"] * bool(head), *lines]) for head, lines in parts.items() if lines)
    return "\n\n".join(blocks)


def _steps(run: RunData) -> Iterator[str]:
    """The means of the first and of the last fifth of the steps."""
    records = run.phases.get("train", ())
    if not records:
        return
    part = max(1, len(records) // 5)
    ends = [(end[0]["step"], end[-1]["step"]) for end in (records[:part], records[-part:])]
    rows = [["mean of the steps", *(f"{low} to {high}" if low < high else str(low) for low, high in ends)]]
    for name in [*METRICS.split(), *run.metric_names("train", r"reward/.+/mean|ended_by/[^/]+")]:
        series = run.series("train", name)
        parts = ([value for step, value in series if low <= step <= high] for low, high in ends)
        means = [fmean(values) if values else math.nan for values in parts]
        if any(map(math.isfinite, means)):
            rows.append([name, *map(short, means)])
    width = max(len(row[0]) for row in rows)
    for name, first, last in rows:
        yield f"{name:{width}} {first:>12} {last:>12}"


def _evaluations(run: RunData) -> Iterator[str]:
    """The first, the best and the last evaluation of the run's headline."""
    by_title = tables.titled_evaluations(run, only_headline=True)
    titles = [title for title, evaluation in by_title.items() if evaluation.attempts]
    if not titles:
        return
    best = max(titles, key=lambda title: by_title[title].success_rate)
    places = {"first": titles[0], "best": best, "last": titles[-1]}
    for title in dict.fromkeys(places.values()):
        yield f"{', '.join(what for what in places if places[what] == title)} ({title}): {by_title[title]}"
    if len(titles) > 1 and (change := by_title[titles[-1]].change_text(by_title[titles[0]])):
        yield change
