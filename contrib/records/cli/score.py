"""`forge-env score`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from contrib.records.cli.new_file import new_file
from contrib.records.cli.score_again import before_and_now, cell, score_again
from forge_env.cli.output import Json, emit, note, show_table, stdout_to_stderr
from forge_env.core.errors import UserError
from forge_env.core.reward_value import are_same
from forge_env.utils.run_async import run_async

MAX_REASONS = 5
"""Maximum number of reasons printed for failed rewards, the most frequent first."""


def score(
    run: Annotated[Path, typer.Argument(help="Folder of an evaluation or a training run, or a .jsonl file.")],
    reward: Annotated[str, typer.Option(help="module:function or path/to/file.py:function.")] = "",
    again: Annotated[
        bool, typer.Option("--again", help="Judge the episodes again by their environment as it is today.")
    ] = False,
    option: Annotated[list[str], typer.Option(help="With --again: option of the environment, over the run's.")] = [],  # noqa: B006 (typer reads it, nobody changes it)
    at_once: Annotated[int, typer.Option(help="With --again: episodes that are judged at the same time.")] = 4,
    out: Annotated[Path | None, typer.Option(help="New .jsonl file for the episodes with their new rewards.")] = None,
    as_json: Json = False,
) -> int:
    """Score a run again, with another reward function or by its environment as it is today; nothing is generated.

    Give --reward or --again. Exits with 1 when the reward function failed on every answer, or --again judged none.
    """
    if bool(reward) == again:
        raise UserError(
            "name another reward function by --reward, or give --again for the environment's own: one of them"
        )
    if again:
        return score_again(run, option, at_once, out, as_json=as_json)
    if option:
        raise UserError("--option is for --again: a reward function has no options of an environment")
    from forge_env.records.run_files import episode_files
    from forge_env.tool_env.rubric import load_reward

    files = episode_files(run)
    with stdout_to_stderr(as_json):
        part = load_reward(reward)
        with new_file(out) as file:
            phases = [run_async(_score(name, path, part, file)) for name, path in files.items()]
    if as_json:
        emit({"run": str(run), "reward": reward, "phases": phases})
    else:
        columns = [name for name in phases[0] if name not in ("ci95", "first_error", "failures")]
        show_table([name.replace("_", " ") for name in columns], [[cell(p[name]) for name in columns] for p in phases])
    for p in (p for p in phases if p["failed"]):
        note(f"the reward failed on {p['failed']} of {p['answers']} answers, which are in no figure")
        for failure in p["failures"][:MAX_REASONS]:
            note(f"{failure['answers']} of them, {failure['first']} first: {failure['error']}")
        if len(p["failures"]) > MAX_REASONS:
            note(f"and for {len(p['failures']) - MAX_REASONS} other reasons, which --json lists")
    answers, failures = (sum(p[name] for p in phases) for name in ("answers", "failed"))
    return 1 if failures and failures == answers else 0


async def _score(phase: str, path: Path, part: Any, file: IO[str] | None) -> dict[str, Any]:
    from contrib.records.rescore import has_answer, rescore
    from forge_env.core.episode import read_jsonl
    from forge_env.evaluation.evaluate import Evaluation

    answers = []
    async for judgement in rescore(read_jsonl(path), part):
        if has_answer(judgement.before):
            answers.append(judgement)
        if file is not None:
            file.write(judgement.after.to_json() + "\n")
    rewards = [answer for answer in answers if not answer.error]
    after = Evaluation(episodes=tuple(answer.after for answer in rewards))
    failures = [answer for answer in answers if answer.error]
    errors = Counter(answer.error for answer in failures)
    first = {answer.error: answer.before.id for answer in reversed(failures)}
    return {
        "phase": phase,
        "answers": len(answers),
        **before_and_now([(answer.before, answer.after) for answer in rewards]),
        "ci95": after.interval if rewards else None,
        "changed": sum(not are_same((answer.before.reward or 0.0, answer.after.reward or 0.0)) for answer in rewards),
        "failed": len(failures),
        "first_error": failures[0].error if failures else None,
        "failures": [{"error": e, "answers": count, "first": first[e]} for e, count in errors.most_common()],
    }
