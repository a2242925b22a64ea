"""Config: one tree of typed dataclasses, dotted command-line overrides, YAML files.

`--training.steps 50` sets `config.training.steps`. An unknown name is an error that offers the nearest valid one.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from forge_env.errors import UserError

C = TypeVar("C")


def parse(config_class: type[C], arguments: Sequence[str], short: Mapping[str, str]) -> C:
    """Build a config from command-line arguments.

    Args:
        config_class: a dataclass of dataclasses, all with defaults.
        arguments: `--name value` or `--name=value` pairs; `--config FILE` reads YAML first.
        short: short option -> dotted name, for example {"steps": "training.steps"}.

    Raises:
        UserError: for an unknown option, a missing or a malformed value.
    """
    config = config_class()
    pairs = _pairs(arguments)
    for _, path in (pair for pair in pairs if pair[0] == "config"):
        for name, value in _flatten(_read_yaml(path)):
            set_value(config, name, value, short, source=path)
    for name in dict.fromkeys(name for name, _ in pairs if name != "config"):
        values = [value for other, value in pairs if other == name]
        several = len(values) > 1 and _dict_of(config, short.get(name, name)) is not None
        set_value(config, name, values if several else values[-1], short, source="the command line")
    return config


def set_value(config: Any, name: str, value: Any, short: Mapping[str, str], *, source: str) -> None:
    """Set one dotted name, converting the value to the field's type."""
    names = dict(leaves(config))
    dotted = short.get(name, name)
    if (leaf := _dict_of(config, dotted)) is not None:
        _leaf(config, leaf)[dotted.removeprefix(f"{leaf}.")] = value
        return
    if dotted not in names:
        close = difflib.get_close_matches(name, [*short, *names], n=1)
        hint = f"did you mean --{close[0]}? " if close else ""
        raise UserError(f"{source}: there is no option --{name}; {hint}--help lists them all")
    section, _, field = dotted.rpartition(".")
    setattr(_leaf(config, section) if section else config, field, _convert(value, names[dotted], f"{source}: --{name}"))


def _dict_of(config: Any, dotted: str) -> str | None:
    """The dictionary that a dotted name is an entry of; an entry that is given several times is a list."""
    dicts = [leaf for leaf, kind in leaves(config) if typing.get_origin(kind) is dict]
    return next((leaf for leaf in dicts if dotted.startswith(f"{leaf}.")), None)


def _leaf(config: Any, dotted: str) -> Any:
    for part in dotted.split("."):
        config = getattr(config, part)
    return config


def leaves(config: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """List every dotted name with its type."""
    hints = typing.get_type_hints(type(config))
    found: list[tuple[str, Any]] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found += leaves(value, f"{prefix}{field.name}.")
        else:
            found.append((f"{prefix}{field.name}", hints[field.name]))
    return found


def _pairs(arguments: Sequence[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    rest = list(arguments)
    while rest:
        option = rest.pop(0)
        if not option.startswith("--"):
            raise UserError(f"{option!r} is not an option: write --name value, for example --steps 50")
        name, equals, value = option[2:].partition("=")
        if not equals:
            if not rest:
                raise UserError(f"--{name} needs a value")
            value = rest.pop(0)
        pairs.append((name, value))
    return pairs


def _read_yaml(path: str) -> dict[str, Any]:
    import yaml

    if not Path(path).is_file():
        raise UserError(f"there is no config file {path}")
    try:
        data = yaml.safe_load(Path(path).read_text())
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} is not a mapping of sections such as training: {{steps: 50}}")
    return data


def _flatten(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            found += _flatten(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value))
    return found


def _convert(value: Any, kind: Any, where: str) -> Any:
    if typing.get_origin(kind) is dict:
        if value not in ({}, "{}"):
            raise UserError(f"{where} is {value!r}; write one option for each entry: {where.split()[-1]}.NAME VALUE")
        return {}
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise UserError(f"{where} is {value!r}; it must be one of: {', '.join(choices)}")
        return value
    try:
        return _CONVERTERS[kind](value)
    except (ValueError, TypeError, KeyError):
        allowed = {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "a text")
        raise UserError(f"{where} is {value!r}; it must be {allowed}") from None


def _whole(value: Any) -> int:
    if isinstance(value, (bool, float)):
        raise TypeError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _text(value: Any) -> str:
    if value is None or isinstance(value, (bool, list, dict)):
        raise TypeError
    return str(value)


_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_CONVERTERS: dict[Any, Any] = {
    bool: lambda value: _BOOLEANS[str(value).lower()],
    int: _whole,
    float: _number,
    str: _text,
}
