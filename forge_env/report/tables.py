"""The tables of the report: headline figures, evaluations, startup, tools, faults, warnings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from html import escape

from forge_env.evaluation.evaluate import Evaluation
from forge_env.evaluation.metrics import unstopped_warnings
from forge_env.report.numbers import duration, short
from forge_env.report.run_data import RunData, Values

MAX_PHONE_COLUMNS = 4
MAX_TOOLS = 12
MAX_WARNINGS = 20
MAX_ERRORS = 3
"""Different errors that are shown of one outcome."""
MAX_ERROR_TEXT = 300

Row = Sequence[str]

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
"""Metrics of the phase "train" that are listed with the faults; each is a running total."""


def table(head: Row, rows: Sequence[Row], number_columns: Container[int]) -> str:
    """A table of cells that are HTML already, below heads that are plain text.

    The columns with these indices are aligned as numbers. On a phone a row of many columns is a list, in which each
    cell stands beside its head.
    """

    def cells(row: Row, tag: str) -> str:
        css = [' class="number"' if i in number_columns else "" for i in range(len(row))]
        labels = [f' data-label="{escape(label)}"' if tag == "td" and label else "" for label in head]
        return "".join(
            f"<{tag}{kind}{label}>{cell}</{tag}>" for kind, label, cell in zip(css, labels, row, strict=True)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    css = "wide stacked" if len(head) > MAX_PHONE_COLUMNS else "wide"
    titles = cells([*map(escape, head)], "th")
    return f'<div class="{css}"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'


def shorten(text: str, length: int) -> str:
    """The text, or its beginning and how many characters are left out."""
    return text if len(text) <= length else f"{text[:length]}… ({len(text) - length:,} characters more)"


def headline(run: RunData) -> list[tuple[str, str, str]]:
    """Label, figure and remark of the most important figures that are known, as plain text."""
    return [*_learning_figures(run), *_cost_figures(run)]


def _learning_figures(run: RunData) -> list[tuple[str, str, str]]:
    figures: list[tuple[str, str, str]] = []
    before, after = _measured(run, "before"), _measured(run, "after")
    newest = after or next(reversed(run.phases.get("evaluation", ())), None)
    if newest and isinstance(newest.get("success"), int | float):
        remark = f"{short(before['success'])} before" if before and before is not newest else ""
        figures.append(("Held-out success", short(newest["success"]), remark))
    loss_before, loss = (run.fact(f"held_out_loss_{when}") for when in ("before", "after"))
    if isinstance(loss, int | float):
        figures.append(("Held-out loss", short(loss), f"{short(loss_before)} before" if loss_before else ""))
    last = (run.phases.get("train") or [{}])[-1]
    if isinstance(last.get("reward"), int | float):
        figures.append(("Reward, last step", short(last["reward"]), ""))
    steps, planned = last.get("step", 0), run.fact("steps")
    if steps:
        figures.append(("Optimizer steps", f"{steps:,}", f"of {planned:,}" if planned and planned != steps else ""))
    return figures


def _cost_figures(run: RunData) -> list[tuple[str, str, str]]:
    figures: list[tuple[str, str, str]] = []
    last_records = [records[-1] for records in run.phases.values() if records]
    last_time = max((float(record.get("time", 0.0)) for record in last_records), default=0.0)
    if seconds := run.fact("total_seconds") or last_time:
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


def _measured(run: RunData, when: str) -> Values | None:
    evaluation = run.evaluations.get(when)
    return {"success": evaluation.success_rate} if evaluation is not None and evaluation.attempts else None


def _median(values: Sequence[float]) -> float:
    finite = sorted(value for value in values if math.isfinite(value))
    return finite[len(finite) // 2] if finite else 0.0


def evaluations(run: RunData) -> str:
    """Every evaluation with its interval, and the difference on the same tasks; "" if there is none."""
    rows = [_evaluation_row(title, evaluation) for title, evaluation in titled_evaluations(run).items()]
    if not rows:
        return ""
    head = ["evaluated", "", "success", "95% interval", "mean reward", "episodes", "time-outs", "faults"]
    return table(head, rows, range(2, 8)) + _difference(run)


def titled_evaluations(run: RunData, *, only_headline: bool = False) -> dict[str, Evaluation]:
    """The evaluations by their titles, in the order of the run; only those of its headline, if so asked."""
    in_order = sorted(run.evaluations.items(), key=lambda item: _evaluation_position(item[0]))
    others = {name for name, _ in in_order if only_headline and ("." in name or name == "tool_off")}
    return {_evaluation_title(run, name): evaluation for name, evaluation in in_order if name not in others}


def _evaluation_row(title: str, evaluation: Evaluation) -> Row:
    low, high = evaluation.interval
    timeouts = f"{evaluation.timeouts:,}"
    if evaluation.timeouts:
        timeouts += f" (without: {short(evaluation.without_timeouts.value)})"
    return [
        escape(title),
        _success_bar(evaluation),
        short(evaluation.success_rate),
        f"[{short(low)}, {short(high)}]",
        short(evaluation.reward.value),
        f"{len(evaluation.attempts):,}",
        timeouts,
        f"{evaluation.faults:,}",
    ]


def _evaluation_position(name: str) -> tuple[str, int, int]:
    when, _, figure = name.partition(".")
    number = when.removeprefix("evaluation_")
    positions = {"before": 0, "tool_off": 1, "after": 3}
    return figure, positions.get(when, 2), int(number) if number.isdigit() else 0


def _evaluation_title(run: RunData, name: str) -> str:
    titles = {"before": "before training", "after": "after training", "tool_off": "before, tools switched off"}
    when, _, figure = name.partition(".")
    number = when.removeprefix("evaluation_")
    title = titles.get(when) or (f"after step {int(number):,}" if number.isdigit() else when)
    return title + (f"; {figure.replace('.', ', ')}" if figure else "") + _sampling(run, figure)


def _sampling(run: RunData, figure: str) -> str:
    """The sampling parameters of an evaluation, where the run records them and they are not 1."""
    known = (run.fact("evaluations") or {}).get(figure or "headline", {})
    parts = [f"{name} {known[name]:g}" for name in ("temperature", "top_p") if known.get(name, 1) != 1]
    return f" ({', '.join(parts)})" if parts else ""


def _success_bar(evaluation: Evaluation) -> str:
    if not evaluation.attempts:
        return ""
    (low, high), rate = evaluation.interval, evaluation.success_rate
    return _bar(0.0, rate, f'<line x1="{low:.1%}" x2="{high:.1%}" y1="10" y2="10"/>')


def _bar(start: float, size: float, marks: str = "") -> str:
    """A part of a whole as a small bar; start and size are shares of the whole."""
    return (
        '<svg class="bar" aria-hidden="true"><rect class="track" width="100%" height="8" y="6"/>'
        f'<rect class="fill" x="{start:.2%}" width="{size:.2%}" height="8" y="6"/>{marks}</svg>'
    )


def _difference(run: RunData) -> str:
    """What the training changed, on the tasks that were evaluated before and after it."""
    before, after = run.evaluations.get("before"), run.evaluations.get("after")
    if before is None or after is None:
        return ""
    sentence = after.change_text(before)
    return f"<p>{escape(sentence[0].upper() + sentence[1:])}.</p>" if sentence else ""


def startup(run: RunData) -> str:
    """The phases from the command to the first optimizer step, side by side; "" if they are not known."""
    phases = run.fact("startup")
    total = phases.get("first_step") if isinstance(phases, dict) else None
    if not isinstance(total, int | float) or not total > 0:
        return ""
    rows = []
    for name, phase in phases.items():
        if name != "first_step":
            began, seconds = phase
            bar = "" if began is None else _bar(began / total, seconds / total)
            rows.append([escape(name), bar, "" if began is None else f"{began:.1f} s", f"{seconds:.1f} s"])
    sentence = f"<p>The first optimizer step was done {duration(total)} after the command.</p>"
    return table(["phase", "", "began at", "took"], rows, {2, 3}) + sentence


def tools(run: RunData) -> str:
    """The slowest tools first; "" if none was called."""
    figures = sorted(run.tools().items(), key=lambda item: -item[1].quantile(0.95))
    rows = [
        [
            f"<code>{escape(name[:80])}</code>",
            f"{tool.calls:,}",
            _call_seconds(tool.quantile(0.50)),
            _call_seconds(tool.quantile(0.95)),
            _call_seconds(max(tool.seconds, default=0.0)),
            escape(", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in tool.errors.items()) or "none"),
        ]
        for name, tool in figures[:MAX_TOOLS]
    ]
    if not rows:
        return ""
    hidden = len(figures) - len(rows)
    note = f"<p class=note>{hidden} more tools are left out.</p>" if hidden > 0 else ""
    note += "".join(f"<p class=note>{escape(text)}</p>" for text in unstopped_warnings(run.trained))
    return table(["tool", "calls", "p50", "p95", "longest", "errors"], rows, range(1, 5)) + note


def _call_seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else duration(seconds)


def faults(run: RunData) -> str:
    """The number of episodes of each outcome, with errors; then the counts of dropped and repeated groups."""
    outcomes, errors = run.outcomes(), run.errors()
    for name, of_outcome in errors.items():
        outcomes[name] = max(outcomes[name], of_outcome.total())  # errors counts the evaluations too
    rows = [
        [f"<code>{name}</code>", escape(meaning), f"{outcomes[name]:,}", _error_list(errors.get(name))]
        for name, meaning in OUTCOMES.items()
        if outcomes[name]
    ]
    counts = [
        (name, meaning, max((y for _, y in run.series("train", name)), default=0.0)) for name, meaning in COUNTS.items()
    ]
    tokens = dict(run.series("train", "tokens"))
    skipped = [tokens.get(step, 1.0) for step, is_skipped in run.series("train", "skipped") if is_skipped]
    idle = skipped.count(0.0)
    counts.append(
        ("skipped", "optimizer steps whose loss or gradient was not finite, skipped", float(len(skipped) - idle))
    )
    counts.append(("skipped", "optimizer steps without a token to learn from, skipped", float(idle)))
    rows += [[f"<code>{name}</code>", escape(meaning), f"{count:,.0f}", ""] for name, meaning, count in counts if count]
    return table(["", "meaning", "count", "errors"], rows, {2}) if rows else ""


def _error_list(errors: Counter[str] | None) -> str:
    if not errors:
        return ""
    items = (f"<li>{n:,} × {escape(shorten(text, MAX_ERROR_TEXT))}</li>" for text, n in errors.most_common(MAX_ERRORS))
    return f"<ul>{''.join(items)}</ul>"


def finding_parts(run: RunData) -> Iterator[tuple[str, ...]]:
    """The steps, what was measured, the likely cause and what to try, see trainers/metrics/diagnosis.py."""
    listed = run.fact("findings")
    for finding in listed if isinstance(listed, list) else ():
        if isinstance(finding, dict):
            steps = " to ".join(dict.fromkeys(str(finding.get(name)) for name in ("step", "last_step")))
            told = (shorten(str(finding.get(name) or ""), 1000) for name in ("measured", "cause", "settings"))
            yield (f"step {steps}", *told)


def findings(run: RunData) -> str:
    """What the run has found that may keep it from learning; "" for nothing."""
    items = []
    for parts in finding_parts(run):
        when, measured, cause, settings = map(escape, parts)
        reason = f"{measured}. Likely cause: {cause}.<br>Try: {settings}."
        items.append(f"<li><span class=when>{when}</span> {reason}</li>")
    return f"<ul class=warnings>{''.join(items)}</ul>" if items else ""


def warnings(run: RunData) -> str:
    """The last warnings of the run and the error that ended it; "" if there are none."""
    lines = [line for line in run.console if line.get("kind") in ("warning", "error")]
    items = [
        f"<li><span class=when>{duration(float(line.get('time') or 0.0))}</span> "
        f"{escape(shorten(line['text'], 1000))}</li>"
        for line in lines[-MAX_WARNINGS:]
    ]
    hidden = len(lines) - len(items)
    note = f"<p class=note>{hidden:,} earlier ones are in console.jsonl.</p>" if hidden else ""
    return f"<ul class=warnings>{''.join(items)}</ul>{note}" if items else ""
