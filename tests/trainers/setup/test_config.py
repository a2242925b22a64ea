"""Config: command line over YAML over defaults; a mistake names the option and what is allowed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from forge_env.core.errors import UserError
from forge_env.utils.settings import with_values
from tests.helpers.rows import rows
from trainers.setup.options.parser import parse

SHORT = {"steps": "training.steps", "output": "output", "deep": "training.inner"}


@dataclass
class Inner:
    rate: float = 0.5


@dataclass
class Store:
    keep_last: int = 2
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Training:
    steps: int = 10
    fast: bool = False
    inner: Inner = field(default_factory=Inner)


@dataclass
class Config:
    output: str = ""
    training: Training = field(default_factory=Training)
    store: Store = field(default_factory=Store)


def read(*arguments: str) -> Config:
    return parse(Config, arguments, SHORT)


def yaml(folder: Path, text: str) -> str:
    (folder / "run.yaml").write_text(text)
    return str(folder / "run.yaml")


def test_nothing_given_is_the_defaults() -> None:
    assert read() == Config()
    assert read("--steps", "5") != Config() == read()  # one parse leaves nothing behind for the next


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        ("--steps 7", "training.steps", 7),
        ("--steps=7", "training.steps", 7),
        ("--training.steps 7", "training.steps", 7),
        ("--steps -1", "training.steps", -1),
        ("--steps 3 --training.steps 4", "training.steps", 4),  # the last one counts
        ("--training.fast true", "training.fast", True),
        ("--training.fast=No", "training.fast", False),
        ("--training.fast", "training.fast", True),
        ("--training.fast --steps 1", "training.fast", True),
        ("--training.fast --training.fast false", "training.fast", False),
        ("--output=a=b", "output", "a=b"),
        ("--training.inner.rate 3e-4", "training.inner.rate", 3e-4),
        ("--deep.rate 2", "training.inner.rate", 2.0),
        ("--store.keep-last 5", "store.keep_last", 5),
    ],
)
def test_options_set_what_they_name(arguments: str, name: str, value: object) -> None:
    found = attrgetter(name)(read(*arguments.split()))
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("steps: 4", {"training.steps": 4}),
        ("deep: {rate: 2}", {"training.inner.rate": 2.0}),
        ("deep.rate: 2", {"training.inner.rate": 2.0}),
        *((f"training: {{inner: {{rate: {rate}}}}}", {"training.inner.rate": 1e-5}) for rate in ("1e-5", "'1e-5'")),
        ("training: {inner: {rate: 1.0e-05}}", {"training.inner.rate": 1e-5}),
        ("store: {keep-last: 5}", {"store.keep_last": 5}),
        # An empty section sets nothing.
        *((text, {}) for text in ("training:", "training: {}", "deep: ", "store: {options: }", "training: {inner: }")),
        ("training:\nsteps: 5", {"training.steps": 5}),
        ("steps: 5\ntraining:\n", {"training.steps": 5}),
        ("training: {}\ntraining.steps: 5.0", {"training.steps": 5}),
        ("store: {options: }\nstore.options.a: 2", {"store.options": {"a": 2}}),
        # A value of another kind is refused, and not bent.
        *((text, None) for text in ("steps: 2.7", "steps: true", "output: ", "output: [a, b]")),
    ],
)
def test_a_file_sets_what_it_names(tmp_path: Path, text: str, values: dict[str, Any] | None) -> None:
    if values is None:
        with pytest.raises(UserError):
            read("--config", yaml(tmp_path, text))
        return
    assert read("--config", yaml(tmp_path, text)) == with_values(Config(), values)


def test_the_command_line_wins_over_the_file_in_any_order(tmp_path: Path) -> None:
    path = yaml(tmp_path, "output: here\ntraining:\n  steps: 3\n  fast: true\n  inner: {rate: 1}\n")
    expected = Config(output="here", training=Training(steps=9, fast=True, inner=Inner(rate=1.0)))
    assert read("--config", path, "--steps", "9") == expected
    assert read("--steps", "9", f"--config={path}") == expected


def test_saved_settings_are_defaults_for_files_and_the_command_line(tmp_path: Path) -> None:
    saved = {"output": "before", "training": {"steps": 2, "inner": {"rate": 3.0}}, "store": {"options": {"a": 1}}}
    arguments = ["--config", yaml(tmp_path, "steps: 10\ndeep: {rate: 1}"), "--store.options.b", "2", "--steps", "11"]
    config = parse(Config, arguments, SHORT, old_values=saved)
    assert config == Config(
        output="before", training=Training(steps=11, inner=Inner(rate=1.0)), store=Store(options={"a": 1, "b": "2"})
    )
    assert parse(Config, ["--store.options", "{}", *arguments], SHORT, old_values=saved).store.options == {"b": "2"}
    assert parse(Config, [], SHORT, old_values=asdict(config)) == config


@pytest.mark.parametrize(
    ("arguments", "words"), [(arguments, words) for arguments, *words in rows(__file__, "config_mistakes.tsv")]
)
def test_a_mistake_is_named(arguments: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        read(*arguments.split())
    assert [word for word in words if word not in str(caught.value)] == []


FILES = {name: (text, words) for name, text, *words in rows(__file__, "config_files.tsv")}


@pytest.mark.parametrize("case", FILES)
def test_a_mistake_in_a_file_names_the_file(tmp_path: Path, case: str) -> None:
    text, words = FILES[case]
    with pytest.raises(UserError) as caught:
        read("--config", yaml(tmp_path, text))
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_dictionary_of_a_file_is_the_value_of_an_entry(tmp_path: Path) -> None:
    options = {
        "headers": {"a": 1, "x.y": "b"},
        "servers": [{"a": {"b": 1}}],
        "deep": {"a": {"b": {"c": 1}}},
        "none": {},
    }
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({"store": {"options": options}}))
    assert read("--config", str(path)).store.options == options
    assert parse(Config, [], SHORT, old_values={"store": {"options": options}}).store.options == options
    other = read("--config", str(path), "--store.options.headers.a", "2", "--store.options.deep", "{}").store.options
    assert other["headers"] == {"a": "2", "x.y": "b"} and other["deep"] == "{}"
    with pytest.raises(UserError, match=r"servers is \[.*, and servers\.a is given as an entry of it"):
        read("--config", str(path), "--store.options.servers.a", "2")


def test_a_merged_mapping_of_a_file_gives_way_to_its_own_keys(tmp_path: Path) -> None:
    text = "store:\n  options:\n    a: &a {x: 1, y: 2}\n    b: &b {<<: *a, y: 3}\n    c: *b\n    d: {<<: *b, x: 4}"
    options = read("--config", yaml(tmp_path, text)).store.options
    assert options["c"] == options["b"] == {"x": 1, "y": 3} and options["d"] == {"x": 4, "y": 3}
