"""The settings of a run: every short option names something that exists, and every setting can be set."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass

import pytest

from forge_env.core.errors import UserError
from forge_env.core.types import EpisodeLimits
from forge_env.utils.settings import leaves
from trainers.config import SHORT_OPTIONS, RunConfig
from trainers.grpo import GRPO, Config
from trainers.settings.tasks import EnvConfig
from trainers.setup.options.parser import parse


def test_short_options_name_settings() -> None:
    names = {setting.name for setting in leaves(Config())}
    sections = {name.rpartition(".")[0] for name in names}
    assert all(to in names | sections or to.startswith("env.options.") for to in SHORT_OPTIONS.values())


def test_services_go_by_their_own_names() -> None:
    arguments = ["--trainer.procs", "4", "--generator.with_gpus", "--ref_model.with_gpus", "false"]
    services = parse(RunConfig, arguments, SHORT_OPTIONS).services
    assert (services.trainer.procs, services.generator.with_gpus, services.ref_model.with_gpus) == (4, True, False)
    assert services.trainer.threads == 2


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


def test_limits_come_from_the_section() -> None:
    limits = EpisodeLimits(
        max_turns=1, max_turn_tokens=2, max_tokens=3, max_thinking_tokens=4, step_seconds=5.0, episode_seconds=6.0
    )
    assert EnvConfig(**asdict(limits)).limits() == limits


def test_the_algorithms_section_reaches_its_objective() -> None:
    config = parse(Config, ["--grpo.n_samples", "5", "--grpo.std_eps", "0.5"], SHORT_OPTIONS)
    made = GRPO.make_objective(config)
    assert made.group_size == 5
    assert made.advantages([1.0, 0.0, 0.0, 0.0]) == [0.75, -0.25, -0.25, -0.25]


def test_the_algorithms_section_is_found_by_its_name() -> None:
    assert (Config().algorithm_name, Config().algorithm) == ("grpo", Config().grpo)
    assert (RunConfig().algorithm_name, RunConfig().algorithm) == ("", None)
