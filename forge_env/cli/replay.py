"""`forge-env replay`."""

from __future__ import annotations

from dataclasses import asdict
from dataclasses import replace as with_fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forge_env.cli.options import parse_options
from forge_env.cli.output import Json, emit, note, say, show_table, stdout_to_stderr
from forge_env.cli.running import run as run_async

if TYPE_CHECKING:
    from forge_env.records.find_episode import Found
    from forge_env.records.replay import Difference, Replay
    from forge_env.records.run_files import RunSettings


def replay(
    run: Annotated[Path, typer.Argument(help="Folder of an evaluation or a training run, or a .jsonl file.")],
    episode: Annotated[
        str,
        typer.Argument(help="Its id, the beginning of it, or its line; PHASE:... for a training run."),
    ],
    env: Annotated[str, typer.Option(help="The environment, where it is not the one that the run names.")] = "",
    option: Annotated[list[str], typer.Option(help="Option of the environment in the place of the run's.")] = [],  # noqa: B006 (typer reads it, nobody changes it)
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Take all turns, also after something differs.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Run a recorded episode again with the turns that the model took, and say where it differs.

    Ends with 0 when it is the same, and with 1 when it is not.
    """
    from forge_env.records.find_episode import find_episode
    from forge_env.records.replay import replay as run_again
    from forge_env.records.run_files import RunSettings, run_settings

    found = find_episode(run, episode)
    settings = run_settings(run)
    if settings is None:
        settings = RunSettings(env=found.episode.env)
        note(f"{run} says nothing of its settings: the environment has those of --option, and its own limits")
    if env or option:
        settings = with_fields(settings, env=env or settings.env, options={**settings.options, **parse_options(option)})
    _warn(settings, found)
    _note_changes(run, settings)
    with stdout_to_stderr(as_json):
        result = run_async(run_again(found.episode, settings, keep_going=keep_going))
    emit(_as_json(run, found, settings, result)) if as_json else _show(found, settings, result)
    return 0 if result.same else 1


def _warn(settings: RunSettings, found: Found) -> None:
    from forge_env.rollout.factory import make

    name = settings.env or found.episode.env
    effects = make(name, **settings.options).effects() if name else ""
    if effects:
        note(f"an episode of {name} {effects}: what it does there is done again, and may be answered otherwise")


def _note_changes(run: Path, settings: RunSettings) -> None:
    """Say where the environment is not the one any more that an evaluation has measured."""
    from forge_env.evaluation.digests import changed, environment_digests
    from forge_env.rollout.factory import make

    if settings.environment and settings.env:
        now = environment_digests(make(settings.env, **settings.options))
        for part in changed({"environment": settings.environment}, {"environment": now}):
            note(f"{part} has changed since {run}")


def _show(found: Found, settings: RunSettings, result: Replay) -> None:
    episode = found.episode
    by = f", by {settings.agent}" if settings.agent else ""
    say(f"{episode.id} of {settings.env or episode.env}, seed {episode.seed}{by} ({found.path}, line {found.line})")
    rows = [(str(i), t.observation, t.tools, t.reward) for i, t in enumerate(result.turns)]
    show_table(("turn", "shown to the model", "tool calls", "reward"), [*rows, ("end", result.tail, "", result.reward)])
    for text in result.notes:
        note(text)
    if result.same:
        say(f"the same: {result.replayed.outcome}{_reward(result.replayed.reward)}")
        return
    first, others = result.differences[0], len(result.differences) - 1
    say(f"different, first in {_place(first)}:")
    for line in _lines(first):
        say(f"    {line}")
    if others:
        say(f"and in {others} more: {', '.join(map(_place, result.differences[1:]))}")
    if result.stopped:
        say(f"the replay stopped there: {result.stopped}" + ("" if first.what == "end" else "; --keep-going goes on"))


def _as_json(run: Path, found: Found, settings: RunSettings, result: Replay) -> dict[str, Any]:
    return {
        "run": str(run),
        "episode": found.episode.id,
        "phase": found.phase,
        "file": str(found.path),
        "line": found.line,
        "env": settings.env or found.episode.env,
        "options": dict(settings.options),
        "seed": found.episode.seed,
        "same": result.same,
        "turns": [asdict(turn) for turn in result.turns],
        "tail": result.tail,
        "outcome": {
            "verdict": result.outcome,
            "recorded": found.episode.outcome,
            "replayed": result.replayed.outcome,
        },
        "reward": {"verdict": result.reward, "recorded": found.episode.reward, "replayed": result.replayed.reward},
        "differences": [{**asdict(each), "diff": _lines(each)} for each in result.differences],
        "stopped": result.stopped or None,
        "notes": result.notes,
    }


def _lines(found: Difference) -> list[str]:
    from forge_env.records.replay_text import difference

    return difference(found.recorded, found.replayed)


_WORDS = {
    "observation": "what the model is shown before turn {}",
    "tools": "the tool calls of turn {}",
    "reward": "the reward of turn {}",
    "end": "where the episode ends",
}


def _place(found: Difference) -> str:
    if found.turn is None:
        return {"rewards": "the parts of the reward", "reward": "the reward"}.get(found.what, f"the {found.what}")
    return _WORDS[found.what].format(found.turn)


def _reward(reward: float | None) -> str:
    return "" if reward is None else f", reward {reward:g}"
