"""What the index keeps of a line: enough to list, sort and filter episodes without reading them again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import from_json

from forge_env.core.episode import Episode
from forge_env.core.errors import ForgeError
from forge_env.core.types import Outcome, Task
from forge_env.evaluation.evaluate import is_success

COLUMNS = (
    "offset", "length", "id", "group_id", "task", "env", "seed", "outcome", "reward", "success", "turns", "sampled",
    "seconds", "started", "version_low", "version_high", "tools", "tool_errors", "fault", "error", "question",
)  # fmt: skip
"""Of an episode. `success` is 0 or 1, `tools` is ",name,name,", `fault` the class of a fault of ours, "timeout", or
empty."""
SHOWN = 160
_NO_TASK = Task(prompt=(), id="none")
_LARGE = 1 << 62

Row = tuple[Any, ...]


def parse(line: bytes) -> Any:
    """Read a line of JSON; what a model writes need not be text that UTF-8 can carry.

    Raises:
        ValueError: when it is none.
    """
    try:
        return from_json(line, cache_strings="keys")
    except ValueError:
        pass  # pydantic_core refuses lone surrogates, which Python's own reader takes
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def episode_of(data: Any) -> dict[str, Any]:
    """The episode of a parsed line, of a file of episodes or of faults.

    Raises:
        ValueError: when it holds none.
    """
    if isinstance(data, dict) and "class" in data and isinstance(data.get("episode"), dict):
        data = data["episode"]
    if not isinstance(data, dict) or not isinstance(data.get("turns"), list) or not isinstance(data.get("task"), dict):
        raise ValueError("it holds no episode")
    return data


def episode_row(line: bytes, offset: int) -> Row:
    """The row of an episode's line, in the order of `COLUMNS`.

    Raises:
        ValueError: naming what is wrong with the line.
    """
    try:
        return _row(parse(line), offset, len(line))
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it is no episode ({type(error).__name__}: {error})") from None


def trained_row(line: bytes, offset: int) -> Row:
    """Id, step and place of a line of trained.jsonl.

    Raises:
        ValueError: when it is none.
    """
    data = parse(line)
    if not isinstance(data, dict) or not isinstance(data.get("episode"), str) or not isinstance(data.get("step"), int):
        raise ValueError("it names no step and episode")
    return plain(data["episode"]), _whole(data["step"]), offset, len(line)


def plain(text: Any) -> str:
    """A text that SQLite and UTF-8 can carry: lone surrogates become what they look like in JSON."""
    text = text if isinstance(text, str) else json.dumps(text)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _row(data: Any, offset: int, length: int) -> Row:
    episode = episode_of(data)
    turns, info = episode["turns"], episode.get("info") or {}
    uses = [use for turn in turns for use in turn.get("tool_uses") or ()]
    versions = [span[0] for turn in turns for span in turn.get("versions") or ()]
    error, outcome = plain(episode.get("error") or ""), plain(episode["outcome"])
    reward = _number(episode.get("reward"))
    return (
        offset,
        length,
        plain(episode.get("id") or ""),
        plain(episode.get("group_id") or episode["task"].get("id") or ""),
        plain(episode["task"].get("id") or ""),
        plain(episode.get("env") or ""),
        plain(str(episode.get("seed", ""))),
        outcome,
        reward,
        int(_succeeded(outcome, reward, episode.get("success"))),
        len(turns),
        sum(len(turn["token_ids"]) for turn in turns if turn.get("kind") == "sampled"),
        _number(info.get("seconds")) or math.fsum(t.get("policy_seconds", 0) + t.get("env_seconds", 0) for t in turns),
        _number(info.get("started")),
        _whole(min(versions)) if versions else None,
        _whole(max(versions)) if versions else None,
        _joined(use["name"] for use in uses),
        sum(bool(use.get("error")) for use in uses),
        _fault(data, outcome, error),
        error[:SHOWN],
        plain(_question(episode["task"]))[:SHOWN],
    )


def _succeeded(outcome: str, reward: float | None, success: Any) -> bool:
    """What `is_success` says: how an episode ended is all that it needs of it."""
    try:
        return is_success(Episode(task=_NO_TASK, outcome=Outcome(outcome), reward=reward, success=success))
    except (ForgeError, ValueError):
        return False  # an outcome that no version knows, or one whose reward cannot be


def _fault(data: Mapping[str, Any], outcome: str, error: str) -> str:
    if outcome not in ("timeout", "env_fault", "infra_fault"):
        return ""
    if "episode" in data:
        return plain(data["class"])
    named = {"timeout": "timeout", "env_fault": "EnvError"}
    return named.get(outcome) or error.partition(":")[0] or "InfraError"


def _question(task: Mapping[str, Any]) -> str:
    asked = [m for m in task.get("prompt") or () if m.get("role") == "user"] or list(task.get("prompt") or ())
    content = asked[-1].get("content") if asked else ""
    return " ".join((content if isinstance(content, str) else json.dumps(content))[: 4 * SHOWN].split())


def _joined(names: Iterable[Any]) -> str:
    found = sorted({plain(name).replace(",", ";") for name in names})
    return f",{','.join(found)}," if found else ""


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is no number")
    return float(value) if math.isfinite(value) else None


def _whole(value: Any) -> int:
    if not isinstance(value, int) or abs(value) > _LARGE:
        raise ValueError(f"{value!r:.40} is no number of a step or version")
    return value
