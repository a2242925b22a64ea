"""`forge-env doctor`: what this machine can run, what is missing, and what to install."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contrib.check.cli.sandbox import measure
from forge_env.cli.output import Json, emit, show_table
from forge_env.registry.contrib import rows
from forge_env.utils.run_async import run_async


def doctor(as_json: Json = False) -> int:
    """Say which sandboxes and images this machine can run, what is missing, and what to install.

    Each backend and the cache are tried. Exits with 1 when no sandbox, or no workspace, can run here.
    """
    report = run_async(measure())
    parts = [*_backends(report), *run_async(_of_contrib())]
    runs = all(any("unavailable" not in one for one in backends.values()) for backends in report.values())
    if as_json:
        emit({"ok": runs, "parts": parts})
    else:
        rows = [[part["part"], part["ready"], "\n".join(part["notes"])] for part in parts]
        show_table(("part", "ready", "what is missing, and what to do"), rows, whole=(0, 1))
    return 0 if runs else 1


def _part(name: str, ready: str, *notes: str) -> dict[str, Any]:
    return {"part": name, "ready": ready, "notes": [note for note in notes if note]}


def _backends(report: dict[str, dict[str, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    for kind, backends in report.items():
        for backend, facts in backends.items():
            notes = [facts["unavailable"]] if "unavailable" in facts else facts["missing"]
            ready = "no" if "unavailable" in facts else "in part" if notes else "yes"
            yield _part(f"{kind}, {backend}", ready, *notes)


async def _of_contrib() -> list[dict[str, Any]]:
    return [_part(*part) for row in rows("doctor").values() for part in await row.load()()]
