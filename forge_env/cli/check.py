"""`forge-env check`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from forge_env.cli.env_options import parse_options
from forge_env.cli.output import Json, emit, say, show_table, stdout_to_stderr
from forge_env.cli.progress import PeriodicLines
from forge_env.cli.run_async import run_async

if TYPE_CHECKING:
    from forge_env.check import CheckReport, CheckRow

_VERDICTS = {True: "ok", False: "FAILED", None: "skipped"}


def check(
    name: Annotated[str, typer.Argument(help="Name or target of an environment.")],
    option: Annotated[
        list[str],
        typer.Option("--option", "--options", help="Option of the environment, such as level=2; may be repeated."),
    ] = [],  # noqa: B006 (typer reads it, nobody changes it)
    seed: Annotated[int, typer.Option(help="Seed of the tasks and the episodes.")] = 0,
    tasks: Annotated[int, typer.Option(help="Number of tasks to check.")] = 8,
    only: Annotated[str, typer.Option(help="Names of the checks to run, separated by commas.")] = "",
    seconds: Annotated[float, typer.Option(help="Time budget; a check that exceeds it is 'not checked'.")] = 120.0,
    as_json: Json = False,
) -> int:
    """Test whether an environment can be trusted; exits with 1 when a check fails."""
    from forge_env.check import run_checks
    from forge_env.rollout.factory import make

    progress = _Progress()
    with stdout_to_stderr(as_json):
        work = run_checks(
            make(name, **parse_options(option)),
            seed=seed,
            tasks=tasks,
            only=[check for check in only.split(",") if check.strip()],
            seconds=seconds,
            progress=progress.begin,
            on_episode=progress.count_episodes,
        )
        try:
            report = run_async(work)
        finally:
            progress.end()
    if as_json:
        emit(report.to_dict())
    else:
        _show(name, report)
    return 0 if report.ok else 1


class _Progress:
    """Shows the running check on stderr: one line that changes on a terminal, else a line every few seconds."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._lines = PeriodicLines()
        self._started = time.monotonic()
        self._check = ""
        self._episodes = 0

    def begin(self, check: str) -> None:
        self._check = check
        self._show()

    def count_episodes(self, episodes: int) -> None:
        self._episodes = episodes
        self._show()

    def end(self) -> None:
        if self._is_terminal:
            sys.stderr.write("\r\033[K")

    def _show(self) -> None:
        text = f"{self._check}: {self._episodes} episodes played, {time.monotonic() - self._started:.0f} s"
        if self._is_terminal:
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()
        else:
            self._lines.write(text)


def _show(name: str, report: CheckReport) -> None:
    rows = [(row.name, _verdict(row), f"{row.seconds:.2f} s", row.detail) for row in report.rows]
    show_table(("check", "result", "time", "detail"), rows)
    for method, latency in (("reset", report.reset), ("step", report.step)):
        if latency is not None:
            say(f"{method}: p50 {latency.p50:.2f} ms, p95 {latency.p95:.2f} ms")
    failed = sum(row.ok is False for row in report.rows)
    left = f"; not checked: {', '.join(report.not_checked)}" if report.not_checked else ""
    say(f"{name}: {f'{failed} of {len(rows)} checks failed' if failed else f'{len(rows)} checks, none failed'}{left}")


def _verdict(row: CheckRow) -> str:
    return "not checked" if row.unfinished else _VERDICTS[row.ok]
