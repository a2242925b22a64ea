"""Headline figures and tables of a training run: startup, tools, outcomes, findings, warnings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from contrib.viewer.report.numbers import duration, short
from contrib.viewer.report.run_data import RunData, Values, is_number
from forge_env.evaluation.evaluate import Evaluation
from forge_env.evaluation.metrics import unstopped_warnings

MAX_TOOLS = 12
MAX_WARNINGS = 20

OUTCOMES = {
    "scored": "ended by itself, with a score",
    "truncated": "ran out of turns, tokens or time",
    "model_fault": "the output of the model cannot be used",
    "timeout": "a time-out: services used up the time of the episode",
    "env_fault": "a fault: the code of the environment failed",
    "infra_fault": "a fault: the infrastructure failed",
}
COUNTS = {
    "episodes_unjudged": "episodes that the reward function of the run gave no number, left out",
    "groups_dropped": "groups with too few valid episodes, dropped",
    "groups_without_signal": "groups whose rewards are all equal, sampled anew",
    "groups_run_again": "groups whose process died, run again",
    "processes_replaced": "processes that died or hung, replaced",
}
"""Metrics of the phase "train" that are listed with the outcomes; each is a running total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table for the page of a run; every text is plain text."""

    title: str
    columns: Mapping[str, str]
    """Heading -> "num" for a column of numbers, "" for one of text."""
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    """Sentences below the table."""


def shorten(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}… ({len(text) - length:,} characters more)"


def headline(run: RunData) -> list[tuple[str, str, str]]:
    """Label, figure and remark of the most important figures that are known, as plain text."""
    figures: list[tuple[str, str, str]] = []
    success_of = {when: e.success_rate for when, e in run.evaluations.items() if e.attempts}
    newest = success_of.get("after", next(reversed(run.phases.get("evaluation", ())), {}).get("success"))
    if is_number(newest):
        remark = f"{short(success_of['before'])} before" if "before" in success_of else ""
        figures.append(("Held-out success", short(newest), remark))
    loss_before, loss = (run.number(f"held_out_loss_{when}") for when in ("before", "after"))
    if loss is not None:
        figures.append(("Held-out loss", short(loss), f"{short(loss_before)} before" if loss_before else ""))
    last = (run.phases.get("train") or [{}])[-1]
    if is_number(last.get("reward")):
        figures.append(("Reward, last step", short(last["reward"]), ""))
    steps, total_steps = last.get("step", 0), run.number("steps")
    if steps:
        figures.append(
            ("Optimizer steps", f"{steps:,}", f"of {total_steps:,}" if total_steps and total_steps != steps else "")
        )
    last_records = [records[-1] for records in run.phases.values() if records]
    last_time = max((record["time"] for record in last_records if is_number(record.get("time"))), default=0.0)
    if seconds := run.number("total_seconds") or last_time:
        median = _median([y for _, y in run.series("train", "s/step")])
        figures.append(("Duration", duration(seconds), f"{duration(median)} a step" if median else ""))
    if rates := [y for _, y in run.series("train", "tokens/s")]:
        figures.append(("Sampled tokens/s", short(_median(rates)), "median of the steps"))
    if memory := [y for _, y in run.series("system", "run/memory_bytes")]:
        figures.append(("Memory of the run", short(max(memory), "bytes"), "at its peak"))
    gpu_names = run.metric_names("system", r"gpu/\d+/memory_used_bytes")
    if gpu := [y for name in gpu_names for _, y in run.series("system", name)]:
        figures.append(("Memory of a GPU", short(max(gpu), "bytes"), "at its peak"))
    return figures


def _median(values: Sequence[float]) -> float:
    finite = sorted(value for value in values if math.isfinite(value))
    return finite[len(finite) // 2] if finite else 0.0


def titled_evaluations(run: RunData, *, only_headline: bool = False) -> dict[str, Evaluation]:
    """The evaluations by their titles, in the order of the run; only those of its headline, if so asked."""
    in_order = sorted(run.evaluations.items(), key=lambda item: _evaluation_position(item[0]))
    others = {name for name, _ in in_order if only_headline and ("." in name or name == "tool_off")}
    facts = {**run.facts, **(run.summary or {})}
    return {evaluation_title(facts, name): evaluation for name, evaluation in in_order if name not in others}


def _evaluation_position(name: str) -> tuple[str, int, int]:
    when, _, figure = name.partition(".")
    number = when.removeprefix("evaluation_")
    positions = {"before": 0, "tool_off": 1, "after": 3}
    return figure, positions.get(when, 2), int(number) if number.isdigit() else 0


def evaluation_title(facts: Values, name: str) -> str:
    """The name of an evaluation's file for people, with its sampling parameters where run.json has them."""
    titles = {"before": "before training", "after": "after training", "tool_off": "before, tools switched off"}
    when, _, figure = name.partition(".")
    number = when.removeprefix("evaluation_")
    title = titles.get(when) or (f"after step {int(number):,}" if number.isdigit() else when)
    return title + (f"; {figure.replace('.', ', ')}" if figure else "") + _sampling(facts, figure)


def _sampling(facts: Values, figure: str) -> str:
    """The sampling parameters of an evaluation that are not 1, where the run records them."""
    evaluations = facts.get("evaluations")
    sampling = evaluations.get(figure or "headline") if isinstance(evaluations, dict) else None
    values = [(name, sampling.get(name, 1)) for name in ("temperature", "top_p")] if isinstance(sampling, dict) else []
    parts = [f"{name} {value:g}" for name, value in values if is_number(value) and value != 1]
    return f" ({', '.join(parts)})" if parts else ""


