"""What the folder of a run records of its settings, and the lines of its episodes and faults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge_env.core.errors import UserError
from forge_env.core.types import EpisodeLimits
from forge_env.records.run_files import (
    CONFIG,
    EPISODES,
    FACTS,
    FAULTS,
    PLAN,
    env_here,
    episode_files,
    limits_from,
    read_object,
    trained_config,
)
from forge_env.utils.secret_values import with_secrets
from trainers.settings.mixture import Named, read_names

FAULTED = "faults"
"""Phase name of the faults of an evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    env: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the environment."""
    group_reward: str = ""
    """The target of the user's own function that compared siblings."""
    limits: EpisodeLimits | None = None
    """None if they are not recorded."""
    agent: str = ""
    """The agent of an evaluation."""
    thinking: str = "off"
    """Whether the model thought before it answered."""
    registered: Mapping[str, str] = field(default_factory=dict)
    """Where the environment's name was registered, see `forge_env.registry.registry.registration`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Digests of the environment's code, recorded by an evaluation; see `forge_env.evaluation.digests`."""


def all_files(run: Path) -> dict[str, Path]:
    """Return the files of `episode_files`, and the faults of an evaluation, which may be its only file."""
    faults = run.expanduser() / FAULTS
    if not faults.is_file():
        return episode_files(run)
    episodes = faults.with_name(EPISODES)
    return {**({"": episodes} if episodes.is_file() else {}), FAULTED: faults}


def episode_line(line: str) -> str:
    """Return the Episode in a line; a line of faults.jsonl holds it with its class and error."""
    if not line.startswith('{"class":'):
        return line
    try:
        return json.dumps(json.loads(line)["episode"])
    except (ValueError, KeyError):
        return line


def run_settings(run: Path, env: str = "") -> RunSettings | None:
    """The settings of the environment with this label, see `all_settings`; else of the first, whose agent and thinking
    all have. None if they are not recorded."""
    settings = all_settings(run)
    return settings.get(env) or next(iter(settings.values()), None)


def all_settings(run: Path) -> dict[str, RunSettings]:
    """The settings of a run, or of the run that a file of episodes belongs to, {} if they are not recorded: of each of
    several environments by its label, which its episodes name; of the only one by ""."""
    run = run.expanduser().absolute()
    folders = [run] if run.is_dir() else [run.parent, run.parent.parent]
    for folder in folders:
        if (folder / PLAN).is_file():
            plan = read_object(folder / PLAN)
            return {"": _settings(folder / PLAN, with_secrets(plan, folder), plan.get("limits", {}))}
        if env := trained_config(folder):
            facts = read_object(folder / FACTS) if (folder / FACTS).is_file() else {}
            config = with_secrets({"env": env, "mixture": trained_config(folder, "mixture") or {}}, folder)
            settings, name = {}, env.get("name")
            for label, one in (read_names(str(name or "")) or {"": Named("")}).items():
                own = config["env"] | config["mixture"].get(label, {})
                settings_of_env = {**own, "env": env_here(one.name, folder), "registered": facts.get("registered")}
                settings[label] = _settings(folder / CONFIG, settings_of_env, own)
            return settings
    return {}


def _settings(file: Path, config: Mapping[str, Any], limits: Mapping[str, Any]) -> RunSettings:
    options = config.get("options")
    if not isinstance(config.get("env"), str) or not isinstance(options, dict):
        raise UserError(f"{file} names no environment with its options")
    digests = config.get("depends_on")
    environment = digests.get("environment") if isinstance(digests, dict) else None
    names = config.get("registered")
    return RunSettings(
        env=config["env"],
        options=options,
        group_reward=str(config.get("group_reward") or ""),
        limits=limits_from(limits),
        agent=str(config.get("agent") or ""),
        thinking=str(config.get("thinking") or "off"),
        registered=names if isinstance(names, dict) else {},
        environment=environment if isinstance(environment, dict) else {},
    )
