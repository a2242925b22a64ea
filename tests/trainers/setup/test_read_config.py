"""From a command line to a config: the YAML of torchforge's guides, what an absent setting means, and the data set."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from forge_env.core.errors import UserError
from forge_env.utils.secret_values import FILE, keep, masked
from forge_env.utils.settings import with_values
from tests.helpers.plans import plan_of
from trainers.checkpoints import find, path_of, write_manifest
from trainers.config import RunConfig
from trainers.dapo import DAPO
from trainers.grpo import Config
from trainers.settings.tasks import EnvConfig
from trainers.setup.checks.resume_checks import check_fits
from trainers.setup.options.read_config import give_dataset, read_config
from trainers.sft import SFT


def save(run: Path, step: int, **extra: Any) -> None:
    """A checkpoint of which only the manifest is looked at."""
    folder = path_of(run, step)
    folder.mkdir(parents=True)
    write_manifest(folder, {"step": step, "extra": extra})


def config_of(tmp_path: Path, text: str, *arguments: str) -> Config:
    (tmp_path / "run.yaml").write_text(text)
    return read_config(Config, ["--config", str(tmp_path / "run.yaml"), *arguments])


@pytest.mark.parametrize(
    ("text", "arguments", "name"),
    [
        ("training: {steps: 1}", (), "math"),
        ("env: code_exec", (), "code_exec"),
        ("env: {name: code_exec}", (), "code_exec"),
        ("env: {max_turns: 2}", (), "math"),
        ("training: {steps: 1}", ("--env", "code_exec"), "code_exec"),
    ],
)
def test_a_file_that_names_no_environment_means_math(
    tmp_path: Path, text: str, arguments: tuple[str, ...], name: str
) -> None:
    assert config_of(tmp_path, text, *arguments).env.name == name


def test_without_a_file_the_defaults_are_the_defaults() -> None:
    assert read_config(Config, []) == Config()
    assert read_config(Config, []).env.name == "code_exec"


def test_a_file_takes_both_forms_of_the_model(tmp_path: Path) -> None:
    assert config_of(tmp_path, "model: a/b").model.path == config_of(tmp_path, "model: {path: a/b}").model.path == "a/b"


def test_a_file_means_what_the_command_line_means(tmp_path: Path) -> None:
    config = config_of(tmp_path, "env: {thinking: on, options: {at: 12:30, day: 2024-03-01, level: 012, open: no}}")
    options = ["--env.options.at", "12:30", "--env.options.day", "2024-03-01", "--env.options.level", "012"]
    assert config.env == config_of(tmp_path, "{}", "--env.thinking", "on", *options, "--env.options.open", "no").env
    assert config.env.thinking == "on"


def test_flags() -> None:
    assert read_config(Config, ["--dry-run"]).dry_run
    assert read_config(Config, ["--dry_run", "--steps", "1"]).dry_run
    assert not read_config(Config, ["--dry-run", "--dry-run", "false"]).dry_run


def test_two_caps_of_an_episode_are_refused() -> None:
    with pytest.raises(UserError, match="seq_len is 100 and --env.max_tokens is 99: .*; give one of them"):
        settled("--training.seq_len", "100", "--env.max_tokens", "99")


def settled(*arguments: str) -> EnvConfig:
    """The section of the environment, with the defaults of what is trained."""
    return plan_of(*arguments).config.env


# ---- the data set ----


def given(*arguments: str) -> RunConfig:
    return give_dataset(read_config(Config, list(arguments)))


def test_the_environment_gets_the_data_as_its_own_option() -> None:
    arguments = ["--dataset.path", "tasks.jsonl", "--env"]
    assert given(*arguments, "code_exec").env.options == {"data": "tasks.jsonl"}
    assert given(*arguments, "math").env.options == {"data": "tasks.jsonl"}
    assert given(*arguments, "math", "--dataset.streaming").env.options == {"data": "tasks.jsonl", "streaming": True}
    assert given("--env", "math").env.options == {}
    assert give_dataset(given(*arguments, "math")).env.options == {"data": "tasks.jsonl"}


def test_a_run_that_is_resumed_has_its_own_settings(tmp_path: Path) -> None:
    first = read_config(Config, ["--env", "math", "--env.options.level", "2", "--steps", "10", "--output", "elsewhere"])
    first = with_values(first, {"checkpoint.step": 5})  # it was resumed itself
    save(tmp_path, 7, algorithm="grpo", config=asdict(first))
    again = read_config(Config, ["--resume", "--output", str(tmp_path), "--steps", "20"])
    assert (again.env.name, again.env.options, again.training.steps) == ("math", {"level": "2"}, 20)
    assert (again.output, again.resume, again.checkpoint.step) == (str(tmp_path), True, 0)
    with pytest.raises(UserError, match="holds no complete checkpoint"):
        read_config(Config, ["--resume", "--output", str(tmp_path / "none")])


@pytest.mark.parametrize(
    ("algorithm", "changes", "words"),
    [
        ("grpo", {"offload_sums": None}, "was saved by another version of forge_env: --training.offload_sums is a"),
        ("grpo", {"gone": 1}, "was saved by another version of forge_env: --training.gone is a setting of one of"),
        ("dapo", {}, "was saved by dapo: go on with python -m trainers.dapo"),
        ("sft", {}, "was saved by sft: go on with python -m trainers.sft"),
    ],
)
def test_a_checkpoint_of_another_version_or_algorithm_is_refused_as_such(
    tmp_path: Path, algorithm: str, changes: dict[str, int | None], words: str
) -> None:
    configs = {"grpo": Config, "dapo": DAPO.config, "sft": SFT.config}
    saved = asdict(with_values(configs[algorithm](), {"env.options": {"level": 2}}))
    saved["training"] |= changes
    saved["training"] = {name: value for name, value in saved["training"].items() if value is not None}
    save(tmp_path, 40, algorithm=algorithm, command=f"trainers.{algorithm}", config=saved)
    with pytest.raises(UserError, match=f"step_000040 {words}"):
        read_config(Config, ["--resume", "--output", str(tmp_path)])


def test_a_run_that_goes_on_elsewhere_says_where_its_environment_was_registered(tmp_path: Path) -> None:
    config = read_config(Config, ["--env", "envs.math:Math", "--output", str(tmp_path)])
    config = with_values(config, {"env.name": "of_another_folder"})
    save(tmp_path, 3, algorithm="grpo", config=asdict(config))
    entry = {"target": "/project/own.py:Own", "file": "/project/.forge_env/registry.yaml"}
    (tmp_path / "run.json").write_text(json.dumps({"registered": entry}))
    words = "no environment 'of_another_folder' in this folder.*FORGE_ENV_REGISTRY=/project/.forge_env/registry.yaml"
    with pytest.raises(UserError, match=words):
        read_config(Config, ["--output", str(tmp_path), "--resume"])


def test_limits_come_from_the_environment_unless_a_setting_is_given(tmp_path: Path) -> None:
    model = ["--warmup.steps", "0", "--model", "Qwen/Qwen3-0.6B"]
    (tmp_path / "game.py").write_text(
        "from envs.math import Math\n\n\nclass Game(Math):\n    @classmethod\n    def limits(cls, **_):\n"
        "        return {'max_turns': 200}\n"
    )
    game = ["--env", f"{tmp_path}/game.py:Game", *model]
    env = settled(*game)
    assert (env.max_turns, env.max_turn_tokens, env.max_tokens) == (200, 512, 4096)
    assert settled(*game, "--env.max_turns", "3").max_turns == 3
    assert config_of(tmp_path, f"env: {{name: '{tmp_path}/game.py:Game', max_turns: 5}}").env.max_turns == 5
    assert settled(*game, "--training.seq_len", "100").max_tokens == 100
    levels = [settled("--env", "code_exec", "--env.options.level", str(n)).max_turns for n in (1, 4)]
    assert levels == [3, 8]
    (tmp_path / "own.py").write_text(
        "import forge_env\n\n\nclass Own(forge_env.Env):\n    def __init__(self, *, data: str):\n        pass\n\n"
        "    @classmethod\n    def limits(cls, *, data: str):\n"
        "        return {'max_tokens': 900, 'max_turn_tokens': 90}\n"
    )
    arguments = ["--env", f"{tmp_path}/own.py:Own", "--env.options.data", "x", *model]
    assert settled(*arguments).limits().max_turn_tokens == 90
    both = settled(*arguments, "--training.seq_len", "300")
    assert (both.max_tokens, both.max_turn_tokens) == (300, 300)


def test_a_resumed_run_has_its_secrets_or_asks_for_them(tmp_path: Path) -> None:
    options = {"api_key": "LEAK", "headers": {"Authorization": "Bearer LEAK"}, "level": 2}
    first = with_values(Config(), {"env.options": options, "output": str(tmp_path), "training.steps": 3})
    save(tmp_path, 3, algorithm="grpo", command="trainers.grpo", config=masked(asdict(first)))
    keep(tmp_path, asdict(first))
    resume = ["--resume", "--output", str(tmp_path), "--steps", "9"]
    again = read_config(Config, resume)
    assert again.env.options == options
    check_fits(find(tmp_path), "grpo", again)
    check_fits(find(tmp_path), "grpo", read_config(Config, [*resume, "--env.options.api_key", "NEWER"]))
    (tmp_path / FILE).unlink()
    with pytest.raises(UserError, match=r"env\.options\.api_key, env\.options\.headers\.Authorization; give them"):
        read_config(Config, resume)
    given = ["--env.options.api_key", "NEWER", "--env.options.headers.Authorization", "Bearer NEWER"]
    assert read_config(Config, [*resume, *given]).env.options["headers"] == {"Authorization": "Bearer NEWER"}


def test_a_resumed_run_keeps_the_limits_that_it_had(tmp_path: Path) -> None:
    config = read_config(Config, ["--env", "code_exec", "--output", str(tmp_path)])
    config = with_values(config, {"env.max_turns": 7})
    save(tmp_path, 3, algorithm="grpo", config=asdict(config))
    assert read_config(Config, ["--output", str(tmp_path), "--resume"]).env.max_turns == 7
