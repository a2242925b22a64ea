"""Success by kind of task and parts of the reward, before and after training and in training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from contrib.viewer.report.numbers import short
from contrib.viewer.report.run_data import RunData
from contrib.viewer.report.tables import Table, titled_evaluations
from forge_env.evaluation.evaluate import Evaluation
from forge_env.evaluation.kinds import SOLVED, KindChange, verdict_note

MAX_COLUMNS = 8
"""Parts of the reward with a column in the tables."""


def kind_table(run: RunData) -> Table | None:
    """The success of each kind, and which kinds training did not change; None where the tasks have no kinds."""
    changes = run.kinds.changes(run.evaluations.get("before"), run.evaluations.get("after"))
    train_kinds = [n for n in run.kinds.order if run.series("train", f"success/{n}")]
    names = list(dict.fromkeys([*changes, *train_kinds]))
    if not names:
        return None
    empty = Evaluation(episodes=())
    rows = [_row(run, name, changes.get(name, KindChange(before=empty, after=empty))) for name in names]
    numbers = ("tasks", "before", "after", "change (better / worse)", "in training", "mean reward")
    columns = {"kind": "", "result": "", **dict.fromkeys(numbers, "num")}
    what = f"{'environment and ' if run.kinds.environments else ''}kind of task"
    return Table(title=f"Success by {what}", columns=columns, rows=rows, notes=_notes(run, changes))


def part_tables(run: RunData) -> Iterator[Table]:
    """The mean of each part in every evaluation, and by kind of task; none if there is none but the reward itself."""
    evaluations = {title: e for title, e in titled_evaluations(run).items() if e.valid}
    parts = list(dict.fromkeys(part for e in evaluations.values() for part in e.shown_parts))[:MAX_COLUMNS]
    columns = dict.fromkeys(parts, "num")
    rows = [[title, *(e.shown_parts.get(part, "") for part in parts)] for title, e in evaluations.items()]
    notes = ["Means before the weights, over the episodes that have the part.", *_lacking_parts(run)]
    if parts:
        yield Table(title="Parts of the reward", columns={"evaluated": "", **columns}, rows=rows, notes=notes)
    changes = run.kinds.changes(run.evaluations.get("before"), run.evaluations.get("after"))
    if parts and changes:
        rows = [[kind, *(_part_change(change, part) for part in parts)] for kind, change in changes.items()]
        title = "Parts of the reward by kind of task, before to after"
        yield Table(title=title, columns={"kind of task": "", **columns}, rows=rows)


def _part_change(change: KindChange, part: str) -> str:
    return before_and_after(*(e.parts.get(part, {}).get("mean") for e in (change.before, change.after)))


def _lacking_parts(run: RunData) -> Iterator[str]:
    episodes = dict(run.series("train", "episodes"))
    for part in run.reward_parts:
        counts = dict(run.series("train", f"reward/{part}/episodes"))
        if lacking := sum(counts.get(step, 0.0) < count for step, count in episodes.items()):
            yield f"In {lacking:,} of {len(episodes):,} steps of the training some episodes lack {part}."


def _row(run: RunData, name: str, change: KindChange) -> Sequence[str]:
    tasks = len(change.before.by_task.keys() | change.after.by_task.keys())
    rates = (_rate(change.before), _rate(change.after), _difference(change), _in_training(run, name))
    reward = before_and_after(change.before.mean_reward, change.after.mean_reward)
    return [name, change.verdict, f"{tasks:,}", *rates, reward]


def before_and_after(before: float | None, after: float | None) -> str:
    """A mean before and after training; None was not measured."""
    return " to ".join("–" if value is None else short(value) for value in (before, after))


def _rate(evaluation: Evaluation) -> str:
    low, high = evaluation.interval
    return f"{short(evaluation.success_rate)} [{short(low)}, {short(high)}]" if evaluation.attempts else ""


def _difference(change: KindChange) -> str:
    if change.paired is None:
        return ""
    low, high = change.paired.difference.interval
    interval = f"[{low:+.3f}, {high:+.3f}]"
    return f"{change.paired.difference.value:+.3f} {interval} ({change.paired.wins:,} / {change.paired.losses:,})"


def _in_training(run: RunData, name: str) -> str:
    """The success over the episodes of the first and of the last tenth of the steps that had some of the kind."""
    rates, counts = (dict(run.series("train", f"{figure}/{name}")) for figure in ("success", "episodes"))
    steps = [step for step in rates if counts.get(step)]
    tenth = math.ceil(len(steps) / 10)
    ends = (steps[:tenth], steps[-tenth:]) if steps else ()
    return " to ".join(
        short(math.fsum(rates[step] * counts[step] for step in part) / math.fsum(counts[step] for step in part))
        for part in ends
    )


def _notes(run: RunData, changes: dict[str, KindChange]) -> list[str]:
    counts = Counter(change.verdict for change in changes.values() if change.verdict)
    sentences = [
        ", ".join(f"{count} of {len(changes)} kinds {verdict}" for verdict, count in counts.items()),
        f"solved is a success of at least {SOLVED:g}; where no change is shown, what there is may be chance",
        "brackets are 95% intervals of the success on held-out tasks; better / worse counts the same tasks",
        verdict_note(changes, run.kinds.environments),
        "in training is the success of the first and of the last tenth of the steps",
        "the mean reward is that before and after training",
        run.kinds.note,
    ]
    return [" ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences if sentence)]
