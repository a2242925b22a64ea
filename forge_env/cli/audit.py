"""`forge-env audit`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from forge_env.cli.output import Json, emit, note, say, stdout_to_stderr

SHOWN = 20


def audit(
    run: Annotated[Path, typer.Argument(help="Folder of an evaluation or a training run, or a .jsonl file.")],
    model: Annotated[str, typer.Option(help="Folder of the model that wrote the tokens, where the run has none.")] = "",
    as_json: Json = False,
) -> int:
    """Check every rule and token of the episodes on disk, and decode them again; exits with 1 when one is broken."""
    from forge_env.records.audit import DECODER, model_of
    from forge_env.records.audit import audit as audit_run
    from forge_env.registry.registry import load

    run = run.expanduser()
    folder = Path(model).expanduser() if model else model_of(run)
    with stdout_to_stderr(as_json):
        found = audit_run(run, load(DECODER)(folder) if folder else None)
    if as_json:
        emit({"run": str(run), "model": str(folder) if folder else None, **dataclasses.asdict(found)})
        return 1 if found.problems else 0
    for problem in found.problems[:SHOWN]:
        say(problem)
    if len(found.problems) > SHOWN:
        say(f"and {len(found.problems) - SHOWN} more")
    say(
        f"{found.episodes} episodes, {found.turns} turns, {found.sampled_tokens:,} sampled tokens, "
        f"{found.decoded_turns} turns decoded again: {len(found.problems)} problems"
    )
    if folder is None and found.sampled_tokens:
        note("no model was found, so nothing was decoded again: name its folder with --model")
    return 1 if found.problems else 0
