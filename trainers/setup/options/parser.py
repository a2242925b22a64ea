"""Command lines and YAML files to a config: one tree of typed dataclasses with dotted names.

This module finds the names, and for a wrong one the nearest, first among names of TRL, verl, OpenRLHF, verifiers,
prime-rl and torchforge. `forge_env.utils.settings` converts the values. tyro and pydantic-settings refuse entries
of dictionaries by name (`--env.options.level 2`) and short names of sections, and tell a mistake in several lines.
"""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from forge_env.core.errors import UserError
from forge_env.utils.secret_values import masked
from forge_env.utils.settings import SEVERAL, leaves, out_of_bounds, read_value, with_values
from forge_env.utils.yaml_text import strict_loader
from trainers.setup.mixture import listed

C = TypeVar("C")
ALGORITHM = "ALGORITHM"
"""Stands for the section of the run's algorithm, such as "grpo"."""
OUR_NAMES: dict[str, str] = tomllib.loads(Path(__file__).with_name("other_names.toml").read_text(encoding="utf-8"))
"""Our name -> the names of others, with as many parts from the right as tell them apart. Of several that lead to ours
the first counts that a run has: reinforcement learning has no epochs. Nothing here does what the last ones do."""


def parse(
    config_class: type[C],
    arguments: Sequence[str],
    short: Mapping[str, str],
    *,
    old_values: Mapping[str, Any] | None = None,
    settings: Sequence[Mapping[str, Any]] = (),
) -> C:
    """Build a config from command-line arguments, or from settings in Python.

    Args:
        config_class: a dataclass of dataclasses, all with defaults.
        arguments: `--name value` or `--name=value`; `--name` alone is true. `--config FILE` reads YAML first. A dash
            within a name is an underscore. The last of several numbers or choices counts; two texts of one setting are
            refused, for they look like a list. An entry of a dictionary gets a list of all. A file gives each once.
        short: short name -> dotted name of a setting or of a section, for example {"steps": "training.steps",
            "trainer": "services.trainer"}: then `--trainer.procs 2` sets services.trainer.procs.
        old_values: values in the place of defaults, nested as `dataclasses.asdict` returns them.
        settings: values like those of files, by dotted names, nested, or both.
    """
    config = config_class()
    tree, options = _Settings(config, short), dict[str, list[str]]()
    for name, text in tree.pairs(arguments):
        name = tree.full_name(name) if tree.is_several(name) else name
        options[name] = [*options.pop(name, ()), text]
    several = [_Given(name, options.pop(name)) for name in [*options] if tree.is_several(name) and options[name][1:]]
    files = [(path, _read_yaml(path, tree.is_whole)) for path in options.pop("config", ())]
    before, in_python = (
        [_Given(name, value) for items in many for name, value in flatten(items, tree.is_whole)]
        for many in ([old_values or {}], settings)
    )
    for source, items in [("the saved config", before), *files, ("settings", in_python)]:
        tree.check_once(items, source)
        tree.give_all(items, source)
    texts = [_Given(name, text) for name, items in options.items() for text in items if tree.is_text(name)]
    entries = [_Given(name, items[-1]) for name, items in options.items() if tree.is_entry(tree.full_name(name))]
    tree.check_once([*texts, *entries], "the command line")
    lists = {name: len(values) > 1 and tree.is_entry(tree.full_name(name)) for name, values in options.items()}
    last = [_Given(name, values if lists[name] else values[-1]) for name, values in options.items()]
    tree.give_all([*several, *last], "the command line")
    return with_values(config, tree.values)


class _Given(NamedTuple):
    """A setting as a source gives it; of a file also the line."""

    name: str
    value: Any
    line: int = 0


