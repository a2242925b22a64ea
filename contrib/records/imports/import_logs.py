"""Imports logs of other programs: one file of Episodes, which score, view, report, export and trainers.sft read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from contrib.common.json_text import decoded
from contrib.records.imports.atif import is_trajectory, read_trajectory
from contrib.records.imports.build import BadRecord, Log, NotCarried, build
from contrib.records.imports.openai import read_chat
from contrib.records.imports.training_trace import is_trace, read_trace
from forge_env.core.errors import InfraError, InvariantError, UserError, nearest
from forge_env.utils.atomic import Target

READERS = {"atif": read_trajectory, "openai": read_chat, "training_trace": read_trace}
OF_FOLDERS = {"atif": is_trajectory, "training_trace": is_trace}
"""Format that a folder may hold -> whether an object of its files is a record."""
LINES = (".jsonl", ".ndjson")
VERDICTS = ("reward.json", "reward.txt")
"""Files of Harbor's verifier, beside the folder of the agent's trajectory."""


@dataclass(slots=True, kw_only=True)
class Imported:
    """What an import has written, and what it has not."""

    episodes: int = 0
    defaulted: int = 0
    """Episodes with a reward from the caller."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Number of records by the reason."""
    first: dict[str, str] = field(default_factory=dict)
    """Place of the first record of each reason."""
    not_carried: dict[str, int] = field(default_factory=dict)
    """What an Episode does not hold -> number of records with it."""
    unversioned: int = 0
    """Episodes with tokens that do not say which weights sampled them."""
    cut: list[str] = field(default_factory=list)
    """FILE:LINE of half-written last lines."""
    other_files: int = 0
    """JSON files of a folder that are of another format."""

    def leave_out(self, reason: str, place: str) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + 1
        self.first.setdefault(reason, place)


def import_logs(log: Path, source: str, out: Path, reward: float | None) -> Imported:
    """Write the conversations of a log as Episodes; `out` is there only when all of them are written.

    Args:
        log: a .jsonl or .json file; for atif and training_trace also a folder of them; for atif that may be a job of
            Harbor with its verdicts.
        source: one of `READERS`.
        out: a new .jsonl file.
        reward: of records that hold none.
    """
    if source not in READERS:
        raise UserError(f"--from {source}: {nearest(source, READERS)}")
    if out.suffix not in LINES:
        raise UserError(f"--out {out} must end in .jsonl: an import writes one file of Episodes")
    result = Imported()
    ids: dict[str, int] = {}
    """Times that each id was met: the ids of the episodes must differ."""
    with Target(out) as target:
        try:
            with target.path.open("x", encoding="ascii") as file:
                for path, place, record in _records(log.expanduser(), source, result):
                    if line := _line(path, place, record, source, reward, ids, result):
                        file.write(line + "\n")
            if not result.episodes:
                raise UserError(f"nothing of {log} is left to import: {about_left_out(result) or 'it is empty'}")
            target.commit()
        except OSError as error:
            raise InfraError(f"the import of {log} into {out} failed: {error}; nothing is left of it") from error
    return result


def about_left_out(result: Imported) -> str:
    """What was left out in words, each reason with the first place."""
    parts = [f"{count:,} {reason} (the first: {result.first[reason]})" for reason, count in result.left_out.items()]
    return ", ".join([*parts, *(f"{place} is cut off" for place in result.cut)])


def _line(
    path: Path,
    place: str,
    record: Mapping[str, Any],
    source: str,
    reward: float | None,
    ids: dict[str, int],
    result: Imported,
) -> str:
    """Return the line of a record's Episode; "" if it is left out."""
    try:
        log: Log = READERS[source](record)
        verdict = _verdict(path) if source == "atif" else None
        if verdict is not None and "reward" not in log.about:
            log.about = {**log.about, "reward": verdict}
        episode = build(log, reward, place)
    except NotCarried as error:
        result.leave_out(str(error), place)
        return ""
    except (BadRecord, UserError, InvariantError) as error:
        raise UserError(f"{place}: {error}") from None
    count = ids[episode.id] = ids.get(episode.id, 0) + 1
    if count > 1:
        episode = replace(episode, id=f"{episode.id}#{count}")
    result.episodes += 1
    result.defaulted += log.about.get("reward") is None and episode.reward is not None
    result.unversioned += log.unversioned
    for missing in log.missing:
        result.not_carried[missing] = result.not_carried.get(missing, 0) + 1
    return episode.to_json()


def _records(log: Path, source: str, result: Imported) -> Iterator[tuple[Path, str, Mapping[str, Any]]]:
    """Yield each record with its file and its place, FILE:LINE or FILE."""
    if log.is_dir():
        if source not in OF_FOLDERS:
            raise UserError(f"{log} is a folder: --from {source} reads a .jsonl or .json file")
        for path in sorted(path for path in log.rglob("*") if path.suffix in (*LINES, ".json") and path.is_file()):
            for place, record in _of_file(path, result, is_certain=False):
                if isinstance(record, Mapping) and OF_FOLDERS[source](record):
                    yield path, place, record
                else:
                    result.other_files += 1
        return
    if not log.is_file():
        folder = " or a folder" * (source in OF_FOLDERS)
        raise UserError(f"{log} does not exist: give a .jsonl or .json file{folder}")
    for place, record in _of_file(log, result, is_certain=True):
        if not isinstance(record, Mapping):
            raise UserError(f"{place}: it is a {type(record).__name__}, not an object")
        yield log, place, record


def _of_file(path: Path, result: Imported, *, is_certain: bool) -> Iterator[tuple[str, Any]]:
    if path.suffix in LINES:
        yield from _lines(path, result)
        return
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        if is_certain and path.suffix == ".json" and "Extra data" in str(error):
            yield from _lines(path, result)  # JSON lines, as such files often are
        elif is_certain:
            raise UserError(f"{path}: {error}") from None
        else:
            yield str(path), None
        return
    values = value if isinstance(value, list) else [value]
    yield from ((str(path) if len(values) == 1 else f"{path}[{n}]", item) for n, item in enumerate(values))


def _lines(path: Path, result: Imported) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield f"{path}:{number}", json.loads(line.removeprefix(b"\xef\xbb\xbf"))
            except (ValueError, RecursionError) as error:
                if line.endswith(b"\n") or number == 1:
                    raise UserError(f"{path}:{number}: {error}") from None
                result.cut.append(f"{path}:{number}")


def _verdict(path: Path) -> float | None:
    """The reward that Harbor's verifier has left beside the agent's trajectory; None if there is none."""
    for name in VERDICTS:
        file = path.parent.parent / "verifier" / name
        if path.parent.name != "agent" or not file.is_file():
            continue
        try:
            text = decoded(file.read_bytes())
            value = json.loads(text) if file.suffix == ".json" else float(text)
        except (ValueError, RecursionError):
            raise UserError(f"{file} holds no number and no object of them") from None
        if isinstance(value, Mapping):
            value = value.get("reward", next(iter(value.values())) if len(value) == 1 else None)
        if isinstance(value, (int, float)):  # true is 1 to Harbor
            return float(value)
        raise UserError(f"{file} holds no reward: it is a number, or an object with reward or with one number")
    return None
