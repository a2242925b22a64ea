"""`forge-env score`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from forge_env.cli.output import Json, emit, note, show_table, stdout_to_stderr
from forge_env.cli.running import run as run_async
from forge_env.core.errors import UserError

SHOWN = 5
"""Reasons why a reward failed, the most frequent first."""


def score(
    run: Annotated[Path, typer.Argument(help="Folder of an evaluation or a training run, or a .jsonl file.")],
    reward: Annotated[str, typer.Option(help="module:function or path/to/file.py:function.")],
    out: Annotated[Path | None, typer.Option(help="New .jsonl file for the episodes, with their new rewards.")] = None,
    as_json: Json = False,
) -> int:
    """Score the final answers of a run anew, with another reward function; nothing is generated.

    Ends with 1 when the reward function failed on every answer.
    """
    from forge_env.records.rescore import load_reward
    from forge_env.records.run_files import episode_files

    files = episode_files(run)
    with stdout_to_stderr(as_json):
        part = load_reward(reward)
        with _new_file(out) as file:
            phases = [run_async(_score(name, path, part, file)) for name, path in files.items()]
    if as_json:
        emit({"run": str(run), "reward": reward, "phases": phases})
    else:
        columns = [name for name in phases[0] if name not in ("ci95", "first_error", "failures")]
        show_table([name.replace("_", " ") for name in columns], [[_cell(p[name]) for name in columns] for p in phases])
    for p in (p for p in phases if p["failed"]):
        note(f"the reward failed on {p['failed']} of {p['answers']} answers, which are in no figure")
        for failure in p["failures"][:SHOWN]:
            note(f"{failure['answers']} of them, {failure['first']} first: {failure['error']}")
        if len(p["failures"]) > SHOWN:
            note(f"and for {len(p['failures']) - SHOWN} other reasons, which --json lists")
    answers, failed = (sum(p[name] for p in phases) for name in ("answers", "failed"))
    return 1 if failed and failed == answers else 0


async def _score(phase: str, path: Path, part: Any, file: IO[str] | None) -> dict[str, Any]:
    """Score one file, and write its episodes to another one; the figures are those of the final answers."""
    from forge_env.core.episode import read_jsonl
    from forge_env.evaluation.evaluate import Evaluation
    from forge_env.records.rescore import rescore

    answers = []
    async for each in rescore(read_jsonl(path), part):
        if each.has_answer:
            answers.append(each)
        if file is not None:
            file.write(each.after.to_json() + "\n")
    scored = [each for each in answers if not each.error]
    was = Evaluation(episodes=tuple(each.before for each in scored))
    now = Evaluation(episodes=tuple(each.after for each in scored))
    failed = [each for each in answers if each.error]
    errors = Counter(each.error for each in failed)
    first = {each.error: each.before.id for each in reversed(failed)}
    return {
        "phase": phase,
        "answers": len(answers),
        "reward_before": was.reward.value if scored else None,
        "reward_now": now.reward.value if scored else None,
        "success_before": was.success_rate if scored else None,
        "success_now": now.success_rate if scored else None,
        "ci95": now.interval if scored else None,
        "changed": sum(each.before.reward != each.after.reward for each in scored),
        "failed": len(failed),
        "first_error": failed[0].error if failed else None,
        "failures": [{"error": e, "answers": count, "first": first[e]} for e, count in errors.most_common()],
    }


@contextmanager
def _new_file(path: Path | None) -> Iterator[IO[str] | None]:
    if path is None:
        yield None
        return
    try:
        file = path.expanduser().open("x", encoding="utf-8")
    except FileExistsError:
        raise UserError(f"--out {path} exists already: name a new file") from None
    except OSError as error:
        raise UserError(f"--out {path} cannot be written: {error.strerror}") from None
    with file:
        yield file


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
