"""One episode, whole, as the page shows it: read from its line only when somebody looks at it."""

from __future__ import annotations

import math
import shlex
import sqlite3
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge_env.core.errors import UserError
from forge_env.viewer import query
from forge_env.viewer.folder import Run
from forge_env.viewer.row import episode_of, parse, plain
from forge_env.viewer.tokens import token_texts


def read_record(run: Run, db: sqlite3.Connection, key: str, model: Path | None) -> dict[str, Any]:
    """Return an episode with its siblings, advantages and the text of its tokens.

    Args:
        run: whose it is.
        db: its index.
        key: "PHASE/OFFSET", as the lists give it.
        model: folder with the tokenizer, where there is one.

    Raises:
        UserError: when there is no such episode, or its file is gone or has changed.
    """
    row = row_of(db, key)
    episode = _read_line(row)
    return {
        **query.brief(row),
        "run": run.name,
        "file": f"{Path(row['path']).name}, {row['length']:,} bytes from byte {row['offset']:,}",
        "episode": episode,
        "texts": _texts(model, episode),
        "advantages": _advantages(run, db, row, episode),
        "siblings": query.siblings(db, row),
        "commands": _commands(run, row),
    }


def row_of(db: sqlite3.Connection, key: str) -> sqlite3.Row:
    """The row of an episode in the index.

    Raises:
        UserError: when it is not there.
    """
    phase, _, place = key.rpartition("/")
    row = query.find(db, phase, int(place)) if place.isdecimal() and len(place) < 16 else None
    if row is None:
        raise UserError("this episode is not there: its file was cut back, deleted, or is still being read")
    return row


def group_advantage(reward: float | None, rewards: Sequence[float]) -> float | None:
    """(reward - mean) / standard deviation within the group; 0 where all are the same, None without a reward."""
    if reward is None or not rewards:
        return None
    deviation = statistics.pstdev(rewards)
    return (reward - statistics.fmean(rewards)) / deviation if deviation > 1e-9 else 0.0


def _read_line(row: sqlite3.Row) -> dict[str, Any]:
    try:
        with open(row["path"], "rb") as file:
            file.seek(row["offset"])
            episode = episode_of(parse(file.read(row["length"])))
    except OSError as error:
        raise UserError(f"{Path(row['path']).name} cannot be read any more: {error.strerror}") from None
    except ValueError:
        raise UserError(f"{Path(row['path']).name} has changed: wait until it is indexed again") from None
    if plain(episode.get("id") or "") != row["id"]:
        raise UserError(f"{Path(row['path']).name} has changed: wait until it is indexed again")
    return episode


def _texts(model: Path | None, episode: dict[str, Any]) -> list[dict[str, list[str] | None]]:
    return [
        {part: token_texts(model, turn.get(part) or ()) for part in ("prompt_ids", "token_ids")}
        for turn in episode["turns"]
    ]


def _advantages(run: Run, db: sqlite3.Connection, row: sqlite3.Row, episode: dict[str, Any]) -> dict[str, Any] | None:
    """What training used, turn by turn, where it was written down; else what the group's rewards say."""
    trained = db.execute("SELECT * FROM trained WHERE id = ?", (row["id"],)).fetchone()
    if trained is not None and row["phase"] == "train":
        values = _trained_advantages(run, trained, len(episode["turns"]))
        if values is not None:
            return {"source": "training", "step": trained["step"], "turns": values}
    rewards = [each["reward"] for each in query.siblings(db, row) if each["reward"] is not None]
    value = group_advantage(row["reward"], rewards) if len(rewards) > 1 else None
    return None if value is None else {"source": "group", "turns": [value] * len(episode["turns"])}


def _trained_advantages(run: Run, trained: sqlite3.Row, turns: int) -> list[float] | None:
    try:
        with (run.path / "trained.jsonl").open("rb") as file:
            file.seek(trained["offset"])
            data = parse(file.read(trained["length"]))
        values = [float(value) for value in data["advantages"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return values if len(values) == turns and all(map(math.isfinite, values)) else None


def _commands(run: Run, row: sqlite3.Row) -> dict[str, str]:
    """What can be typed to get at this episode again: its line, and the evaluation that made it."""
    path = shlex.quote(row["path"])
    commands = {"its line": f"tail -c +{row['offset'] + 1} {path} | head -c {row['length']}"}
    plan = run.read_json("plan.json")
    if {"env", "agent", "tasks", "n", "seed", "split"} <= plan.keys():
        words = ["forge-env", "eval"]
        for name in ("env", "agent", "tasks", "seed", "split"):
            words += [f"--{name}", str(plan[name])]
        options = plan.get("options")
        for name, value in options.items() if isinstance(options, dict) else ():
            words += ["--option", f"{name}={value}"]
        commands["the same evaluation again"] = shlex.join([*words, "-n", str(plan["n"]), "--out", "outputs/again"])
    return commands
