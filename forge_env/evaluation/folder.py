"""The folder of an offline evaluation. A run can be killed at any point and resumed.

    secrets.json     secrets among the options of the environment, if there are some, for their owner only
    plan.json        the settings, and digests of the files that they name; written before the first episode
    episodes.jsonl   one Episode per line, in the order of their ends: those with a reward, and TIMEOUTs
    faults.jsonl     the episodes that ended by a fault: {"class": ..., "error": ..., "episode": {...}}
    eval.json        settings and figures, written when all attempts have been made

A lock on the folder itself, which ends with the process, admits one process at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from forge_env.core.episode import Episode, read_jsonl
from forge_env.core.errors import InfraError, UserError
from forge_env.core.types import Outcome
from forge_env.evaluation.digests import changed_parts
from forge_env.records.run_files import EPISODES, FAULTS, PLAN, read_object
from forge_env.utils.atomic import replace_file, take_lock
from forge_env.utils.folders import make_folders, remove_empty
from forge_env.utils.secret_values import FILE as SECRETS
from forge_env.utils.secret_values import keep, masked

RESULT = "eval.json"


class EvalFolder:
    """A context manager that opens the folder for a plan.

    A folder with faults only holds no result: another plan starts it again.

    Args:
        path: of the folder, which is created if it is missing.
        extends: the plan with fewer tasks that the folder may hold, too; its results are kept.
    """

    def __init__(self, path: Path, plan: Mapping[str, Any], extends: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.plan = _as_read_back(plan)
        self._settings = plan
        self._extends = None if extends is None else _as_read_back(extends)
        self._is_extended = False
        self.dropped_faults = False
        """Whether the folder held only faults of another plan, which have been removed."""
        self._lock = -1
        self._files: dict[str, int] = {}
        self._new_folders: list[Path] = []

    def __enter__(self) -> Self:
        self._new_folders, self._lock = open_locked(self.path)
        try:
            self._check_plan()
            for name in (EPISODES, FAULTS):
                _drop_partial_line(self.path / name)
        except BaseException:
            self.close()
            remove_empty(self._new_folders)
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close the folder; one without an episode, of an evaluation that is refused or stopped, is removed."""
        if kind is not None and not any((self.path / name).exists() for name in (EPISODES, FAULTS, RESULT)):
            for name in (PLAN, SECRETS):
                (self.path / name).unlink(missing_ok=True)
            remove_empty(self._new_folders)
        self.close()

    def close(self) -> None:
        """Close the files and release the lock. May be called twice."""
        for descriptor in (*self._files.values(), self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._files, self._lock = {}, -1

    def begin(self) -> None:
        """Write the plan, if the folder has none yet or one with fewer tasks. Call it before the first episode."""
        if self._is_extended or not (self.path / PLAN).exists():
            self._write(PLAN, json.dumps(self.plan, indent=2))
            (self.path / RESULT).unlink(missing_ok=True)  # figures of fewer tasks
        keep(self.path, {"options": self._settings.get("options")})

    def add(self, episode: Episode) -> None:
        """Append an episode. Once written, it survives the process."""
        if episode.outcome.is_attempt:
            self._append(EPISODES, episode.to_json())
            return
        record = {"class": fault_class(episode), "error": episode.error, "episode": json.loads(episode.to_json())}
        self._append(FAULTS, json.dumps(record))

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes that count, in the order of their ends."""
        if (self.path / EPISODES).exists():
            yield from read_jsonl(self.path / EPISODES)

    def faults(self) -> Iterator[Episode]:
        """Yield the episodes that ended by a fault, including those that were run again later."""
        if (self.path / FAULTS).exists():
            yield from read_faults(self.path / FAULTS)

    def finish(self, result: Mapping[str, Any]) -> None:
        self._write(RESULT, json.dumps(result, indent=2, allow_nan=False, default=str))

    def _check_plan(self) -> None:
        _check_files(self.path)
        file = self.path / PLAN
        if not file.exists():
            if any(not name.endswith(".new") for name in os.listdir(self.path)):
                raise UserError(f"{self.path} holds other files and no {PLAN}: choose another --out")
            return
        present = read_object(file)
        difference = _difference(present, self.plan)
        if not _has_results(self.path):
            self.dropped_faults = bool(difference) and (self.path / FAULTS).exists()
            for name in (PLAN, RESULT, *([FAULTS] if difference else [])):
                (self.path / name).unlink(missing_ok=True)
            return
        if self._extends is not None and present.get("tasks") == self._extends["tasks"]:
            difference = _difference(present, self._extends)  # the number of tasks may grow
            self._is_extended = not difference
        if difference:
            raise UserError(f"{self.path} {difference}: choose another --out, or delete that folder to start again")

    def _write(self, name: str, text: str) -> None:
        try:
            replace_file(self.path / name, text + "\n")
        except OSError as error:
            raise _unwritable(self.path / name, error) from error

    def _append(self, name: str, line: str) -> None:
        if name not in self._files:
            self._files[name] = os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        file, data = self._files[name], line.encode("ascii") + b"\n"
        end = os.fstat(file).st_size
        try:
            while data:
                data = data[os.write(file, data) :]
        except OSError as error:
            os.ftruncate(file, end)  # another episode may be appended before the error ends the run
            raise _unwritable(self.path / name, error) from error


def open_locked(path: Path) -> tuple[list[Path], int]:
    """Open a folder for one process, until it closes the descriptor or ends.

    Returns the folders that were made for it, the innermost first, and the descriptor.
    """
    try:
        new_folders = make_folders(path)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(f"the folder {path} cannot be opened: {error.strerror}") from None
    if not take_lock(lock):
        os.close(lock)
        raise UserError(f"another process evaluates into {path}: wait for it, or choose another --out")
    return new_folders, lock


def extended_from(path: Path, tasks: int) -> list[int]:
    """Return the numbers of tasks that earlier commands had, each with fewer than the next, if a folder has results.

    The last one is in the folder's plan, if it is below `tasks`.
    """
    _check_files(path)
    if not (path / PLAN).exists() or not _has_results(path):
        return []
    present = read_object(path / PLAN)
    earlier, count = present.get("extended_from"), present.get("tasks")
    counts = [*(earlier if isinstance(earlier, list) else []), *([count] if isinstance(count, int) else [])]
    return [count for count in counts if count < tasks]


def _check_files(path: Path) -> None:
    for file in (path / name for name in (PLAN, EPISODES, FAULTS, RESULT)):
        if file.is_dir():
            raise UserError(f"{file} is a folder, and an evaluation has a file of this name: choose another --out")


def _has_results(path: Path) -> bool:
    if not (path / EPISODES).exists():
        return False
    with (path / EPISODES).open("rb") as lines:
        return lines.readline().endswith(b"\n")  # a partial line is not an episode


def _as_read_back(plan: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: value if name == "depends_on" else masked(value, (name,)) for name, value in plan.items()}
    return dict(json.loads(json.dumps(settings, default=str)))


def _difference(present: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """Return how the plan of a folder differs from another plan, as part of a sentence; "" if it does not."""
    names = (plan.keys() | present.keys()) - {"depends_on", "extended_from", "registered", "task_digest"}
    differing = sorted(name for name in names if plan.get(name) != present.get(name))
    if differing:
        settings = ", ".join(f"{name} {present.get(name)!r}" for name in differing)
        return f"holds results of other settings ({settings})"
    parts = changed_parts(present["depends_on"], plan["depends_on"])
    if present["task_digest"] != plan["task_digest"] and not any(part.startswith("the tasks") for part in parts):
        parts.append("the tasks")
    return f"holds results from before a change of {' and of '.join(parts)}" if parts else ""


def fault_class(episode: Episode) -> str:
    """Return the class of the exception that caused a fault: "EnvError", "PolicyError", "SandboxError", ..."""
    return "EnvError" if episode.outcome is Outcome.ENV_FAULT else episode.error.partition(":")[0]


def read_faults(path: Path) -> Iterator[Episode]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield Episode.from_json(json.dumps(json.loads(line)["episode"]))
            except (UserError, ValueError, KeyError, TypeError) as error:
                raise UserError(f"{path}:{number}: {error}") from None


def _unwritable(path: Path, error: OSError) -> InfraError:
    return InfraError(f"{path} cannot be written: {error.strerror}; the same command resumes where this one stopped")


def _drop_partial_line(path: Path) -> None:
    """Remove the partial line that a killed process may have left at the end."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))
