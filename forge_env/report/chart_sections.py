"""Which curves the page has. A curve of what a run did not measure is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forge_env.report.numbers import short
from forge_env.report.run_data import RunRecord
from forge_env.report.svg_chart import Chart, Dot, Line, running_mean

STEP = "optimizer step"
CONSTANT = ("learning_rate", "kl_penalty", "groups_open", "length_bias", "staleness_mean")
"""Metrics that say nothing as a curve where they never change."""
TIMES = ((7200.0, 3600.0, "hours"), (600.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""From how many seconds on an axis of time has which unit."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and the charts below it."""

    title: str
    charts: Sequence[Chart]


def sections(run: RunRecord) -> list[Section]:
    """Every chart that has something to show, in its section."""
    found = {
        "Learning": [_reward(run), _success(run), *_lines(run, LEARNING), _clipped(run)],
        "Warm-up": _warmup(run),
        "Speed": [_phases(run), _weights(run), *_lines(run, SPEED)],
        "Machine": _system(run),
    }
    charts = {title: [chart for chart in each if not chart.is_empty] for title, each in found.items()}
    return [Section(title=title, charts=each) for title, each in charts.items() if each]


ALARMED = "mean_abs_logprob_difference"

# Of the phase "train": name of the metric, title, unit, what it means.
LEARNING = (
    ("loss", "Loss", "", ""),
    ("kl", "KL(generator ‖ model), estimator k3", "nats per token", ""),
    ("kl_penalty", "KL penalty taken off the reward", "", ""),
    ("entropy", "Entropy of the policy", "nats per token", ""),
    (
        ALARMED,
        "Trainer and engine apart",
        "mean |logprob difference|",
        "About 1e-6 where both compute in float32, and 1e-2 in bfloat16; more with stale weights.",
    ),
    ("grad_norm", "Norm of the gradient", "", ""),
    ("learning_rate", "Learning rate", "", ""),
    ("groups_with_signal", "Groups with a signal", "groups of a step", "Those whose episodes differ in reward."),
)
SPEED = (
    ("tokens/s", "Sampled tokens per second", "tokens/s", ""),
    (
        "staleness_mean",
        "Staleness",
        "optimizer steps",
        "From the weights that sampled to those that are trained; mean.",
    ),
    ("groups_open", "Groups in flight", "groups", ""),
    ("length_bias", "Length bias of what was trained on", "", ""),
)


def _lines(run: RunRecord, table: Sequence[tuple[str, str, str, str]]) -> list[Chart]:
    found = []
    for name, title, unit, note in table:
        points = run.series("train", name)
        values = {y for _, y in points}
        if values - {0.0} and (len(values) > 1 or name not in CONSTANT):
            marks = [x for x, y in run.series("train", "mismatch_alarm") if y] if name == ALARMED else []
            line = Line(label=title, points=points)
            found.append(Chart(title=title, x_label=STEP, unit=unit, note=note, lines=[line], marks=marks))
    return found


