"""`forge-env export`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from forge_env.cli.output import Json, emit, note, say, stdout_to_stderr

_RUN = "Folder of an evaluation or a training run, or a .jsonl file."
_TO = "hf (parquet), atif (trajectories), openai (fine-tuning), sft (for trainers.sft) or training_trace (OpenEnv)."
_OUT = "New folder of hf, atif or training_trace; new .jsonl file of all but hf."
_WHERE = "FIELD=VALUE[,VALUE]; outcome, success, env, phase, kind, task, group, ended_by. May be repeated."
_SCORES = "With openai: also how each episode was scored, which OpenAI itself refuses."


def export(
    run: Annotated[Path, typer.Argument(help=_RUN)],
    to: Annotated[str, typer.Option(help=_TO)],
    out: Annotated[Path, typer.Option(help=_OUT)],
    where: Annotated[list[str], typer.Option(help=_WHERE)] = [],  # noqa: B006 (typer reads it, nobody changes it)
    min_reward: Annotated[float | None, typer.Option(help="Least reward of an episode.")] = None,
    step: Annotated[str, typer.Option(help="Optimizer steps of a training run: N, N..M, N.. or ..M.")] = "",
    tokens: Annotated[bool, typer.Option("--tokens", help="Token ids, loss mask, logprobs and versions, too.")] = False,
    scores: Annotated[bool, typer.Option("--scores", help=_SCORES)] = False,
    as_json: Json = False,
) -> int:
    """Write recorded episodes in a format of other programs; nothing is left of an export that does not end.

    The command export-model writes trained weights.
    """
    from contrib.records.exports.export import about_left_out
    from contrib.records.exports.export import export as write
    from contrib.records.exports.select import parse_wanted

    choice = parse_wanted(where, min_reward, step)
    with stdout_to_stderr(as_json):
        result = write(run, out, to, choice, tokens=tokens, scores=scores)
    if as_json:
        emit({"run": str(run), "to": to, "out": str(out), **asdict(result)})
    else:
        say(f"{result.episodes:,} episodes of {run} are in {out}")
    if left_out := about_left_out(result):
        note(f"left out: {left_out}")
    if result.replaced:
        note(f"text that is no valid Unicode was replaced by U+FFFD in {result.replaced:,} of them")
    if result.thoughts:
        note(f"OpenAI's format has no place for thoughts: those of {result.thoughts:,} episodes are left out")
    for env, reason in result.without_tools.items():
        note(f"the tools of {env} are not in it: {reason}")
    return 0