def change_text(run: RunData) -> str:
    """What the training changed, on the tasks that were evaluated before and after it; "" if nothing says it."""
    before, after = run.evaluations.get("before"), run.evaluations.get("after")
    return after.change_text(before) if before is not None and after is not None else ""


def startup(run: RunData) -> Table | None:
    """The phases from the command to the first optimizer step, side by side; None if they are not known."""
    phases = run.fact("startup")
    total = phases.get("first_step") if isinstance(phases, dict) else None
    if not is_number(total) or not total > 0:
        return None
    spans = {n: s for n, s in phases.items() if isinstance(s, list) and len(s) == 2 and is_number(s[1])}
    rows = [[name, f"{at:.1f} s" if is_number(at) else "", f"{took:.1f} s"] for name, (at, took) in spans.items()]
    sentence = f"The first optimizer step was done {duration(total)} after the command."
    return Table(title="Startup", columns={"phase": "", "began at": "num", "took": "num"}, rows=rows, notes=[sentence])


def tools(run: RunData) -> Table | None:
    """The slowest tools first; None if none was called."""
    figures = sorted(run.tools().items(), key=lambda item: -item[1].quantile(0.95))
    rows = [
        [
            name[:80],
            f"{tool.calls:,}",
            _call_seconds(tool.quantile(0.50)),
            _call_seconds(tool.quantile(0.95)),
            _call_seconds(max(tool.seconds, default=0.0)),
            ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in tool.errors.items()) or "none",
        ]
        for name, tool in figures[:MAX_TOOLS]
    ]
    if not rows:
        return None
    hidden = len(figures) - len(rows)
    notes = [f"{hidden} more tools are left out."] * (hidden > 0) + [
        *unstopped_warnings(run.training_episodes),
        *_cut_notes(run),
    ]
    columns = {"tool": "", "calls": "num", "p50": "num", "p95": "num", "longest": "num", "errors": ""}
    return Table(title="Slowest tools", columns=columns, rows=rows, notes=notes)


def _call_seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else duration(seconds)


def _cut_notes(run: RunData) -> list[str]:
    return [] if run.has_all_trained else [f"Of the last {len(run.training_episodes):,} episodes of the training."]


def outcomes(run: RunData) -> Table | None:
    """The number of episodes of each outcome; then the counts of dropped and repeated groups and of skipped steps."""
    in_training, in_evaluations = (
        Counter(e.outcome.value for e in episodes) for episodes in (run.training_episodes, run.evaluation_episodes)
    )
    rows = [
        [name, meaning, f"{in_training[name]:,}", f"{in_evaluations[name]:,}"]
        for name, meaning in OUTCOMES.items()
        if in_training[name] or in_evaluations[name]
    ]
    totals = {
        meaning: (name, max((y for _, y in run.series("train", name)), default=0.0)) for name, meaning in COUNTS.items()
    }
    tokens = dict(run.series("train", "tokens"))
    skips = [tokens.get(step, 1.0) for step, is_skipped in run.series("train", "skipped") if is_skipped]
    idle = skips.count(0.0)
    totals["optimizer steps whose loss or gradient was not finite, skipped"] = ("skipped", len(skips) - idle)
    totals["optimizer steps without a token to learn from, skipped"] = ("skipped", idle)
    rows += [[name, meaning, f"{count:,.0f}", ""] for meaning, (name, count) in totals.items() if count]
    columns = {"outcome": "", "meaning": "", "in training": "num", "in evaluations": "num"}
    return Table(title="Outcomes", columns=columns, rows=rows, notes=_cut_notes(run)) if rows else None


def finding_parts(run: RunData) -> Iterator[tuple[str, ...]]:
    """The steps, what was measured, the likely cause and what to try."""
    findings = run.fact("findings")
    for finding in findings if isinstance(findings, list) else ():
        if isinstance(finding, dict):
            steps = " to ".join(dict.fromkeys(str(finding.get(name)) for name in ("step", "last_step")))
            texts = (shorten(str(finding.get(name) or ""), 1000) for name in ("measured", "cause", "settings"))
            yield (f"step {steps}", *texts)


def actions(run: RunData) -> Table | None:
    """The last actions of people on the run while it went on; None if there are none."""
    names = ("step", "who", "action", "value", "text")
    rows = [
        [duration(float(each.get("seconds") or 0.0)), *(shorten(str(each.get(name, "")), 300) for name in names)]
        for each in run.actions[-MAX_WARNINGS:]
    ]
    columns = {"after": "num", "step": "num", "who": "", "action": "", "value": "", "what follows": ""}
    return Table(title="Actions", columns=columns, rows=rows) if rows else None


def warnings(run: RunData) -> Table | None:
    """The last warnings of the run and the error that ended it; None if there are none."""
    lines = [line for line in run.console if line.get("kind") in ("warning", "error")]
    rows = [[duration(float(line.get("time") or 0.0)), shorten(line["text"], 1000)] for line in lines[-MAX_WARNINGS:]]
    hidden = len(lines) - len(rows)
    notes = [f"{hidden:,} earlier ones are in console.jsonl."] if hidden else []
    return Table(title="Warnings", columns={"after": "num", "warning": ""}, rows=rows, notes=notes) if rows else None
