"""Finds one episode of a run by what a person writes: its id, the beginning of it, or the line that it is on.

3f2a90c1d2e4b5a6/0    the id
3f2a                  its beginning, where no other one begins so
12                    line 12 of the file
after:evaluation/3/0  PHASE: before any of them, for a training run
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from forge_env.core.episode import Episode
from forge_env.core.errors import UserError, nearest
from forge_env.records.run_files import FAULTED, all_files, episode_line

SHOWN = 4


class Found(NamedTuple):
    """An episode, and where it is."""

    episode: Episode
    phase: str
    path: Path
    line: int
    """From 1 on."""


class _Line(NamedTuple):
    phase: str
    path: Path
    number: int
    id: str
    """"" where the line is no episode; what is wrong with it is said when it is read."""


def find_episode(run: Path, name: str) -> Found:
    """Find an episode of a run.

    Raises:
        UserError: when there is none, or several; the sentence offers what there is.
    """
    files = all_files(run)
    head, colon, rest = name.partition(":")
    if colon and head in files:
        files, name = {head: files[head]}, rest
    if name.isdigit():
        return _by_line(run, files, int(name))
    lines = [line for phase, path in files.items() for line in _lines(phase, path)]
    found = [line for line in lines if line.id == name] or [line for line in lines if line.id.startswith(name)]
    if not found or not name:
        raise UserError(_unknown(run, files, name, sorted({line.id for line in lines if line.id})))
    ids = sorted({line.id for line in found})
    if len(ids) > 1:
        raise UserError(f"{len(ids)} episodes of {run} begin with {name!r}: {_some(ids)}; write more of the id")
    if len(found) > 1:  # one that a later attempt made good, or the last of those that faulted
        found = [line for line in found if line.phase != FAULTED] or found[-1:]
    phases = sorted({line.phase for line in found})
    if len(phases) > 1:
        raise UserError(f"the episode {ids[0]} is in {', '.join(phases)}: write {phases[0]}:{ids[0]} or another phase")
    return _read(found[-1])


def _by_line(run: Path, files: dict[str, Path], number: int) -> Found:
    if len(files) > 1 and "" not in files:
        raise UserError(f"{run} has the phases {', '.join(files)}: write PHASE:{number}, as in {next(iter(files))}:1")
    phase, path = ("", files[""]) if "" in files else next(iter(files.items()))
    last = 0
    for line in _lines(phase, path):
        last = line.number
        if last == number:
            return _read(line)
    raise UserError(f"{path} has no line {number}: it has {last} lines, and the first one is 1")


def _lines(phase: str, path: Path) -> Iterator[_Line]:
    """Every line with the id of its episode."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, 1):
            try:
                found = str(json.loads(episode_line(text))["id"])
            except (ValueError, KeyError, TypeError):
                found = ""
            yield _Line(phase, path, number, found)


def _read(line: _Line) -> Found:
    with line.path.open(encoding="utf-8", errors="replace") as file:
        text = next(islice(file, line.number - 1, None))
    try:
        episode = Episode.from_json(episode_line(text))
    except UserError as error:
        raise UserError(f"{line.path}:{line.number}: {error}") from None
    return Found(episode, line.phase, line.path, line.number)


def _unknown(run: Path, files: dict[str, Path], name: str, ids: Sequence[str]) -> str:
    if not ids:
        return f"{run} holds no episode that can be read; forge-env audit says what is wrong"
    head, colon, _ = name.partition(":")
    if colon and "" not in files and head.isidentifier():
        return f"{run} has no phase {head!r}. {nearest(head, files)}"
    close = difflib.get_close_matches(name, ids, n=1, cutoff=0.4)
    hint = f". Did you mean {close[0]}?" if close else "."
    return f"{run} has no episode {name!r}{hint} It has {len(ids)}: {_some(ids)}; a line number will do as well"


def _some(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return ", ".join(ids[:SHOWN]) + more
