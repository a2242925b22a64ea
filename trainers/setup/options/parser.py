"""Command lines and YAML files to a config: one tree of typed dataclasses with dotted names.

`--training.steps 50` sets `config.training.steps`. An unknown name is an error that offers the nearest valid one.

This module only finds the names; `forge_env.utils.settings` converts the values. tyro and pydantic-settings refuse
entries of dictionaries by their dotted name (`--env.options.level 2`) and short names of sections
(`--trainer.procs 4`), and tell a mistake in several lines.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from forge_env.core.errors import UserError
from forge_env.utils.settings import leaves, out_of_bounds, read_value, with_values
from forge_env.utils.yaml_text import loader

C = TypeVar("C")


def parse(config_class: type[C], arguments: Sequence[str], short: Mapping[str, str]) -> C:
    """Build a config from command-line arguments.

    Args:
        config_class: a dataclass of dataclasses, all with defaults.
        arguments: `--name value` or `--name=value` pairs, and `--name` alone where the value is true or false;
            `--config FILE` reads YAML first. A dash within a name is an underscore.
        short: short name -> dotted name of a setting or of a section, for example {"steps": "training.steps",
            "trainer": "services.trainer"}: then `--trainer.procs 2` sets services.trainer.procs.

    Raises:
        UserError: for an unknown option, a missing or a malformed value.
    """
    return parse_given(config_class, arguments, short)[0]


def parse_given(
    config_class: type[C],
    arguments: Sequence[str],
    short: Mapping[str, str],
    *,
    saved: Mapping[str, Any] | None = None,
) -> tuple[C, frozenset[str]]:
    """Like `parse`; returns also the dotted names that files and command line set.

    Args:
        saved: a config as `dataclasses.asdict` returns it; its values replace the defaults.

    Raises:
        UserError: as `parse` does.
    """
    config = config_class()
    names = _Names(config, short)
    pairs = _pairs(arguments, names)
    values: dict[str, Any] = {}
    given: set[str] = set()
    for name, value in _flatten(saved or {}, names):
        _set(values, names, name, value, source="the saved config")
    for _, path in (pair for pair in pairs if pair[0] == "config"):
        for name, value in _flatten(_read_yaml(path), names):
            given.add(_set(values, names, name, value, source=path))
    for name in dict.fromkeys(name for name, _ in pairs if name != "config"):
        texts = [text for other, text in pairs if other == name]
        several = len(texts) > 1 and names.dictionary_of(names.dotted(name))
        given.add(_set(values, names, name, texts if several else texts[-1], source="the command line"))
    return with_values(config, values), frozenset(given)


class _Names:
    """The names of a config tree, and what a user may write for them."""

    def __init__(self, config: Any, short: Mapping[str, str]) -> None:
        self.kinds = {setting.name: setting.kind for setting in leaves(config)}
        self.sections = {name[:i] for name in self.kinds for i, letter in enumerate(name) if letter == "."}
        self._short = short

    def dotted(self, name: str) -> str:
        """The dotted name of a short or relative name; an unknown name is returned unchanged."""
        name = name.replace("-", "_")
        if name in self._short:
            return self._short[name]
        head, dot, rest = name.partition(".")
        section = self._short.get(head, "")
        if dot and name not in self.kinds and section in self.sections and head not in self.sections:
            return f"{section}.{rest}"
        return name

    def dictionary_of(self, dotted: str) -> str:
        """The dotted name of the dictionary that `dotted` is an entry of; "" for any other setting."""
        dictionaries = (name for name, kind in self.kinds.items() if typing.get_origin(kind) is dict)
        return next((name for name in dictionaries if dotted.startswith(f"{name}.")), "")

    def is_section(self, name: str) -> bool:
        return self.dotted(name) in self.sections or name in self.sections

    def unknown(self, name: str, source: str) -> UserError:
        """The error for an unknown name, with the nearest known one."""
        if self.is_section(name):
            return UserError(f"{source}: there is no option --{name}: it is a section, write --{name}.NAME VALUE")
        nearest = self._nearest(self.dotted(name))
        hint = f"did you mean {nearest}? " if nearest else ""
        return UserError(f"{source}: there is no option --{name}; {hint}--help lists them all")

    def _nearest(self, dotted: str) -> str:
        """The nearest option: of the named section, else of another section with the same field, else any similar."""
        section, _, field = dotted.rpartition(".")
        sections = [*self.sections, *(name for name, to in self._short.items() if to in self.sections)]
        near = section if section in self.sections else _closest(section, sections)
        if section and near:
            inside = f"{self.dotted(near)}."
            within = {name.removeprefix(inside) for name in self.kinds if name.startswith(inside)}
            if close := _closest(field, within):
                return f"--{near}.{close}"
        elsewhere = [f"--{name}" for name in self.kinds if section and name.endswith(f".{field}")]
        if not elsewhere and (close := _closest(dotted, [*self._short, *self.kinds, *sections])):
            elsewhere = [f"the section {close}" if self.is_section(close) else f"--{close}"]
        return elsewhere[0] if elsewhere else f"the section {near}" if near else ""


def _closest(name: str, choices: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(name, list(choices), n=1)), "")


def _set(values: dict[str, Any], names: _Names, name: str, value: Any, *, source: str) -> str:
    """Add one value by its dotted name, converted to the field's type; returns that name."""
    dotted = names.dotted(name)
    if names.dictionary_of(dotted):
        values[dotted] = value
        return dotted
    if dotted not in names.kinds:
        raise names.unknown(name, source)
    kind = names.kinds[dotted]
    if typing.get_origin(kind) is dict:
        if value not in ({}, "{}", None):
            raise UserError(f"{source}: --{name} is {value!r}; write one option for each entry: --{name}.NAME VALUE")
        for entry in [entry for entry in values if entry.startswith(f"{dotted}.")]:
            del values[entry]
        values[dotted] = {}
    else:
        values[dotted] = read_value(value, kind, f"{source}: --{name}")
    return dotted


