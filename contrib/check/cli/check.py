"""`forge-env check`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from forge_env.cli.evaluate import parse_options
from forge_env.cli.output import Json, emit, say, show_table, stdout_to_stderr
from forge_env.evaluation.progress import PeriodicLines
from forge_env.utils.run_async import run_async

if TYPE_CHECKING:
    from contrib.check.report import AuditReport, CheckReport, CheckRow
    from forge_env.rollout.factory import EnvFactory

_VERDICTS = {True: "ok", False: "FAILED", None: "skipped"}


def check(
    name: Annotated[str, typer.Argument(help="Name or target of an environment.")],
    option: Annotated[
        list[str],
        typer.Option("--option", "--options", help="Option of the environment, such as level=2; may be repeated."),
    ] = [],  # noqa: B006 (typer reads it, nobody changes it)
    seed: Annotated[int, typer.Option(help="Seed of the tasks and the episodes.")] = 0,
    tasks: Annotated[int | None, typer.Option(help="Number of tasks: 8 to check, and all to audit.")] = None,
    only: Annotated[str, typer.Option(help="Names of the checks to run, separated by commas.")] = "",
    seconds: Annotated[
        float | None, typer.Option(help="Time budget: 120 to check, 3600 to audit; what exceeds it is 'not checked'.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Test whether an environment can be trusted, or audit the tasks of a folder; exits with 1 when something fails.

    If the tasks of an environment are files of others (harbor:PATH), they are audited, unless --only names checks: the
    solution earns 1, an empty answer and known cheats earn 0, and the verifier is deterministic.
    """
    from forge_env.rollout.factory import make

    factory = make(name, **parse_options(option))
    if hasattr(factory.env_class, "audit") and not only:
        return _audit(factory, seed, tasks, seconds, as_json)
    names = [check for check in only.split(",") if check.strip()]
    return _check(factory, seed, tasks, seconds, names, as_json)


def _check(
    factory: EnvFactory, seed: int, tasks: int | None, seconds: float | None, only: list[str], as_json: bool
) -> int:
    from contrib.check import run_checks
    from contrib.check.runner import BUDGET_SECONDS

    progress = _Progress()
    with stdout_to_stderr(as_json):
        work = run_checks(
            factory,
            seed=seed,
            tasks=8 if tasks is None else tasks,
            only=only,
            seconds=BUDGET_SECONDS if seconds is None else seconds,
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
        _show(factory.name, report)
    return 0 if report.ok else 1


def _audit(factory: EnvFactory, seed: int, tasks: int | None, seconds: float | None, as_json: bool) -> int:
    from contrib.check import run_audit
    from contrib.check.audit import SECONDS

    lines, seconds = PeriodicLines(), SECONDS if seconds is None else seconds

    def progress(name: str, done: int) -> None:
        lines.write(f"{done} tasks audited, {name} the latest")

    with stdout_to_stderr(as_json):
        report = run_async(run_audit(factory, seed=seed, tasks=tasks, seconds=seconds, progress=progress))
    if as_json:
        emit(report.to_dict())
    else:
        _show_audit(report)
    return 0 if report.ok else 1


def _show_audit(report: AuditReport) -> None:
    def reward(value: float | None) -> str:
        return "none" if value is None else f"{value:g}"

    rows = []
    for task in report.tasks:
        rewards = (reward(task.solution), reward(task.empty), f"{len(task.paid)} of {len(task.cheats)}")
        rows.append((task.name, _VERDICTS[task.ok], *rewards, f"{task.verifier_seconds:.2f} s"))
    show_table(("task", "result", "solution", "empty", "cheats paid", "verifier"), rows)
    for task in report.tasks:
        for problem in (*task.problems, *(f"it pays a cheat: {hole}" for hole in task.holes)):
            say(f"{task.name}: {problem}")
    failures = sum(not task.ok for task in report.tasks)
    remarks = f"; not audited: {', '.join(report.not_audited)}" if report.not_audited else ""
    if names := [task.name for task in report.tasks if task.solution is None]:
        remarks += f"; without a verdict, see above: {len(names)} ({', '.join(names)})"
    say(
        f"{report.name}: {len(report.tasks)} tasks audited in {report.seconds:.0f} s, {failures} not to be trusted, "
        f"{len(report.hackable)} pay a cheat{remarks}"
    )


class _Progress:
    """Shows the running check on stderr: one line that changes on a terminal, else a line every few seconds."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._lines = PeriodicLines()
        self._start = time.monotonic()
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
        text = f"{self._check}: {self._episodes} episodes played, {time.monotonic() - self._start:.0f} s"
        if self._is_terminal:
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()
        else:
            self._lines.write(text)


def _show(name: str, report: CheckReport) -> None:
    def verdict(row: CheckRow) -> str:
        return "not checked" if row.unfinished else "warning" if row.is_warning else _VERDICTS[row.ok]

    rows = [(row.name, verdict(row), f"{row.seconds:.2f} s", row.detail) for row in report.rows]
    show_table(("check", "result", "time", "detail"), rows)
    for method, latency in (("reset", report.reset), ("step", report.step)):
        if latency is not None:
            say(f"{method}: p50 {latency.p50:.2f} ms, p95 {latency.p95:.2f} ms")
    failures = sum(row.ok is False for row in report.rows)
    remarks = f"; a warning: {', '.join(report.warnings)}" if report.warnings else ""
    remarks += f"; not checked: {', '.join(report.not_checked)}" if report.not_checked else ""
    result = f"{failures} of {len(rows)} checks failed" if failures else f"{len(rows)} checks, none failed"
    say(f"{name}: {result}{remarks}")
