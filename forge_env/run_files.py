"""Where the episodes of a run lie: of an evaluation, of a training run with its phases, or one file of JSON lines."""

from __future__ import annotations

from pathlib import Path

from forge_env.errors import UserError


def episode_files(run: Path) -> dict[str, Path]:
    """Return the files of episodes by phase; an evaluation and a single file have one, without a name.

    Raises:
        UserError: when there are none.
    """
    run = run.expanduser()
    if run.is_file():
        return {"": run}
    if (run / "episodes.jsonl").is_file():
        return {"": run / "episodes.jsonl"}
    files = {path.stem: path for path in sorted((run / "episodes").glob("*.jsonl"))}
    if not files:
        raise UserError(
            f"{run} holds no episodes: name a .jsonl file, or the folder of an evaluation or of a training run"
        )
    return files
