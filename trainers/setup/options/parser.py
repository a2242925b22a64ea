"""Command lines and YAML files to a config: one tree of typed dataclasses with dotted names.

This module finds the names; `forge_env.utils.settings` converts the values. tyro and pydantic-settings refuse entries
of dictionaries by name (`--env.options.level 2`) and short names of sections, and tell a mistake in several lines.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from forge_env.core.errors import UserError
from forge_env.utils.settings import leaves, out_of_bounds, read_value, with_values
from forge_env.utils.yaml_text import loader

C = TypeVar("C")


def parse(
    config_class: type[C], arguments: Sequence[str], short: Mapping[str, str], *, saved: Mapping[str, Any] | None = None
) -> C:
    """Build a config from command-line arguments.

    Args:
        config_class: a dataclass of dataclasses, all with defaults.
        arguments: `--name value` or `--name=value`; `--name` alone is true. `--config FILE` reads YAML first. A dash
            within a name is an underscore. The last of several numbers or choices counts; two texts of one setting are
            refused, for they look like a list. An entry of a dictionary gets a list of all.
        short: short name -> dotted name of a setting or of a section, for example {"steps": "training.steps",
            "trainer": "services.trainer"}: then `--trainer.procs 2` sets services.trainer.procs.
        saved: values in the place of defaults, nested as `dataclasses.asdict` returns them.

    Raises:
        UserError: for an unknown option, a missing or a malformed value, or two values of one setting.
    """
    config = config_class()
    settings, options = _Settings(config, short), dict[str, list[str]]()
    for name, text in settings.pairs(arguments):
        options[name] = [*options.pop(name, ()), text]
    files = [(path, _read_yaml(path)) for path in options.pop("config", ())]
    for source, data in [("the saved config", saved or {}), *files]:
        given = list(flatten(data))
        settings.check_once(given, source)
        for name, value in given:
            settings.give(name, value, source)
    given = [(name, text) for name, texts in options.items() for text in texts if settings.is_text(name)]
    settings.check_once(given, "the command line")
    for name, texts in options.items():
        is_list = len(texts) > 1 and settings.is_entry(settings.dotted(name))
        settings.give(name, texts if is_list else texts[-1], "the command line")
    return with_values(config, settings.values)


class _Settings:
    """The settings of a config tree, what a user may write for them, and the values that are given."""

    def __init__(self, config: Any, short: Mapping[str, str]) -> None:
        self.values: dict[str, Any] = {}
        self._short = short
        self._kinds = {setting.name: setting.kind for setting in leaves(config)}
        self._sections = {name[:i] for name in self._kinds for i, letter in enumerate(name) if letter == "."}
        self._dictionaries = [name for name, kind in self._kinds.items() if typing.get_origin(kind) is dict]

    def pairs(self, arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
        """The names and values of a command line."""
        rest = list(arguments)
        while rest:
            option = rest.pop(0)
            if not option.startswith("--"):
                raise UserError(f"{option!r} is not an option: write --name value, for example --steps 50")
            name, equals, value = option[2:].partition("=")
            following = rest[0] if rest else "--"
            if not equals and not following.startswith("--"):
                value = rest.pop(0)
            elif not equals and self._kinds.get(self.dotted(name)) is bool:
                value = "true"
            elif not equals:
                follows = f", and {following!r} is an option: a value like that is written --{name}={following}"
                raise UserError(f"--{name} needs a value{follows if rest else ''}")
            yield name, value

    def check_once(self, given: Iterable[tuple[str, Any]], source: str) -> None:
        """Check that a source gives each setting one value, under all of its names."""
        before: dict[str, tuple[str, Any]] = {}
        for name, value in given:
            dotted = self.dotted(name)
            other, first = before.get(dotted, (name, value))
            if first != value and not self.is_entry(dotted):
                raise UserError(
                    f"{source}: --{other} is {first!r} and --{name} is {value!r}, two values of one setting: give one"
                )
            before[dotted] = name, value

    def give(self, name: str, value: Any, source: str) -> None:
        """Set a value of a file or of the command line, converted to the type of the setting."""
        dotted, is_empty = self.dotted(name), value in (None, {})
        is_section = bool({name, dotted} & self._sections)
        if self.is_entry(dotted):
            self.values[dotted] = value
        elif dotted in self._dictionaries:
            if not is_empty and value != "{}":
                raise UserError(
                    f"{source}: --{name} is {value!r}; write one option for each entry: --{name}.NAME VALUE"
                )
            for entry in [entry for entry in self.values if entry.startswith(f"{dotted}.")]:
                del self.values[entry]
            self.values[dotted] = {}
        elif is_empty and is_section:
            pass  # it sets nothing
        elif dotted in self._kinds:
            self.values[dotted] = read_value(value, self._kinds[dotted], f"{source}: --{name}")
        elif is_section:
            raise UserError(f"{source}: there is no option --{name}: it is a section, write --{name}.NAME VALUE")
        else:
            nearest = self._nearest(dotted)
            hint = f"did you mean {nearest}? " if nearest else ""
            raise UserError(f"{source}: there is no option --{name}; {hint}--help lists them all")

    def dotted(self, name: str) -> str:
        """The dotted name of a short or relative name; an unknown name is returned unchanged."""
        name = name.replace("-", "_")
        head, _, rest = name.partition(".")
        section = self._short.get(head, "")
        return self._short.get(name, f"{section}.{rest}" if rest and section in self._sections else name)

    def is_entry(self, dotted: str) -> bool:
        """Whether this is the name of an entry of a dictionary."""
        return any(dotted.startswith(f"{name}.") for name in self._dictionaries)

    def is_text(self, name: str) -> bool:
        """Whether this is the name of a setting that is a text, such as a path, or a list."""
        kind = self._kinds.get(self.dotted(name))
        return kind is str or typing.get_origin(kind) is list

    def _nearest(self, dotted: str) -> str:
        """A name that is nearly the same, else the same setting of another section, else a similar name; or ""."""
        choices = [*self._short, *self._kinds, *self._sections]
        same = [name for name in self._kinds if name.endswith(f".{dotted.rpartition('.')[2]}")]
        tries = (choices, 0.8), (same, 0.0), (choices, 0.6)
        near = (name for names, cutoff in tries for name in get_close_matches(dotted, names, 1, cutoff))
        name = next(near, "")
        return f"the section {name}" if self.dotted(name) in self._sections else name and f"--{name}"


def _read_yaml(path: str) -> dict[str, Any]:
    import yaml

    class Loader(loader()):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names: set[str] = set()
            for key, _ in node.value:
                if (name := str(key.value)) in names:
                    line = key.start_mark.line + 1
                    raise UserError(f"{path}, line {line}: {name} is set a second time: leave one of them out")
                names.add(name)
            return super().construct_mapping(node, deep)

    if not Path(path).is_file():
        raise UserError(f"there is no config file {path}")
    try:
        data = yaml.load(Path(path).read_text(), Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not YAML: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} is not a mapping of sections such as training: {{steps: 50}}")
    return data


def flatten(data: Mapping[str, Any], whole: Collection[str] = (), prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of nested sections by dotted name; dictionaries with a name of `whole` stay whole."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value and f"{prefix}{key}" not in whole:
            yield from flatten(value, whole, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def check_bounds(config: Any) -> None:
    """Check that each number of a config is within the bounds of its field.

    Raises:
        UserError: for the first one that is not.
    """
    for setting in leaves(config):
        if setting.kind in (int, float) and (allowed := out_of_bounds(setting.value, setting.marks)):
            raise UserError(f"--{setting.name} is {setting.value}; it must be {allowed}")