def _with_mean(label: str, points: list[tuple[float, float]]) -> list[Line]:
    """The raw values, pale, and their running mean."""
    window = max(1, min(10, len(points) // 5))
    if window == 1:
        return [Line(label=label, points=points, colour=1)]
    mean = Line(label=f"{label}, mean of {window} steps", points=running_mean(points, window), colour=1)
    return [Line(label=label, points=points, is_faint=True, colour=1), mean]


def _reward(run: RunRecord) -> Chart:
    held_out = run.series("evaluation", "reward")
    dots = [Dot(x=x, y=y, low=y, high=y, label=f"after step {x:g}: {short(y)}") for x, y in held_out]
    lines = _with_mean("in training", run.series("train", "reward"))
    return Chart(title="Reward of an episode", x_label=STEP, lines=lines, dots=dots)


def _success(run: RunRecord) -> Chart:
    dots = [
        Dot(
            x=record["step"],
            y=record["success"],
            low=record.get("success_low", record["success"]),
            high=record.get("success_high", record["success"]),
            label=f"after step {record['step']}: {short(record['success'])}",
        )
        for record in run.phases.get("evaluation", ())
        if isinstance(record.get("success"), int | float)
    ]
    lines = _with_mean("in training", run.series("train", "success"))
    note = "Bars are 95% intervals." if dots else ""
    return Chart(title="Success rate", x_label=STEP, lines=lines, dots=dots, bounds=(0.0, 1.0), note=note)


def _clipped(run: RunRecord) -> Chart:
    names = {"clipped_low": "below", "clipped_high": "above"}
    lines = [Line(label=label, points=run.series("train", name)) for name, label in names.items()]
    shown = lines if any(y for line in lines for _, y in line.points) else []
    return Chart(title="Share of tokens that are clipped", x_label=STEP, lines=shown)


def _warmup(run: RunRecord) -> list[Chart]:
    loss = Line(label="loss", points=run.series("warmup", "loss"))
    probe = Line(label="success", points=run.series("warmup", "success"), colour=2)
    return [
        Chart(title="Loss of the supervised steps", x_label="supervised step", lines=[loss]),
        Chart(title="Success on probe tasks", x_label="supervised step", lines=[probe], bounds=(0.0, 1.0)),
    ]


def _phases(run: RunRecord) -> Chart:
    parts = {
        "seconds/rollout": "waiting for episodes",
        "seconds/train": "optimizer step",
        "seconds/sync_stall": "weights into the engine",
    }
    note = "With staleness, episodes are sampled meanwhile, and the first part is only what is waited for."
    return _stack(run, "Where the time of a step goes", parts, note)


def _weights(run: RunRecord) -> Chart:
    parts = {f"seconds/{part}": part for part in ("publish", "commit", "fetch", "swap")}
    return _stack(run, "Weight update", parts, "")


def _stack(run: RunRecord, title: str, parts: dict[str, str], note: str) -> Chart:
    """Parts of a sum, at the steps that have any."""
    records = [r for r in run.phases.get("train", ()) if any(isinstance(r.get(name), int | float) for name in parts)]
    lines = [
        Line(label=label, points=[(record["step"], float(record.get(name) or 0.0)) for record in records])
        for name, label in parts.items()
    ]
    return Chart(title=title, x_label=STEP, unit="s", lines=lines if records else (), is_stacked=True, note=note)


def _system(run: RunRecord) -> list[Chart]:
    longest = max((record["step"] for record in run.phases.get("system", ())), default=0.0)
    divisor, unit_of_time = next((size, name) for least, size, name in TIMES if longest >= least)

    def series(name: str) -> list[tuple[float, float]]:
        return [(seconds / divisor, value) for seconds, value in run.series("system", name)]

    def of(prefix: str) -> list[Line]:
        names = run.names("system", rf"{prefix}/.+")
        return [Line(label=name.partition("/")[2], points=series(name)) for name in names]

    def of_gpus(name: str) -> list[Line]:
        names = run.names("system", rf"gpu/\d+/{name}")
        return [Line(label=f"GPU {each.split('/')[1]}", points=series(each)) for each in names]

    def chart(title: str, unit: str, lines: list[Line], note: str = "") -> Chart:
        axis = f"{unit_of_time} since the start"
        return Chart(title=title, x_label=axis, unit=unit, lines=lines, bounds=(0, 0), note=note, starts_at=0.0)

    whole = "whole machine"
    memory = [
        Line(label="this run", points=series("run/memory_bytes")),
        Line(label=whole, points=series("memory_used_bytes"), colour=8),
    ]
    return [
        chart("GPU utilisation", "%", of_gpus("utilization_percent")),
        chart("GPU memory", "bytes", of_gpus("memory_used_bytes")),
        chart("GPU power", "W", of_gpus("power_watts")),
        chart("GPU temperature", "°C", of_gpus("temperature_celsius")),
        chart("CPU of each service", "%", of("cpu_percent"), "100% is one core."),
        chart("CPU of the machine", "%", [Line(label=whole, points=series("cpu_percent"))], "100% is all cores."),
        chart("Memory of each service", "bytes", of("memory_bytes"), "What processes share counts in each."),
        chart("Memory", "bytes", memory),
        chart("Free disk space", "bytes", [Line(label="free", points=series("disk_free_bytes"))]),
    ]
