"""The row of the index for one line of a file: enough to list, sort and filter episodes without reading the file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contrib.viewer.lenient_json import encodable, parse_json
from contrib.viewer.stored_runs import FileKind
from forge_env.core.episode import Episode
from forge_env.core.errors import ForgeError
from forge_env.core.types import NOT_SAMPLED, Outcome, Task
from forge_env.evaluation.evaluate import is_success

COLUMNS = (
    "offset", "length", "id", "group_id", "task", "task_kind", "env", "seed", "outcome", "reward", "success", "turns",
    "sampled", "seconds", "started", "version_low", "version_high", "tools", "tool_errors", "fault", "error",
    "question", "digest",
)  # fmt: skip
"""Columns of an episode. `offset` and `length` are the bytes of its line; `success` is 0 or 1; `tools` is
",name,name,"; `fault` is the class of an environment or infrastructure fault, "timeout", or ""; `digest` is the task's,
and equal for equal tasks."""
MAX_TEXT = 160
"""Characters of `error` and `question`."""
_NO_TASK = Task(prompt=(), id="none")
_MAX_INTEGER = 1 << 62

Row = tuple[Any, ...]


def episode_from(data: Any) -> dict[str, Any]:
    if isinstance(data, dict) and "class" in data and isinstance(data.get("episode"), dict):
        data = data["episode"]
    if not isinstance(data, dict) or not isinstance(data.get("turns"), list) or not isinstance(data.get("task"), dict):
        raise ValueError("it holds no episode")
    return data


def episode_row(line: bytes, offset: int) -> Row:
    try:
        return _row(parse_json(line), offset, len(line))
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it is no episode ({type(error).__name__}: {error})") from None


def trained_row(line: bytes, offset: int) -> Row:
    """Episode id, step, offset and length of a line of trained.jsonl."""
    data = parse_json(line)
    if not isinstance(data, dict) or not isinstance(data.get("episode"), str) or not isinstance(data.get("step"), int):
        raise ValueError("it names no step and episode")
    return encodable(data["episode"]), _integer(data["step"]), offset, len(line)


def _row(data: Any, offset: int, length: int) -> Row:
    episode = episode_from(data)
    turns, info = episode["turns"], episode.get("info") or {}
    work = [turn for turn in turns if not turn.get("auxiliary")]
    tool_uses = [use for turn in turns for use in turn.get("tool_uses") or ()]
    spans = [span for turn in work for span in turn.get("versions") or ()]
    versions = [span[0] for span in spans if span[0] != NOT_SAMPLED]
    insertions = sum(span[1] for span in spans if span[0] == NOT_SAMPLED)
    error, outcome = encodable(episode.get("error") or ""), encodable(episode["outcome"])
    reward = _finite_number(episode.get("reward"))
    turn_seconds = math.fsum(turn.get("policy_seconds", 0) + turn.get("env_seconds", 0) for turn in turns)
    return (
        offset,
        length,
        encodable(episode.get("id") or ""),
        encodable(episode.get("group_id") or episode["task"].get("id") or ""),
        encodable(episode["task"].get("id") or ""),
        encodable(episode["task"].get("kind") or ""),
        encodable(episode.get("env") or ""),
        encodable(str(episode.get("seed", ""))),
        outcome,
        reward,
        int(_is_success(outcome, reward, episode.get("success"))),
        len(work),
        _integer(sum(len(turn["token_ids"]) for turn in work if turn.get("kind") == "sampled") - insertions),
        _finite_number(info.get("seconds")) or turn_seconds,
        _finite_number(info.get("started")),
        _integer(min(versions)) if versions else None,
        _integer(max(versions)) if versions else None,
        _join_names(use["name"] for use in tool_uses),
        sum(bool(use.get("error")) for use in tool_uses),
        _fault_class(data, outcome, error),
        error[:MAX_TEXT],
        encodable(_question(episode["task"]))[:MAX_TEXT],
        hashlib.blake2b(json.dumps(episode["task"], sort_keys=True).encode(), digest_size=8).hexdigest(),
    )


def _is_success(outcome: str, reward: float | None, success: Any) -> bool:
    """The verdict of `is_success`, which needs nothing but how the episode ended."""
    try:
        return is_success(Episode(task=_NO_TASK, outcome=Outcome(outcome), reward=reward, success=success))
    except (ForgeError, ValueError):
        return False  # an unknown outcome, or a reward that the outcome excludes


def _fault_class(data: Mapping[str, Any], outcome: str, error: str) -> str:
    if outcome not in ("timeout", "env_fault", "infra_fault"):
        return ""
    if "episode" in data:  # a line of faults.jsonl
        return encodable(data["class"])
    by_outcome = {"timeout": "timeout", "env_fault": "EnvError"}
    return by_outcome.get(outcome) or error.partition(":")[0] or "InfraError"


def _question(task: Mapping[str, Any]) -> str:
    messages = list(task.get("prompt") or ())
    messages = [message for message in messages if message.get("role") == "user"] or messages
    content = messages[-1].get("content") if messages else ""
    return " ".join((content if isinstance(content, str) else json.dumps(content))[: 4 * MAX_TEXT].split())


def _join_names(names: Iterable[Any]) -> str:
    unique = sorted({encodable(name).replace(",", ";") for name in names})
    return f",{','.join(unique)}," if unique else ""


def _finite_number(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is no number")
    return float(value) if math.isfinite(value) else None


def _integer(value: Any) -> int:
    if not isinstance(value, int) or abs(value) > _MAX_INTEGER:
        raise ValueError(f"{value!r:.40} is no number of a step or version")
    return value


BLOCK_BYTES = 4 << 20
MAX_LINE_BYTES = 256 << 20


@dataclass(slots=True, kw_only=True)
class ScannedBlock:
    end: int
    """Where the next block begins: behind the last whole line."""
    rows: list[Row] = field(default_factory=list)
    bad_lines: list[tuple[int, str]] = field(default_factory=list)
    """Offset of each line that cannot be read, and the reason."""


def scan_file(path: Path, kind: FileKind, start: int, end: int) -> Iterator[ScannedBlock]:
    """Read the lines that begin at or after `start` and before `end`, block by block; `start` begins a line.

    A last line without a line end counts when it is valid JSON, which half of an object never is.
    """
    make_row = trained_row if kind == "trained" else episode_row
    block = ScannedBlock(end=start)
    with path.open("rb") as file:
        file.seek(start)
        while block.end < end and (line := file.readline(MAX_LINE_BYTES)):
            text = line.strip()
            try:
                if text:
                    block.rows.append(make_row(text, block.end + line.index(text)))
            except ValueError as error:
                if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES:
                    break  # it is still being written
                block.bad_lines.append((block.end, encodable(str(error)[:300])))
            block.end += len(line)
            if block.end - start >= BLOCK_BYTES:
                yield block
                start, block = block.end, ScannedBlock(end=block.end)
    if block.end > start:
        yield block
