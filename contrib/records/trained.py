"""Reads trained.jsonl: what each optimizer step of a training run has learned from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from forge_env.core.errors import UserError

TRAINED = "trained.jsonl"


class Trained(NamedTuple):
    step: int
    episode: str
    advantages: tuple[float, ...]
    """One for each turn of the episode."""


def read_trained(run: Path) -> Iterator[Trained]:
    """Yield the lines of a run in order; none if it has no such file. Half of a last line is left out."""
    path = run.expanduser() / TRAINED
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
                yield Trained(int(record["step"]), str(record["episode"]), tuple(record.get("advantages") or ()))
            except (ValueError, KeyError, TypeError) as error:
                if line.endswith(b"\n"):
                    raise UserError(f"{path}:{number}: {type(error).__name__}: {error}") from None
