"""What the figures of an evaluation are to be read with: sentences, which a command prints and Python warns of."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from forge_env.core.faults import broken_note


def warn_each_time(text: str) -> None:
    """Warn, also of what `warnings.warn` has said before: it says the same once in a process."""
    warnings.warn_explicit(text, UserWarning, "forge_env", 1)


def notes(result: Mapping[str, Any], out: Path | None, task_count: int = 0) -> Iterator[str]:
    """Yield the sentences on a result.

    Args:
        result: the content of eval.json, with what `run_evaluation` adds.
        out: the folder, which the same call resumes; None is a temporary one.
        asked: the number of tasks that were asked for; 0 is any.
    """
    if result["tasks"] < task_count:
        yield f"{task_count} tasks were requested, and {result['env']} has {result['tasks']} different ones"
    if counts := result.get("extended_from"):
        before = " and ".join(map(str, counts))
        yield f"{out} was extended from {before} to {result['tasks']} tasks; the first ones are the same"
    if "rows" in result:
        yield result["rows"]
    if result.get("dropped_faults"):
        yield f"{out} held only faults from before a change; they have been removed"
    yield from result["warnings"]
    for limit, count in result["ended_by"].items():
        were = "was" if count == 1 else "were"
        yield f"{count} of {result['episodes']} episodes {were} ended by {_ended_by(result, limit)}"
    if "unscored" in result:
        yield f"nothing was scored: {result['unscored']}"
    if not result["episodes"] and result["first_errors"]:
        count, first = sum(result["faults"].values()), next(iter(result["first_errors"].values()))
        yield f"there is no result: all {count} episodes ended by a fault, the first one by {first}"
    if broken_tasks := result.get("broken_tasks"):
        yield broken_note(broken_tasks)
    if refusals := result["refused_requests"]:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in refusals.items())
        yield f"{sum(refusals.values())} requests of the programs were refused: {reasons}; the episodes' info says more"
    if ignored_fields := result["ignored_fields"]:
        fields = ", ".join(f"{name} ({count})" for name, count in ignored_fields.items())
        yield f"requests of the programs were answered without these fields, with the number of requests: {fields}"
    for kind, rows in result["row_began"].items():
        if kind in ("template", "environment"):  # no program made them
            continue
        count = "1 row" if rows["count"] == 1 else f"{rows['count']} rows"
        yield f"{count} began for the reason {kind}, for example in {rows['example']}"
    if faults := sum(result["faults"].values()):
        where = f", see {out}/faults.jsonl; the same command tries them again" if out else ""
        yield f"faults that left no result: {faults}{where}"


def _ended_by(result: Mapping[str, Any], limit: str) -> str:
    """Name a limit, its value, and how to change it."""
    limits = result["limits"]
    if limit in limits:
        return f"{limit} ({limits[limit]:g}): --{limit.replace('_', '-')} sets it"
    if limit == "own_max_turns":
        return f"the environment's own number of turns, which is below max_turns ({limits['max_turns']:g})"
    tokens = f" of {result['context_tokens']:,} tokens" if "context_tokens" in result else ""
    if result["agent"].startswith("openai:"):
        remedy = f"start its server with a larger one; --max-tokens ({limits['max_tokens']:g}) does not raise it"
        return f"the endpoint's own context{tokens}: {remedy}"
    return f"the agent's own context{tokens}, which is below max_tokens ({limits['max_tokens']:g}): no option raises it"
