"""`forge-env import`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from forge_env.cli.output import Json, emit, note, say

_LOG = "A .jsonl or .json file; for atif and training_trace also a folder, such as a job of Harbor."


def import_logs(
    log: Annotated[Path, typer.Argument(help=_LOG)],
    source: Annotated[str, typer.Option("--from", help="atif, openai or training_trace.")],
    out: Annotated[Path, typer.Option(help="New .jsonl file of Episodes.")],
    reward: Annotated[float | None, typer.Option(help="Reward of the records that hold none.")] = None,
    as_json: Json = False,
) -> int:
    """Read logs of other programs as Episodes, for score, audit, view, export and trainers.sft."""
    from contrib.records.imports.import_logs import about_left_out
    from contrib.records.imports.import_logs import import_logs as read

    result = read(log, source, out, reward)
    if as_json:
        emit({"log": str(log), "from": source, "out": str(out), **asdict(result)})
    else:
        say(f"{result.episodes:,} episodes of {log} are in {out}")
    if result.defaulted:
        note(f"{result.defaulted:,} of them hold no reward, and have that of --reward, {reward:g}")
    if left_out := about_left_out(result):
        note(f"left out: {left_out}")
    if result.not_carried:
        parts = ", ".join(f"{what} ({count:,})" for what, count in result.not_carried.items())
        note(f"an imported Episode does not hold what some records have: {parts}")
    if result.unversioned:
        note(f"{result.unversioned:,} do not say which weights sampled their tokens: the version is 0")
    if result.other_files:
        note(f"{result.other_files:,} other JSON files of {log} are not of the format {source}")
    return 0
