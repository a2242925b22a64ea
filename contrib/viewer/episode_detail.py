"""One episode with all that its page shows; its line is read only when the page is opened."""

from __future__ import annotations

import math
import shlex
import sqlite3
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from contrib.viewer import query
from contrib.viewer.index_row import episode_from
from contrib.viewer.lenient_json import encodable, parse_json
from contrib.viewer.stored_runs import StoredRun
from forge_env.core.errors import UserError
from forge_env.core.reward_value import are_same


def read_detail(run: StoredRun, db: sqlite3.Connection, key: str, model: Path | None) -> dict[str, Any]:
    """Return the episode of a key, "PHASE/OFFSET", with its siblings, its advantages and the text of its tokens."""
    row = query.find_episode(db, key)
    episode = _read_episode(row)
    return {
        **query.list_entry(row),
        "file": f"{Path(row['path']).name}, {row['length']:,} bytes from byte {row['offset']:,}",
        "episode": episode,
        "texts": [
            {name: token_texts(model, turn.get(name) or ()) for name in ("prompt_ids", "token_ids")}
            for turn in episode["turns"]
        ],
        "rows": rows_of(episode),
        "advantages": _advantages(run, db, row, episode),
        "siblings": query.siblings(db, row),
        "commands": _commands(run, row),
    }


def group_advantage(reward: float | None, rewards: Sequence[float]) -> float | None:
    """(reward - mean) / standard deviation within the group; 0 if all rewards are equal, None without a reward."""
    if reward is None or not rewards:
        return None
    return 0.0 if are_same(rewards) else (reward - statistics.fmean(rewards)) / statistics.pstdev(rewards)


def _read_episode(row: sqlite3.Row) -> dict[str, Any]:
    name = Path(row["path"]).name
    try:
        with open(row["path"], "rb") as file:
            file.seek(row["offset"])
            episode = episode_from(parse_json(file.read(row["length"])))
    except OSError as error:
        raise UserError(f"{name} cannot be read any more: {error.strerror}") from None
    except ValueError:
        episode = {}
    if encodable(episode.get("id") or "") != row["id"] or not episode:
        raise UserError(f"{name} has changed: wait until it is indexed again")
    return episode


def _advantages(run: StoredRun, db: sqlite3.Connection, row: sqlite3.Row, episode: dict[str, Any]) -> Any:
    """The advantage of each turn: what training recorded, or else what the rewards of the group give."""
    training_row = db.execute("SELECT * FROM trained WHERE id = ?", (row["id"],)).fetchone()
    if training_row is not None and row["phase"] == "train":
        values = _trained_advantages(run, training_row, len(episode["turns"]))
        if values is not None:
            return {"source": "training", "step": training_row["step"], "turns": values}
    rewards = [sibling["reward"] for sibling in query.siblings(db, row) if sibling["reward"] is not None]
    value = group_advantage(row["reward"], rewards) if len(rewards) > 1 else None
    return None if value is None else {"source": "group", "turns": [value] * len(episode["turns"])}


def _trained_advantages(run: StoredRun, training_row: sqlite3.Row, turns: int) -> list[float] | None:
    try:
        with (run.path / "trained.jsonl").open("rb") as file:
            file.seek(training_row["offset"])
            data = parse_json(file.read(training_row["length"]))
        values = [float(value) for value in data["advantages"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return values if len(values) == turns and all(map(math.isfinite, values)) else None


def _commands(run: StoredRun, row: sqlite3.Row) -> dict[str, str]:
    """Shell commands: one prints the line of the episode, one runs its evaluation again."""
    path = shlex.quote(row["path"])
    commands = {"its line": f"tail -c +{row['offset'] + 1} {path} | head -c {row['length']}"}
    plan = run.read_json("plan.json")
    if {"env", "agent", "tasks", "n", "seed", "split"} <= plan.keys():
        words = ["forge-env", "eval"]
        for name in ("env", "agent", "tasks", "seed", "split"):
            words += [f"--{name}", str(plan[name])]
        words += ["--adapter", str(plan["adapter"])] if plan.get("adapter") else []
        options = plan.get("options")
        for name, value in options.items() if isinstance(options, dict) else ():
            words += ["--option", f"{name}={value}"]
        commands["the same evaluation again"] = shlex.join([*words, "-n", str(plan["n"]), "--out", "outputs/again"])
    return commands


def rows_of(episode: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of an episode, in its order; empty for an episode of one row.

    Returns:
        Of each row: its turns `first` to `last`, the number of its `parent` row and the turn `branch` there, None for a
        root; and `kind`, `why`, `agent`, `known_by` and `auxiliary` as text.
    """
    turns, lineage = episode["turns"], episode.get("lineage")
    entries = {
        row["turn"]: row
        for row in (lineage if isinstance(lineage, list) else ())
        if isinstance(row, dict) and _is_turn(row.get("turn"), turns)
    }
    starts = sorted(entries)
    rows = []
    for number, first in enumerate(starts):
        row, branch = entries[first], entries[first].get("parent")
        parent = bisect_right(starts, branch) - 1 if _is_turn(branch, turns) else -1
        is_known = parent >= 0 and parent != number
        rows.append(
            {
                "first": first,
                "last": (starts[number + 1] if number + 1 < len(starts) else len(turns)) - 1,
                "parent": parent if is_known else None,
                "branch": branch if is_known else None,
                **{name: str(row.get(name) or "") for name in ("kind", "why", "agent", "known_by")},
                "auxiliary": str(turns[first].get("auxiliary") or ""),
            }
        )
    return rows


def _is_turn(number: Any, turns: list[Any]) -> bool:
    return type(number) is int and 0 <= number < len(turns)


MAX_TOKENS_PER_CHARACTER = 8
"""Tokens that may form one character together; beyond that the character counts as broken."""
_NO_TOKEN = 2**31 - 1


def token_texts(model: Path | None, token_ids: Sequence[Any]) -> list[str] | None:
    """Return the text of each token; None without a tokenizer, or where `tokenizers` is not installed.

    Of several tokens that form one character, the first has the character and the others have "".
    """
    tokenizer = None if model is None else _open_tokenizer(model)
    if tokenizer is None:
        return None
    texts: list[str] = []
    pending: list[int] = []
    for token in token_ids:
        pending.append(token if isinstance(token, int) and 0 <= token <= _NO_TOKEN else _NO_TOKEN)
        text = tokenizer.decode(pending, skip_special_tokens=False)
        if "\ufffd" in text and len(pending) < MAX_TOKENS_PER_CHARACTER:
            continue
        texts += [text, *[""] * (len(pending) - 1)]
        pending.clear()
    if pending:
        texts += [tokenizer.decode(pending, skip_special_tokens=False), *[""] * (len(pending) - 1)]
    return texts


@lru_cache(maxsize=4)
def _open_tokenizer(model: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    try:
        return Tokenizer.from_file(str(model / "tokenizer.json"))
    except Exception:  # tokenizers raises no narrower class
        return None
