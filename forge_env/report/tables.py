"""The tables of the page: headline figures, evaluations, tools, faults, what the run warned of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Sequence
from html import escape

from forge_env.evaluation.evaluate import Evaluation, is_success
from forge_env.report.numbers import duration, short
from forge_env.report.record import RunRecord, Values
from forge_env.utils.statistics import paired

MOST_TOOLS = 12
MOST_WARNINGS = 20
MOST_ERRORS = 3  # different ones of a class of faults
LONGEST_ERROR = 300

Row = Sequence[str]


def table(head: Row, rows: Sequence[Row], figures: Container[int]) -> str:
    """A table of cells that are HTML already; columns of these numbers are figures."""

    def cells(row: Row, tag: str) -> str:
        kinds = [' class="number"' if i in figures else "" for i in range(len(row))]
        return "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{cells(head, "th")}</tr></thead><tbody>{body}</tbody></table></div>'


def headline(run: RunRecord) -> list[tuple[str, str, str]]:
    """Label, figure and remark of the most important figures that are known; plain text."""
    last = (run.phases.get("train") or [{}])[-1]
    steps, planned = last.get("step", 0), run.known("steps")
    before, after = _measured(run, "before"), _measured(run, "after")
    newest = after or next(reversed(run.phases.get("evaluation", ())), None)
    found: list[tuple[str, str, str]] = []
    if newest and isinstance(newest.get("success"), int | float):
        remark = f"{short(before['success'])} before" if before and before is not newest else ""
        found.append(("Held-out success", short(newest["success"]), remark))
    losses = [run.known(f"held_out_loss_{when}") for when in ("before", "after")]
    if isinstance(losses[1], int | float):
        found.append(("Held-out loss", short(losses[1]), f"{short(losses[0])} before" if losses[0] else ""))
    if isinstance(last.get("reward"), int | float):
        found.append(("Reward, last step", short(last["reward"]), ""))
    if steps:
        found.append(("Optimizer steps", f"{steps:,}", f"of {planned:,}" if planned and planned != steps else ""))
    seconds = run.known("total_seconds") or max(
        (float(record.get("time", 0.0)) for each in run.phases.values() for record in each[-1:]), default=0.0
    )
    if seconds:
        median = _median([y for _, y in run.series("train", "s/step")])
        found.append(("Duration", duration(seconds), f"{duration(median)} a step" if median else ""))
    rates = [y for _, y in run.series("train", "tokens/s")]
    if rates:
        found.append(("Sampled tokens/s", short(_median(rates)), "median of the steps"))
    memory = [y for _, y in run.series("system", "run/memory_bytes")]
    if memory:
        found.append(("Memory of the run", short(max(memory), "bytes"), "at its peak"))
    gpu = [y for name in run.names("system", r"gpu/\d+/memory_used_bytes") for _, y in run.series("system", name)]
    if gpu:
        found.append(("Memory of a GPU", short(max(gpu), "bytes"), "at its peak"))
    return found


def _measured(run: RunRecord, when: str) -> Values | None:
    """What an evaluation measured, from its episodes."""
    evaluation = run.evaluations.get(when)
    return {"success": evaluation.success_rate} if evaluation is not None and evaluation.attempts else None


def _median(values: Sequence[float]) -> float:
    known = sorted(value for value in values if math.isfinite(value))
    return known[len(known) // 2] if known else 0.0


def evaluations(run: RunRecord) -> str:
    """Every evaluation with its interval, and the difference on the same tasks; "" where there is none."""
    rows = []
    for name, evaluation in sorted(run.evaluations.items(), key=lambda item: _order(item[0])):
        low, high = evaluation.interval
        reward = evaluation.reward
        rows.append(
            [
                escape(_title(run, name)),
                _bar(evaluation),
                short(evaluation.success_rate),
                f"[{short(low)}, {short(high)}]",
                f"{short(reward.value)}",
                f"{len(evaluation.attempts):,}",
                f"{evaluation.timeouts:,} (without: {short(evaluation.without_timeouts.value)})"
                if evaluation.timeouts
                else "0",
                f"{evaluation.faults:,}",
            ]
        )
    if not rows:
        return ""
    head = ["evaluated", "", "success", "95% interval", "mean reward", "episodes", "time-outs", "faults"]
    return table(head, rows, range(2, 8)) + _difference(run)


def _order(name: str) -> tuple[str, int, int]:
    when, _, figure = name.partition(".")
    number = when.removeprefix("evaluation_")
    places = {"before": 0, "tool_off": 1, "after": 3}
    return figure, places.get(when, 2), int(number) if number.isdigit() else 0


def _title(run: RunRecord, name: str) -> str:
    names = {"before": "before training", "after": "after training", "tool_off": "before, tools switched off"}
    when, _, figure = name.partition(".")
    number = when.removeprefix("evaluation_")
    said = names.get(when) or (f"after step {int(number):,}" if number.isdigit() else when)
    return said + (f"; {figure.replace('.', ', ')}" if figure else "") + _sampling(run, figure)


def _sampling(run: RunRecord, figure: str) -> str:
    """How a figure is sampled, where the run says so and it is not plain."""
    known = (run.known("evaluations") or {}).get(figure or "headline", {})
    parts = [f"{name} {known[name]:g}" for name in ("temperature", "top_p") if known.get(name, 1) != 1]
    return f" ({', '.join(parts)})" if parts else ""


def _bar(evaluation: Evaluation) -> str:
    """The success rate and its interval as a small bar."""
    if not evaluation.attempts:
        return ""
    (low, high), rate = evaluation.interval, evaluation.success_rate
    return (
        '<svg class="bar" aria-hidden="true"><rect class="track" width="100%" height="8" y="6"/>'
        f'<rect class="fill" width="{rate:.1%}" height="8" y="6"/>'
        f'<line x1="{low:.1%}" x2="{high:.1%}" y1="10" y2="10"/></svg>'
    )


def _difference(run: RunRecord) -> str:
    before, after = run.evaluations.get("before"), run.evaluations.get("after")
    if before is None or after is None:
        return ""
    tasks = [task for task in before.by_task if task in after.by_task]
    if not tasks:
        return ""
    rates = [[sum(map(is_success, each.by_task[t])) / len(each.by_task[t]) for t in tasks] for each in (after, before)]
    found = paired(*rates)
    change = found.difference
    said = (
        f"On the same {len(tasks):,} tasks, training changed success by {change.value:+.3f}"
        f" [{change.low:+.3f}, {change.high:+.3f}]: {found.wins:,} better, {found.losses:,} worse,"
        f" {found.ties:,} alike (paired, p {'< 0.001' if found.p_value < 0.001 else f'= {found.p_value:.3f}'})."
    )
    return f"<p>{escape(said)}</p>"


def startup(run: RunRecord) -> str:
    """The phases from the command to the first optimizer step, side by side; "" where they are not known."""
    known = run.known("startup")
    total = known.get("first_step") if isinstance(known, dict) else None
    if not isinstance(total, int | float) or not total > 0:
        return ""
    rows = []
    for name, phase in known.items():
        if name != "first_step":
            began, seconds = phase
            bar = "" if began is None else _place(began / total, seconds / total)
            rows.append([escape(name), bar, "" if began is None else f"{began:.1f} s", f"{seconds:.1f} s"])
    said = f"<p>The first optimizer step was done {duration(total)} after the command.</p>"
    return table(["phase", "", "began at", "took"], rows, {2, 3}) + said


def _place(first: float, size: float) -> str:
    """A part of a whole as a small bar in its place."""
    return (
        '<svg class="bar" aria-hidden="true"><rect class="track" width="100%" height="8" y="6"/>'
        f'<rect class="fill" x="{first:.2%}" width="{size:.2%}" height="8" y="6"/></svg>'
    )


def tools(run: RunRecord) -> str:
    """The slowest tools first; "" where none was called."""
    figures = sorted(run.tools().items(), key=lambda item: -item[1].quantile(0.95))
    rows = [
        [
            f"<code>{escape(name[:80])}</code>",
            f"{tool.calls:,}",
            duration_of_call(tool.quantile(0.50)),
            duration_of_call(tool.quantile(0.95)),
            duration_of_call(max(tool.seconds, default=0.0)),
            escape(", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in tool.errors.items()) or "none"),
        ]
        for name, tool in figures[:MOST_TOOLS]
    ]
    if not rows:
        return ""
    left = len(figures) - len(rows)
    note = f"<p class=note>{left} more tools are left out.</p>" if left > 0 else ""
    return table(["tool", "calls", "p50", "p95", "longest", "errors"], rows, range(1, 5)) + note


def duration_of_call(seconds: float) -> str:
    """Seconds of one call: in milliseconds where they are few."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else duration(seconds)