def _pairs(arguments: Sequence[str], names: _Names) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    rest = list(arguments)
    while rest:
        option = rest.pop(0)
        if not option.startswith("--"):
            raise UserError(f"{option!r} is not an option: write --name value, for example --steps 50")
        name, equals, value = option[2:].partition("=")
        if not equals:
            value = _next_value(name, rest, names)
        pairs.append((name, value))
    return pairs


def _next_value(name: str, rest: list[str], names: _Names) -> str:
    """Take the value of an option from the following argument; a boolean option without one is true."""
    if rest and not rest[0].startswith("--"):
        return rest.pop(0)
    kind = names.kinds.get(names.dotted(name))
    if kind is bool:
        return "true"
    follows = f", and {rest[0]!r} is an option: a value like that is written --{name}={rest[0]}" if rest else ""
    raise UserError(f"--{name} needs a value{follows}")


def _read_yaml(path: str) -> dict[str, Any]:
    import yaml

    if not Path(path).is_file():
        raise UserError(f"there is no config file {path}")
    try:
        data = _load_once(path)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not YAML: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} is not a mapping of sections such as training: {{steps: 50}}")
    return data


def _load_once(path: str) -> Any:
    """Load YAML in which no mapping has a name twice: of two values none is known to be the one that is meant."""
    import yaml

    class Loader(loader()):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[Any] = set()
            for key, _ in node.value:
                name = key.value if isinstance(key, yaml.ScalarNode) else id(key)
                if name in seen:
                    line = key.start_mark.line + 1
                    raise UserError(f"{path}, line {line}: {name} is set a second time: leave one of them out")
                seen.add(name)
            return super().construct_mapping(node, deep)

    return yaml.load(Path(path).read_text(), Loader)


def _flatten(data: Mapping[str, Any], names: _Names, prefix: str = "") -> list[tuple[str, Any]]:
    """The settings of a file by dotted name; an empty section sets nothing."""
    pairs: list[tuple[str, Any]] = []
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            pairs += _flatten(value, names, f"{name}.")
        elif not (value in (None, {}) and names.is_section(name)):
            pairs.append((name, value))
    return pairs


def check_bounds(config: Any) -> None:
    """Check that each number of a config is within the bounds of its field.

    Raises:
        UserError: for the first one that is not.
    """
    for setting in leaves(config):
        if setting.kind in (int, float) and (allowed := out_of_bounds(setting.value, setting.marks)):
            raise UserError(f"--{setting.name} is {setting.value}; it must be {allowed}")