class _Settings:
    """The settings of a config tree, what a user may write for them, and the values that are given."""

    def __init__(self, config: Any, short: Mapping[str, str]) -> None:
        self.values: dict[str, Any] = {}
        self._short = short
        self._algorithm: str = getattr(config, "algorithm_name", "")
        self._kinds = {setting.name: setting.kind for setting in leaves(config)}
        self._several = {setting.name for setting in leaves(config) if SEVERAL in setting.marks}
        self._sections = {name[:i] for name in self._kinds for i, letter in enumerate(name) if letter == "."}
        self._dictionaries = [name for name, kind in self._kinds.items() if typing.get_origin(kind) is dict]

    def pairs(self, arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
        rest = list(arguments)
        while rest:
            option = rest.pop(0)
            if not option.startswith("--"):
                raise UserError(f"{option!r} is not an option: write --name value, for example --steps 50")
            name, equals, value = option[2:].partition("=")
            following = rest[0] if rest else "--"
            if not equals and not following.startswith("--"):
                value = rest.pop(0)
            elif not equals and self._kinds.get(self.full_name(name)) is bool:
                value = "true"
            elif not equals:
                if not self._is_known(name):
                    raise self._unknown(name, "the command line")
                follows = f", and {following!r} is an option: a value like that is written --{name}={following}"
                raise UserError(f"--{name} needs a value{follows if rest else ''}")
            yield name, value

    def check_once(self, items: Iterable[_Given], source: str) -> None:
        before: dict[str, _Given] = {}
        for now in items:
            full_name = self.full_name(now.name)
            if self._sets_nothing(now.name, now.value):
                continue
            parts = [full_name[:i] for i, letter in enumerate(f"{full_name}.") if letter == "."]
            other = next((before[part] for part in parts if part in before), now)
            if self.is_entry(full_name):  # a dictionary, and an entry of it
                other = next((one for name, one in before.items() if name.startswith(f"{full_name}.")), other)
            if other is not now and other.value != now.value:
                lines = f", lines {other.line} and {now.line}" if now.line else ""
                first, second = (f"--{one.name} is {masked(one.value, full_name.split('.'))!r}" for one in (other, now))
                raise UserError(f"{source}{lines}: {first} and {second}, two values of one setting: give one")
            before[full_name] = now

    def give_all(self, items: Sequence[_Given], source: str) -> None:
        """Set values, the names of environments first: other environments have none of the settings in `mixture`."""
        for name, value, _ in sorted(items, key=lambda one: not self.is_several(one.name)):
            is_several = self.is_several(name)
            settings = listed(value) if is_several and isinstance(value, list) else {name: value}
            if is_several and self.values.get(self.full_name(name)) != next(iter(settings.values())):
                self._forget("mixture")
            for setting, text in settings.items():
                self.give(setting, text, source)

    def give(self, name: str, value: Any, source: str) -> None:
        """Set a value of a file or of the command line, converted to the type of the setting."""
        full_name = self.full_name(name)
        if self._sets_nothing(name, value):
            return
        if self.is_entry(full_name):
            self._forget(full_name)
            self.values[full_name] = value
        elif full_name in self._dictionaries:
            if value not in ({}, "{}"):
                raise UserError(
                    f"{source}: --{name} is {value!r}; write one option for each entry: --{name}.NAME VALUE"
                )
            self._forget(full_name)
            self.values[full_name] = {}
        elif full_name in self._kinds:
            self.values[full_name] = read_value(value, self._kinds[full_name], f"{source}: --{name}")
        elif {name, full_name} & self._sections:
            raise UserError(f"{source}: there is no option --{name}: it is a section, write --{name}.NAME VALUE")
        else:
            raise self._unknown(name, source)

    def _is_known(self, name: str) -> bool:
        full_name = self.full_name(name)
        names = self._kinds.keys() | self._sections | {"config"}
        return full_name in names or name in self._sections or self.is_entry(full_name)

    def _unknown(self, name: str, source: str) -> UserError:
        nearest = self._nearest(self.full_name(name))
        hint = f"did you mean {nearest}? " if nearest else ""
        return UserError(f"{source}: there is no option --{name}; {hint}--help lists them all")

    def full_name(self, name: str) -> str:
        """The dotted name of a short or relative name; an unknown name is returned unchanged."""
        name = name.replace("-", "_")
        head, _, rest = name.partition(".")
        section = self._short.get(head, "")
        return self._short.get(name, f"{section}.{rest}" if rest and section in self._sections else name)

    def is_entry(self, full_name: str) -> bool:
        return any(full_name.startswith(f"{name}.") for name in self._dictionaries)

    def is_whole(self, name: str) -> bool:
        """Whether a file's dictionary of this name is a value, and no section."""
        return self.is_entry(self.full_name(name))

    def _sets_nothing(self, name: str, value: Any) -> bool:
        """Whether this is a section without settings, or a dictionary without a value."""
        full_name = self.full_name(name)
        if {name, full_name} & self._sections:
            return value in (None, {})
        return value is None and full_name in self._dictionaries

    def _forget(self, full_name: str) -> None:
        """Drop the values of an entry, or of a dictionary, with all that it holds."""
        for name in [name for name in self.values if f"{name}.".startswith(f"{full_name}.")]:
            del self.values[name]

    def is_several(self, name: str) -> bool:
        return self.full_name(name) in self._several

    def is_text(self, name: str) -> bool:
        kind = self._kinds.get(self.full_name(name))
        return kind is str or typing.get_origin(kind) is list

    def _nearest(self, full_name: str) -> str:
        choices, leaf = [*self._short, *self._kinds, *self._sections], full_name.rpartition(".")[2]
        if (ours := our_name(full_name, self._algorithm, self._kinds)) or leaf in names_of_others():
            return ours and f"--{ours}"
        usual = ("training", self._algorithm, "env")  # of several sections that have such a setting
        kinds = sorted(self._kinds, key=lambda name: name.partition(".")[0] not in usual)
        leaves = {name.rpartition(".")[2]: name for name in reversed(kinds)}
        same = [name for name in kinds if name.rpartition(".")[2] == leaf]
        near = next(iter(get_close_matches(leaf, [*leaves, *names_of_others()], 1, 0.8)), "")
        tries = (
            same[: leaf == full_name],
            get_close_matches(full_name, choices, 1, 0.8),
            get_close_matches(full_name, same, 1, 0.0),
            [leaves.get(near) or our_name(near, self._algorithm, self._kinds)],
            get_close_matches(full_name, choices, 1, 0.6),
        )
        name = next((name for names in tries for name in names if name), "")
        return f"the section {name}" if self.full_name(name) in self._sections else name and f"--{name}"


def _read_yaml(path: str, is_whole: Callable[[str], bool]) -> list[_Given]:
    """The settings of a file; `is_whole` says for a name whether its dictionary is one value."""
    import yaml

    class Loader(strict_loader(path)):  # type: ignore[misc]
        def settings(self, node: Any, prefix: str = "") -> Iterator[_Given]:
            for key, value in self.once(node).value:
                name = f"{prefix}{key.value}"
                if isinstance(value, yaml.MappingNode) and value.value and not is_whole(name):
                    yield from self.settings(value, f"{name}.")
                else:
                    yield _Given(name, self.construct_object(value, deep=True), key.start_mark.line + 1)

    if not Path(path).is_file():
        raise UserError(f"there is no config file {path}")
    try:
        reader = Loader(Path(path).read_text())
        node = reader.get_single_node()
        if isinstance(node, yaml.MappingNode):
            return list(reader.settings(node))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not YAML: {error}") from None
    raise UserError(f"{path} is not a mapping of sections such as training: {{steps: 50}}")


def flatten(
    data: Mapping[str, Any], is_whole: Callable[[str], bool] = lambda name: False, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """The settings of nested sections by dotted name; see `_read_yaml` for `is_whole`."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value and not is_whole(f"{prefix}{key}"):
            yield from flatten(value, is_whole, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def check_bounds(config: Any) -> None:
    """Check that each number of a config is within the bounds of its field."""
    for setting in leaves(config):
        if setting.kind in (int, float) and (allowed := out_of_bounds(setting.value, setting.marks)):
            raise UserError(f"--{setting.name} is {setting.value}; it must be {allowed}")


def names_of_others() -> list[str]:
    return [name for names in OUR_NAMES.values() for name in names.split()]


def our_name(theirs: str, algorithm: str, known: Collection[str]) -> str:
    """Our name of a setting that has another name elsewhere; "" if there is none in this run.

    >>> our_name("actor_rollout_ref.rollout.n", "grpo", {"grpo.n_samples"})
    'grpo.n_samples'

    Args:
        theirs: a dotted name. Its last parts count, as many as are known; a section of ours stays.
    """
    parts = theirs.split(".")
    for name in (".".join(parts[i:]) for i in range(len(parts))):
        ours = [ours.replace(ALGORITHM, algorithm) for ours, names in OUR_NAMES.items() if name in names.split()]
        same_section = [f"{parts[0]}.{one.rpartition('.')[2]}" for one in ours]
        if here := [one for one in (*same_section, *ours) if one in known]:
            return here[0]
    return ""
