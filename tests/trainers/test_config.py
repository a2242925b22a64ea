"""The settings of a run: every short option and every recipe names something that exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_env.config import leaves, parse
from forge_env.errors import UserError
from forge_env.types import EpisodeLimits
from trainers.config import SHORT_OPTIONS, EnvConfig, RunConfig
from trainers.grpo import Config, objective


def test_short_options_name_settings() -> None:
    names = {name for name, _ in leaves(Config())}
    assert all(target in names or target.startswith("env.options.") for target in SHORT_OPTIONS.values())


def test_options_of_the_environment_are_set_one_by_one() -> None:
    config = parse(RunConfig, ["--env.options.level", "2", "--tools", "a,b"], SHORT_OPTIONS)
    assert config.env.options == {"level": "2", "tools": "a,b"}
    config = parse(RunConfig, ["--tools", "a,b", "--tools", "c", "--steps", "1", "--steps", "2"], SHORT_OPTIONS)
    assert config.env.options == {"tools": ["a,b", "c"]} and config.training.steps == 2
    with pytest.raises(UserError, match=r"--env\.options\.NAME VALUE"):
        parse(RunConfig, ["--env.options", "level"], SHORT_OPTIONS)


def test_every_setting_can_be_set_by_its_dotted_name() -> None:
    """To its own default, as text: so every type can be read."""
    config = Config()
    arguments = []
    for name, _ in leaves(config):
        value: object = config
        for part in name.split("."):
            value = getattr(value, part)
        arguments += [f"--{name}", str(value)]
    assert parse(Config, arguments, SHORT_OPTIONS) == config


def test_short_options_reach_their_settings() -> None:
    arguments = ["--env", "math", "--model", "m", "--output", "o", "--steps", "3", "--seed", "4", "--tasks", "5"]
    config = parse(RunConfig, arguments, SHORT_OPTIONS)
    assert (config.env.name, config.model.path, config.output) == ("math", "m", "o")
    assert (config.training.steps, config.training.seed, config.dataset.tasks) == (3, 4, 5)


def test_limits_are_those_of_the_section() -> None:
    section = EnvConfig(max_turns=1, max_turn_tokens=2, max_tokens=3, step_seconds=4.0, episode_seconds=5.0)
    assert section.limits() == EpisodeLimits(
        max_turns=1, max_turn_tokens=2, max_tokens=3, step_seconds=4.0, episode_seconds=5.0
    )


def test_the_algorithms_section_reaches_its_objective() -> None:
    config = parse(Config, ["--grpo.n_samples", "5", "--grpo.std_eps", "0.5"], SHORT_OPTIONS)
    made = objective(config)
    assert made.group_size == 5
    assert made.advantages([1.0, 0.0, 0.0, 0.0]) == [0.75, -0.25, -0.25, -0.25]


def test_recipes_can_be_read() -> None:
    for recipe in (Path(__file__).parents[2] / "recipes").glob("*.yaml"):
        parse(Config, ["--config", str(recipe)], SHORT_OPTIONS)
