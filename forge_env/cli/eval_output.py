"""What `forge-env eval` prints: its progress, and the tables of the result."""

from __future__ import annotations

import sys
from typing import Any, Self

from forge_env.cli.output import note, say, show_table
from forge_env.cli.progress import PeriodicLines
from forge_env.core.episode import Episode
from forge_env.core.types import Outcome
from forge_env.core.usage import Prices
from forge_env.evaluation.evaluate import is_success
from forge_env.evaluation.metrics import telling_parts
from forge_env.evaluation.summary import tokens_of


def named(agent: str, adapter: str) -> str:
    """The agent, and the adapter that it computes with."""
    return f"{agent} with {adapter}" if adapter else agent


class LiveProgress:
    """A progress bar with the success rate so far, on stderr; lines if that is no terminal, nothing if quiet."""

    def __init__(self, title: str, *, quiet: bool, prices: Prices | None = None) -> None:
        self.done = self.total = 0
        self._title = title
        self._quiet = quiet
        self._prices = prices
        self._successes = self._timeouts = self._faults = self._prompt = self._completion = 0
        self._bar: Any = None
        self._lines = PeriodicLines()

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            self._bar = _bar()
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=None, figures="", markup=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, total: int, episode: Episode | None) -> None:
        """Count an episode, run or read; None before the first one, and again before the greedy ones."""
        if episode is None and self.total:
            self.done = self._successes = self._timeouts = self._faults = 0
            self._title += ", greedy"
        self.total = total
        if episode is not None:
            self.done += episode.outcome.is_attempt
            self._timeouts += episode.outcome is Outcome.TIMEOUT
            self._faults += not episode.outcome.is_attempt
            self._successes += is_success(episode)
            prompt, completion = tokens_of(episode)
            self._prompt, self._completion = self._prompt + prompt, self._completion + completion
        if self._bar is not None:
            shown = {"total": total, "completed": self.done, "description": self._title}
            self._bar.update(self._task, figures=self._figures(), **shown)
        elif not self._quiet:
            self._lines.write(f"{self._title}: {self.done}/{total}  {self._figures()}")

    def _figures(self) -> str:
        figures = [f"success {self._successes / self.done:.3f}"] if self.done else []
        figures += [f"{self._timeouts} time-outs"] * bool(self._timeouts)
        figures += [f"{self._faults} faults"] * bool(self._faults)
        figures += [f"{self._prompt + self._completion:,} tokens"] * bool(self._prompt + self._completion)
        if self._prices is not None:
            figures.append(f"cost {self._prices.cost(self._prompt, self._completion):.4f}")
        return "  ".join(figures)


_PART_COLUMNS = 4
"""Parts of the reward with a column in the table of kinds; eval.json has all."""
_CALL_COLUMNS = ("calls", "requests", "prompt_tokens", "completion_tokens", "cost")


def show_result(result: dict[str, Any]) -> None:
    """Print the tables of a finished evaluation."""
    n = result["n"]
    names = [f"avg@{n}", *(f"pass@{k}" for k in range(1, n + 1)), *(f"pass^{k}" for k in range(1, n + 1)), "reward"]
    show_table(
        ("figure", "value", "95% interval, by task"),
        [(name, _number(result[name]), _range(result["intervals"][name])) for name in names]
        + _without_timeouts(result)
        + _greedy(result),
    )
    _show_kinds(result)
    parts = result.get("rewards", {})
    if names := telling_parts(result["reward"], parts):
        scored = result["episodes"] - result["timeouts"]
        rows = [
            (name, _number(parts[name]["mean"]), _number(parts[name]["std"]), f"{parts[name]['episodes']} of {scored}")
            for name in names
        ]
        show_table(("part of the reward", "mean", "std", "episodes"), rows)
    if result["tools"]:
        tools = [
            (name, *_tool_counts(figures), f"{figures['p50_s']:.4f} s", f"{figures['p95_s']:.4f} s")
            for name, figures in result["tools"].items()
        ]
        show_table(("tool", "calls", "errors", "faults", "p50", "p95"), tools)
    if calls := result.get("model_calls"):
        rows = [(role, *(f"{of_role.get(name, 0):,.6g}" for name in _CALL_COLUMNS)) for role, of_role in calls.items()]
        show_table(("model of", *(name.replace("_", " ") for name in _CALL_COLUMNS)), rows)
    if result["faults"]:
        faults = [(name, str(count), result["first_errors"][name]) for name, count in result["faults"].items()]
        show_table(("fault", "episodes", "the first one's error"), faults)
    for warning in result["warnings"]:
        note(warning)
    cost = f", cost {result['cost']:.4f}" if "cost" in result else ""
    ended = f" ({_counts(result['outcomes'])})" if result["outcomes"] else ""
    say(
        f"{named(result['agent'], result['adapter'])} in {result['env']}: {result['episodes']} episodes of "
        f"{result['tasks']} tasks{ended}, "
        f"{result['tokens']:,} tokens{cost}, {result['seconds']:.1f} s"
    )
    say(f"{result['episodes_run']} episodes were run now, {result['episodes_read']} read")
    say(f"everything is in {result['out']}")


def _show_kinds(result: dict[str, Any]) -> None:
    """Print the success, the mean reward and the means of its parts by kind of task, if the tasks have kinds."""
    name = f"avg@{result['n']}"
    parts = telling_parts(result["reward"], result.get("rewards", {}))[:_PART_COLUMNS]
    rows = [
        (
            kind,
            str(of_kind["tasks"]),
            str(of_kind["episodes"]),
            _number(of_kind[name]),
            _range(of_kind["ci95"]),
            _number(of_kind["reward"]),
            *(_number(of_kind.get("rewards", {}).get(part, {}).get("mean")) for part in parts),
        )
        for kind, of_kind in result.get("kinds", {}).items()
    ]
    if not rows:
        return
    show_table(("kind of task", "tasks", "episodes", name, "95% interval, by task", "reward", *parts), rows)


def _tool_counts(figures: dict[str, Any]) -> tuple[str, str, str]:
    return str(figures["calls"]), _counts(figures["errors"]), str(figures["faults"])


def _without_timeouts(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the row of the success rate without time-outs, if there are any."""
    if not result["timeouts"]:
        return []
    without = result["without_timeouts"]
    name = f"avg@{result['n']}"
    return [(f"{name} without {result['timeouts']} time-outs", _number(without[name]), _range(without["ci95"]))]


def _greedy(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The row of the success at temperature 0, if it was measured."""
    figures = result.get("greedy")
    return [("avg@1 greedy", _number(figures["avg@1"]), _range(figures["ci95"]))] if figures else []


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        redirect_stdout=False,
        redirect_stderr=False,
    )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _range(interval: list[float | None] | None) -> str:
    return "-" if interval is None else f"{_number(interval[0])} to {_number(interval[1])}"
