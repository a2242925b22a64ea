"""`forge-env audit`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from forge_env.cli.output import Json, emit, note, say, stdout_to_stderr
from forge_env.core.errors import UserError

MAX_SHOWN = 20


def audit(
    run: Annotated[Path, typer.Argument(help="Folder of an evaluation or a training run, or a .jsonl file.")],
    model: Annotated[str, typer.Option(help="Folder of the model that wrote the tokens, where the run has none.")] = "",
    as_json: Json = False,
) -> int:
    """Check all invariants of the episodes on disk, and decode their tokens again; exits with 1 on a problem."""
    from contrib.records.audit import audit as audit_run
    from contrib.records.audit import model_of, open_decoder, thinking_of

    run = run.expanduser()
    folder = Path(model).expanduser() if model else model_of(run)
    with stdout_to_stderr(as_json):
        result = audit_run(run, open_decoder(folder, thinking_of(run)) if folder else None)
    if not result.episodes and not result.problems:
        raise UserError(f"{run} holds no episode yet: there is nothing to audit")
    if as_json:
        emit({"run": str(run), "model": str(folder) if folder else None, **dataclasses.asdict(result)})
        return 1 if result.problems else 0
    for problem in result.problems[:MAX_SHOWN]:
        say(problem)
    if len(result.problems) > MAX_SHOWN:
        say(f"and {len(result.problems) - MAX_SHOWN} more")
    say(
        f"{result.episodes} episodes, {result.turns} turns, {result.sampled_tokens:,} sampled tokens, "
        f"{result.decoded_turns} turns decoded again: {len(result.problems)} problems"
    )
    if folder is None and result.sampled_tokens:
        note("no model was found, so nothing was decoded again: name its folder with --model")
    return 1 if result.problems else 0
