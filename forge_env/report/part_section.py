"""The parts of the reward: tables of the evaluations and of the kinds of task, and a curve of each part."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from forge_env.report.chart_sections import mean_chart
from forge_env.report.kind_section import before_and_after
from forge_env.report.run_data import RunData
from forge_env.report.svg_chart import Chart, Line
from forge_env.report.tables import table, titled_evaluations

MAX_COLUMNS = 8
"""Parts with a column in the tables; each has its curve."""


def part_tables(run: RunData) -> str:
    """The mean of each part in every evaluation, and by kind of task; "" if there is none beside the reward itself."""
    measured = {title: e for title, e in titled_evaluations(run).items() if e.valid}
    parts = list(dict.fromkeys(part for e in measured.values() for part in e.shown_parts))[:MAX_COLUMNS]
    if not parts:
        return ""
    rows = [[escape(title), *(e.shown_parts.get(part, "") for part in parts)] for title, e in measured.items()]
    note = "<p class=note>Means before the weights, over the episodes that have the part.</p>"
    return table(["evaluated", *parts], rows, range(1, len(parts) + 1)) + note + _by_kind(run, parts)


def _by_kind(run: RunData, parts: Sequence[str]) -> str:
    changes = run.kinds.changes(run.evaluations.get("before"), run.evaluations.get("after"))
    rows = [
        [
            escape(kind),
            *(
                before_and_after(*(e.parts.get(part, {}).get("mean") for e in (change.before, change.after)))
                for part in parts
            ),
        ]
        for kind, change in changes.items()
    ]
    return table(["kind of task, before to after", *parts], rows, range(1, len(parts) + 1)) if rows else ""


def part_charts(run: RunData) -> list[Chart]:
    """The mean and the spread of each part over the steps."""
    return [chart for part in run.reward_parts if not (chart := _chart(run, part)).is_empty]


def _chart(run: RunData, part: str) -> Chart:
    spread = Line(label="standard deviation", points=run.series("train", f"reward/{part}/std"), colour=3)
    counts, episodes = (dict(run.series("train", name)) for name in (f"reward/{part}/episodes", "episodes"))
    lacking = sum(counts.get(step, 0.0) < count for step, count in episodes.items())
    note = f"Over the episodes that have the part: in {lacking:,} of {len(episodes):,} steps some lack it."
    return mean_chart(run, f"reward/{part}/mean", part, [spread], note if lacking else "")
