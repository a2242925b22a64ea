"""Finds one episode of a run by its id, the beginning of its id, or its line number.

3f2a90c1d2e4b5a6/0    the id
3f2a                  its beginning, if no other id begins with it
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

from contrib.records.run_settings import FAULTED, all_files, episode_line
from forge_env.core.episode import Episode
from forge_env.core.errors import UserError, nearest

MAX_LISTED = 4


class FoundEpisode(NamedTuple):
    episode: Episode
    phase: str
    path: Path
    line: int
    """Line number, from 1 on."""


class _IndexedLine(NamedTuple):
    phase: str
    path: Path
    number: int
    id: str
    """Of its episode; "" if the line is not an episode."""


def find_episode(run: Path, name: str) -> FoundEpisode:
    files = all_files(run)
    phase, colon, rest = name.partition(":")
    if colon and phase in files:
        files, name = {phase: files[phase]}, rest
    if name.isdigit():
        return _by_line_number(run, files, int(name))
    lines = [line for phase, path in files.items() for line in _index(phase, path)]
    matching = [line for line in lines if line.id == name] or [line for line in lines if line.id.startswith(name)]
    if not matching or not name:
        raise UserError(_not_found(run, files, name, sorted({line.id for line in lines if line.id})))
    ids = sorted({line.id for line in matching})
    if len(ids) > 1:
        raise UserError(f"{len(ids)} episodes of {run} begin with {name!r}: {_list_of(ids)}; write more of the id")
    if len(matching) > 1:  # prefer a later attempt without a fault, else take the last fault
        matching = [line for line in matching if line.phase != FAULTED] or matching[-1:]
    phases = sorted({line.phase for line in matching})
    if len(phases) > 1:
        raise UserError(f"the episode {ids[0]} is in {', '.join(phases)}: write {phases[0]}:{ids[0]} or another phase")
    return _read(matching[-1])


def _by_line_number(run: Path, files: dict[str, Path], number: int) -> FoundEpisode:
    if len(files) > 1 and "" not in files:
        raise UserError(f"{run} has the phases {', '.join(files)}: write PHASE:{number}, as in {next(iter(files))}:1")
    phase, path = ("", files[""]) if "" in files else next(iter(files.items()))
    last = 0
    for line in _index(phase, path):
        last = line.number
        if last == number:
            return _read(line)
    raise UserError(f"{path} has no line {number}: it has {last} lines, and the first one is 1")


def _index(phase: str, path: Path) -> Iterator[_IndexedLine]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, 1):
            try:
                episode_id = str(json.loads(episode_line(text))["id"])
            except (ValueError, KeyError, TypeError):
                episode_id = ""
            yield _IndexedLine(phase, path, number, episode_id)


def _read(line: _IndexedLine) -> FoundEpisode:
    with line.path.open(encoding="utf-8", errors="replace") as file:
        text = next(islice(file, line.number - 1, None))
    try:
        episode = Episode.from_json(episode_line(text))
    except UserError as error:
        raise UserError(f"{line.path}:{line.number}: {error}") from None
    return FoundEpisode(episode, line.phase, line.path, line.number)


def _not_found(run: Path, files: dict[str, Path], name: str, ids: Sequence[str]) -> str:
    if not ids:
        return f"{run} holds no episode that can be read; forge-env audit says what is wrong"
    phase, colon, _ = name.partition(":")
    if colon and "" not in files and phase.isidentifier():
        return f"{run} has no phase {phase!r}. {nearest(phase, files)}"
    close = difflib.get_close_matches(name, ids, n=1, cutoff=0.4)
    hint = f". Did you mean {close[0]}?" if close else "."
    return f"{run} has no episode {name!r}{hint} It has {len(ids)}: {_list_of(ids)}; a line number will do as well"


def _list_of(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - MAX_LISTED} more" if len(ids) > MAX_LISTED else ""
    return ", ".join(ids[:MAX_LISTED]) + more
