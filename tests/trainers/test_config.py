"""The settings of a run: every short option names something that exists, and every setting can be set."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import pytest

from forge_env.core.errors import UserError
from forge_env.utils.settings import leaves
from trainers.config import SHORT_OPTIONS, RunConfig
from trainers.grpo import Config
from trainers.setup.options.parser import parse


def test_short_options_name_settings() -> None:
    names = {setting.name for setting in leaves(Config())}
    sections = {name.rpartition(".")[0] for name in names}
    assert all(to in names | sections or to.startswith("env.options.") for to in SHORT_OPTIONS.values())


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
    for setting in leaves(config):
        value = setting.value
        arguments += [f"--{setting.name}", ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    assert parse(Config, arguments, SHORT_OPTIONS) == config


def test_no_section_can_be_changed() -> None:
    sections = [Config(), *(getattr(Config(), setting.name) for setting in fields(Config))]
    assert [s for s in sections if is_dataclass(s) and not type(s).__dataclass_params__.frozen] == []


def test_short_options_reach_their_settings() -> None:
    arguments = ["--env", "math", "--model", "m", "--output", "o", "--steps", "3", "--seed", "4", "--tasks", "5"]
    config = parse(RunConfig, arguments, SHORT_OPTIONS)
    assert (config.env.name, config.model.path, config.output) == ("math", "m", "o")
    assert (config.training.steps, config.training.seed, config.dataset.tasks) == (3, 4, 5)
