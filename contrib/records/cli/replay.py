"""`forge-env replay`."""

from __future__ import annotations

from dataclasses import asdict
from dataclasses import replace as with_fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forge_env.cli.evaluate import parse_options
from forge_env.cli.output import Json, emit, note, say, show_table, stdout_to_stderr
from forge_env.utils.run_async import run_async
from forge_env.utils.secret_values import masked

if TYPE_CHECKING:
    from contrib.records.find_episode import FoundEpisode
    from contrib.records.replay import Difference, Replay
    from contrib.records.run_settings import RunSettings


def replay(
    run: Annotated[Path, typer.Argument(help="Folder of an evaluation or a training run, or a .jsonl file.")],
    episode: Annotated[
        str, typer.Argument(help="Its id, the beginning of its id, or its line number; PHASE:... for a training run.")
    ],
    env: Annotated[str, typer.Option(help="The environment, if it is not the one that the run names.")] = "",
    option: Annotated[list[str], typer.Option(help="Option of the environment that overrides the run's.")] = [],  # noqa: B006 (typer reads it, nobody changes it)
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Take all turns, even after a difference.")] = False,
    as_json: Json = False,
) -> int:
    """Run a recorded episode again with the recorded turns, and show the first difference.

    Exits with 0 when it is the same, and with 1 when it is not.
    """
    from contrib.records.find_episode import find_episode
    from contrib.records.replay import replay as run_again
    from contrib.records.run_settings import RunSettings, run_settings
    from forge_env.registry.registry import check_registered

    place = find_episode(run, episode)
    settings = run_settings(run, place.episode.env)
    if settings is None:
        settings = RunSettings(env=place.episode.env)
        note(f"{run} does not record its settings: the environment has the options of --option and its default limits")
    if env or option:
        settings = with_fields(settings, env=env or settings.env, options={**settings.options, **parse_options(option)})
    check_registered(settings.env, {} if env else settings.registered)
    _note_effects(settings, place)
    note_changes(run, settings)
    with stdout_to_stderr(as_json):
        result = run_async(run_again(place.episode, settings, keep_going=keep_going))
    emit(_as_json(run, place, settings, result)) if as_json else _show(place, settings, result)
    return 0 if result.same else 1


def _note_effects(settings: RunSettings, place: FoundEpisode) -> None:
    from forge_env.rollout.factory import make

    name = settings.env or place.episode.env
    effects = make(name, **settings.options).effects() if name else ""
    if effects:
        note(f"an episode of {name} {effects}: the replay does it again, and results may differ")


def note_changes(run: Path, settings: RunSettings) -> None:
    """Print what has changed in the environment since an evaluation measured it."""
    from forge_env.evaluation.digests import changed_parts, environment_digests
    from forge_env.rollout.factory import make

    if settings.environment and settings.env:
        now = environment_digests(make(settings.env, **settings.options))
        for part in changed_parts({"environment": settings.environment}, {"environment": now}):
            note(f"{part} has changed since {run}")


def _show(place: FoundEpisode, settings: RunSettings, result: Replay) -> None:
    episode = place.episode
    by = f", by {settings.agent}" if settings.agent else ""
    say(f"{episode.id} of {settings.env or episode.env}, seed {episode.seed}{by} ({place.path}, line {place.line})")
    rows = [(str(i), t.observation, t.tools, t.reward) for i, t in enumerate(result.turns)]
    show_table(("turn", "shown to the model", "tool calls", "reward"), [*rows, ("end", result.tail, "", result.reward)])
    for text in result.notes:
        note(text)
    if result.same:
        reward = result.replayed.reward
        say(f"the same: {result.replayed.outcome}" + ("" if reward is None else f", reward {reward:g}"))
        return
    first, others = result.differences[0], len(result.differences) - 1
    say(f"different, first in {_location(first)}:")
    for text in _diff_lines(first):
        say(f"    {text}")
    if others:
        say(f"and in {others} more: {', '.join(map(_location, result.differences[1:]))}")
    if result.stop_reason:
        say(
            f"the replay stopped there: {result.stop_reason}"
            + ("" if first.what == "end" else "; --keep-going goes on")
        )


def _as_json(run: Path, place: FoundEpisode, settings: RunSettings, result: Replay) -> dict[str, Any]:
    return {
        "run": str(run),
        "episode": place.episode.id,
        "phase": place.phase,
        "file": str(place.path),
        "line": place.line,
        "env": settings.env or place.episode.env,
        "options": masked(settings.options),
        "seed": place.episode.seed,
        "same": result.same,
        "turns": [asdict(turn) for turn in result.turns],
        "tail": result.tail,
        "outcome": {"verdict": result.outcome, "recorded": place.episode.outcome, "replayed": result.replayed.outcome},
        "reward": {"verdict": result.reward, "recorded": place.episode.reward, "replayed": result.replayed.reward},
        "differences": [{**asdict(difference), "diff": _diff_lines(difference)} for difference in result.differences],
        "stopped": result.stop_reason or None,
        "notes": result.notes,
    }


def _diff_lines(difference: Difference) -> list[str]:
    from contrib.records.replay import diff_lines

    return diff_lines(difference.recorded, difference.replayed)


_LOCATIONS = {
    "observation": "what the model is shown before turn {}",
    "tools": "the tool calls of turn {}",
    "reward": "the reward of turn {}",
    "end": "where the episode ends",
}


def _location(difference: Difference) -> str:
    if difference.turn is None:
        names = {"rewards": "the parts of the reward", "reward": "the reward"}
        return names.get(difference.what, f"the {difference.what}")
    return _LOCATIONS[difference.what].format(difference.turn)