OUTCOMES = {
    "scored": "ended by itself, with a score",
    "truncated": "ran out of turns, tokens or time",
    "model_fault": "output that cannot be used",
    "timeout": "a time-out: services used up the time of the episode",
    "env_fault": "a fault: the environment's own code broke",
    "infra_fault": "a fault: something underneath broke",
}
COUNTS = {
    "groups_dropped": "groups with too few valid episodes, dropped",
    "groups_without_signal": "groups without a signal, sampled anew",
    "groups_run_again": "groups whose process died, run again",
    "processes_replaced": "processes that died or hung, replaced",
    "skipped": "optimizer steps without a finite gradient, skipped",
}


def faults(run: RunRecord) -> str:
    """How many episodes ended how, with what faults say; then what befell the machinery."""
    outcomes, errors = run.outcomes(), run.errors()
    for name, own in errors.items():
        outcomes[name] = max(outcomes[name], own.total())  # of the evaluations too
    rows = [
        [f"<code>{name}</code>", escape(meaning), f"{outcomes[name]:,}", _sentences(errors.get(name))]
        for name, meaning in OUTCOMES.items()
        if outcomes[name]
    ]
    for name, meaning in COUNTS.items():
        values = [y for _, y in run.series("train", name)]
        count = sum(values) if name == "skipped" else max(values, default=0.0)
        if count:
            rows.append([f"<code>{name}</code>", escape(meaning), f"{count:,.0f}", ""])
    return table(["", "what it is", "count", "what it says"], rows, {2}) if rows else ""


def _sentences(errors: Counter[str] | None) -> str:
    if not errors:
        return ""
    said = (f"<li>{n:,} × {escape(cut(text, LONGEST_ERROR))}</li>" for text, n in errors.most_common(MOST_ERRORS))
    return f"<ul>{''.join(said)}</ul>"


def cut(text: str, length: int) -> str:
    """A text, or its beginning and how much is left out."""
    return text if len(text) <= length else f"{text[:length]}… ({len(text) - length:,} characters more)"


def warnings(run: RunRecord) -> str:
    """What the run warned of and what ended it; "" where it was nothing."""
    lines = [line for line in run.said if line.get("kind") in ("warning", "error")]
    shown = [
        f"<li><span class=when>{duration(float(line.get('time') or 0.0))}</span> {escape(cut(line['text'], 1000))}</li>"
        for line in lines[-MOST_WARNINGS:]
    ]
    left = f"<p class=note>{len(lines) - len(shown):,} earlier ones are in console.jsonl.</p>"
    return f"<ul class=said>{''.join(shown)}</ul>{left if len(lines) > len(shown) else ''}" if shown else ""
