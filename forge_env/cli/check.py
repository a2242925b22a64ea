"""`forge-env check`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from forge_env.cli.options import parse_options
from forge_env.cli.output import Json, emit, say, show_table, stdout_to_stderr
from forge_env.cli.running import run

if TYPE_CHECKING:
    from forge_env.check import CheckReport, CheckRow

_LINE_SECONDS = 10.0  # between two lines of progress, where stderr is no terminal
_WORDS = {True: "ok", False: "FAILED", None: "skipped"}


def check(
    name: Annotated[str, typer.Argument(help="An environment's name, or its target.")],
    option: Annotated[
        list[str],
        typer.Option("--option", "--options", help="Option of the environment, as level=2; may be repeated."),
    ] = [],  # noqa: B006 (typer reads it, nobody changes it)
    seed: Annotated[int, typer.Option(help="Of the tasks and the episodes.")] = 0,
    tasks: Annotated[int, typer.Option(help="How many tasks to look at.")] = 8,
    only: Annotated[str, typer.Option(help="Names of the checks to run, with commas between them.")] = "",
    seconds: Annotated[float, typer.Option(help="The budget; what does not fit is named as not checked.")] = 120.0,
    as_json: Json = False,
) -> int:
    """Play an environment, well and badly, and say whether it can be trusted; exits with 1 when a check fails."""
    from forge_env.check import run_checks
    from forge_env.rollout.factory import make

    view = _Progress()
    with stdout_to_stderr(as_json):
        work = run_checks(
            make(name, **parse_options(option)),
            seed=seed,
            tasks=tasks,
            only=[each for each in only.split(",") if each.strip()],
            seconds=seconds,
            progress=view.begin,
            on_episode=view.played,
        )
        try:
            report = run(work)
        finally:
            view.end()
    if as_json:
        emit(report.to_dict())
    else:
        _show(name, report)
    return 0 if report.ok else 1


class _Progress:
    """The check at hand on stderr: one line that changes on a terminal, else a line now and then."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._started = self._last_line = time.monotonic()
        self._name = ""
        self._played = 0

    def begin(self, name: str) -> None:
        self._name = name
        self._show()

    def played(self, episodes: int) -> None:
        self._played = episodes
        self._show()

    def end(self) -> None:
        if self._is_terminal:
            sys.stderr.write("\r\033[K")

    def _show(self) -> None:
        now = time.monotonic()
        line = f"{self._name}: {self._played} episodes played, {now - self._started:.0f} s"
        if self._is_terminal:
            sys.stderr.write(f"\r\033[K{line}")
            sys.stderr.flush()
        elif now - self._last_line > _LINE_SECONDS:
            self._last_line = now
            sys.stderr.write(f"{line}\n")


def _show(name: str, report: CheckReport) -> None:
    rows = [(row.name, _word(row), f"{row.seconds:.2f} s", row.detail) for row in report.rows]
    show_table(("check", "result", "time", "what was found"), rows)
    for what, latency in (("reset", report.reset), ("step", report.step)):
        if latency is not None:
            say(f"{what}: p50 {latency.p50:.2f} ms, p95 {latency.p95:.2f} ms")
    failed = sum(row.ok is False for row in report.rows)
    left = f"; not checked: {', '.join(report.not_checked)}" if report.not_checked else ""
    say(f"{name}: {f'{failed} of {len(rows)} checks failed' if failed else f'{len(rows)} checks, none failed'}{left}")


def _word(row: CheckRow) -> str:
    return "not checked" if row.unfinished else _WORDS[row.ok]
