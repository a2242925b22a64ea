"""`forge-env check`."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from forge_env.cli.output import Json, emit, say, show_table, stdout_to_stderr
from forge_env.errors import UserError

_WORDS = {True: "ok", False: "FAILED", None: "skipped"}


def check(
    name: Annotated[str, typer.Argument(help="An environment's name, or its target.")],
    options: Annotated[list[str], typer.Option(help="Option of the environment, as level=2; may be repeated.")] = [],  # noqa: B006 (typer reads it, nobody changes it)
    seed: Annotated[int, typer.Option(help="Of the tasks and the episodes.")] = 0,
    tasks: Annotated[int, typer.Option(help="How many tasks to look at.")] = 8,
    as_json: Json = False,
) -> int:
    """Play an environment, well and badly, and say whether it can be trusted; exits with 1 when a check fails."""
    from forge_env.check import run_checks
    from forge_env.factory import make

    def progress(check: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\033[K{check}")

    with stdout_to_stderr(as_json):
        report = asyncio.run(run_checks(make(name, **_pairs(options)), seed=seed, tasks=tasks, progress=progress))
    progress("")
    if as_json:
        emit(report.to_dict())
        return 0 if report.ok else 1
    rows = [(row.name, _WORDS[row.ok], f"{row.seconds:.2f} s", row.detail) for row in report.rows]
    show_table(("check", "result", "time", "what was found"), rows)
    for what, latency in (("reset", report.reset), ("step", report.step)):
        if latency is not None:
            say(f"{what}: p50 {latency.p50:.2f} ms, p95 {latency.p95:.2f} ms")
    failed = sum(row.ok is False for row in report.rows)
    say(f"{name}: {f'{failed} of {len(rows)} checks failed' if failed else f'{len(rows)} checks, none failed'}")
    return 0 if report.ok else 1


def _pairs(options: list[str]) -> dict[str, str]:
    for option in options:
        if "=" not in option[1:]:
            raise UserError(f"--options {option!r} is not of the form name=value, for example --options level=2")
    return {name: value for name, _, value in (option.partition("=") for option in options)}
