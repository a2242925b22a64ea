"""What `forge-env eval` prints: the tables of a result, and the table of a set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forge_env.cli.diff import cell_gap, difference_cells
from forge_env.cli.output import note, say, show_table
from forge_env.evaluation.metrics import telling_parts
from forge_env.evaluation.progress import agent_name

if TYPE_CHECKING:
    from forge_env.evaluation.sets import SetResult, SetRow

_PART_COLUMNS = 4
"""Parts of the reward with a column in the table of kinds; eval.json has all."""
_CALL_COLUMNS = ("calls", "requests", "prompt_tokens", "completion_tokens", "cost")


def show_result(result: dict[str, Any]) -> None:
    n = result["n"]
    names = [f"avg@{n}", *(f"pass@{k}" for k in range(1, n + 1)), *(f"pass^{k}" for k in range(1, n + 1)), "reward"]
    figures = [(name, _number(result[name]), _range(result["intervals"][name])) for name in names]
    if result["timeouts"]:
        without, name = result["without_timeouts"], f"avg@{n} without {result['timeouts']} time-outs"
        figures.append((name, _number(without[f"avg@{n}"]), _range(without["ci95"])))
    if greedy := result.get("greedy"):
        figures.append(("avg@1 greedy", _number(greedy["avg@1"]), _range(greedy["ci95"])))
    show_table(("figure", "value", "95% interval, by task"), figures)
    _show_kinds(result)
    parts = result.get("rewards", {})
    if names := telling_parts(result["reward"], parts):
        num_scored = result["episodes"] - result["timeouts"]
        rows = []
        for name, part in ((name, parts[name]) for name in names):
            rows.append((name, _number(part["mean"]), _number(part["std"]), f"{part['episodes']} of {num_scored}"))
        show_table(("part of the reward", "mean", "std", "episodes"), rows)
    if result["tools"]:
        tools = []
        for name, tool in result["tools"].items():
            counts = str(tool["calls"]), _counts(tool["errors"]), str(tool["faults"])
            tools.append((name, *counts, f"{tool['p50_s']:.4f} s", f"{tool['p95_s']:.4f} s"))
        show_table(("tool", "calls", "errors", "faults", "p50", "p95"), tools)
    if calls := result.get("model_calls"):
        rows = [(role, *(f"{of_role.get(name, 0):,.6g}" for name in _CALL_COLUMNS)) for role, of_role in calls.items()]
        show_table(("model of", *(name.replace("_", " ") for name in _CALL_COLUMNS)), rows)
    if result["faults"]:
        faults = [(name, str(count), result["first_errors"][name]) for name, count in result["faults"].items()]
        show_table(("fault", "episodes", "the first one's error"), faults)
    cost = f", cost {result['cost']:.4f}" if "cost" in result else ""
    outcomes = f" ({_counts(result['outcomes'])})" if result["outcomes"] else ""
    say(
        f"{agent_name(result['agent'], result['adapter'])} in {result['env']}: {result['episodes']} episodes of "
        f"{result['tasks']} tasks{outcomes}, {result['tokens']:,} tokens{cost}, {result['seconds']:.1f} s"
    )
    say(f"{result['episodes_run']} episodes were run now, {result['episodes_read']} read")
    if "profile" in result:
        say(f"of the tasks, {_counts(result['profile'])}")
    say(f"everything is in {result['out']}")


def show_set(result: SetResult) -> None:
    columns: tuple[str, ...] = ("environment", "agent", "success", "95% interval", "reward", "episodes")
    show_table(columns, [(row.env, row.agent, *_set_figures(row)) for row in result.rows], whole=range(2, 6))
    if result.comparisons:
        gap = cell_gap()
        rows = [
            (env, f"{second} minus {first}", *difference_cells(c.paired, gap))
            for env, first, second, c in result.comparisons
        ]
        columns = ("environment", "success of", "difference", f"better/{gap.strip(' ')}worse/same", "p")
        show_table(columns, rows, whole=range(2, 5))
    for row in result.rows:
        if row.error:
            note(f"{row.agent} in {row.env} failed: {row.error}")
    if (count := len(result.comparisons)) > 1:
        note(f"p and interval of each of the {count} differences are corrected for their number, by Holm's method")
    say(f"everything is in {result.folder}")


def _set_figures(row: SetRow) -> tuple[str, ...]:
    if row.result is None:
        return ("-",) * 4
    figures = row.result.figures
    faults = f" and {count} faults" if (count := sum(figures["faults"].values())) else ""
    episodes = f"{figures['episodes']}{faults}"
    return _number(figures["pass@1"]), _range(figures["ci95"]), _number(figures["reward"]), episodes


def _show_kinds(result: dict[str, Any]) -> None:
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
    if rows:
        show_table(("kind of task", "tasks", "episodes", name, "95% interval, by task", "reward", *parts), rows)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _range(interval: list[float | None] | None) -> str:
    return "-" if interval is None else f"{_number(interval[0])} to {_number(interval[1])}"
