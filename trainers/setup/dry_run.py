"""--dry-run: prints the plan of a run, and starts nothing."""

from __future__ import annotations

import sys
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainers.setup.meaning import meaning, settings_with_defaults
from trainers.setup.memory import gib
from trainers.setup.run_plan import RunPlan
from trainers.setup.sizing.card import host_parts

WIDTH = 120  # where the console is not a terminal


def dry_run(plan: RunPlan) -> int:
    """Print the plan of a run; returns exit code 0, or 2 if the run could not start."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    _print(console, plan)
    if plan.problems:
        print(f"error: {plan.problems[0]}", file=sys.stderr)
        return 2
    return 0


def _print(console: Console, plan: RunPlan) -> None:
    _title(console, "Settings (* is not the default)")
    console.print(_settings(plan))
    _title(console, "What they come to")
    lines = _table("", "")
    for name, text in meaning(plan):
        lines.add_row(Text(name), Text(text))
    console.print(lines)
    _title(console, "Processes, and estimates of their memory in GiB")
    console.print(_processes(plan))
    for card in plan.cards:
        size = f"; it has {gib(plan.card)}" if plan.card else ""
        console.print(Text(f"{card}{size}"))
    if any(memory.on_host for _, memory in plan.processes if memory):
        parts = host_parts(plan.processes)
        each = " + ".join(f"{name} {gib(size)}" for name, size in parts.items())
        console.print(Text(f"memory of the host: {gib(sum(parts.values()))} = {each}"))
    _title(console, "Missing on this machine")
    for text in plan.missing or ["nothing"]:
        console.print(Text(f"  - {text}"))
    _title(console, "Whether it starts")
    for text in [f"no: {problem}" for problem in plan.problems] or ["yes; this was a dry run, and nothing was started"]:
        console.print(Text(f"  - {text}"))


def _title(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"))


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD if any(columns) else None, show_header=any(columns), pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _settings(plan: RunPlan) -> Table:
    table = _table("", "setting", "value", "default")
    for name, value, default in settings_with_defaults(plan):
        changed = value != default
        style = "bold" if changed else ""
        cells = ("*" if changed else "", name, _shown(value), _shown(default) if changed else "")
        table.add_row(*(Text(cell, style=style) for cell in cells))
    return table


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) if value != "" else '""'


def _processes(plan: RunPlan) -> Table:
    table = _table("process", "where", "part", "memory", "of which")
    for process, memory in plan.processes:
        same = [other for other, _ in plan.processes if other.service == process.service]
        name = process.service  # as in the names of the logs
        if any(other.replica for other in same):
            name += f"_{process.replica}"
        if any(other.rank for other in same):
            name += f" {process.rank}"
        known = memory is not None and memory.total > 0
        row = (
            name,
            process.where,
            process.part,
            gib(memory.total) if memory and known else "?" if memory is None else "",
        )
        table.add_row(*map(Text, row), Text(str(memory) if memory and known else ""))
    return table
