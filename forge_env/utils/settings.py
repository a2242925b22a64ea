"""Settings: fields of plain dataclasses with their bounds, and values that are read from text.

A setting says at its field what it may be: `steps: Annotated[int, Ge(1)] = 10`. The bounds are those of the package
annotated_types. `leaves` lists the settings of a tree of dataclasses, `with_values` makes a tree with other values,
`read_value` makes a typed value of a text, and `out_of_bounds` says what a number must be. pydantic converts; the
sentences for a mistake are from here.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import json
import math
import re
import textwrap
import typing
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from annotated_types import Ge, Gt, Interval, Le, Lt

from forge_env.core.errors import UserError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

LARGEST = 2**31 - 1
"""Of a whole number that has no bound of its own."""
_LISTS = (list, tuple, set, frozenset, Sequence)
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    dict: "a dictionary, in JSON",
    Mapping: "a dictionary, in JSON",
}
_ITEMS = {int: "whole numbers", float: "finite numbers", str: "texts"}


@dataclasses.dataclass(frozen=True, slots=True)
class Or:
    """A value that a number may have beside those within its bounds: `Annotated[int, Ge(1), Or(-1, "for all")]`."""

    value: float
    meaning: str


BY_CASE = -1
"""The value of a setting that has its default from what is run; only a setting with the mark `OR_BY_CASE` has it."""
OR_BY_CASE = Or(BY_CASE, "for the default")
MAY_CHANGE = "may change"
"""The mark of a setting, or of a section, that may differ when a run goes on from its checkpoint: where and how a run
computes, its length, and how it optimises. A run that differs in another setting would be another run."""

SEVERAL = "several"
"""The mark of a text that may be given several times."""


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    name: str
    """Dotted: "training.steps"."""
    kind: Any
    """Its type, without marks."""
    value: Any
    marks: tuple[Any, ...]
    """What its type is annotated with."""


def leaves(config: Any, prefix: str = "") -> list[Setting]:
    settings: list[Setting] = []
    for name, (kind, marks) in kinds_of(config.__class__).items():
        value = getattr(config, name)
        if dataclasses.is_dataclass(value):
            settings += leaves(value, f"{prefix}{name}.")
        else:
            settings.append(Setting(f"{prefix}{name}", kind, value, marks))
    return settings


def with_values(config: T, values: Mapping[str, Any]) -> T:
    """A copy of a tree of dataclasses with other values; the original stays as it is.

    Args:
        values: by the dotted names of settings, and of entries of settings that are dictionaries.
    """
    changes = {name: value for name, value in values.items() if "." not in name}
    inside: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        first, _, rest = name.partition(".")
        if rest:
            inside.setdefault(first, {})[rest] = value
    for name, others in inside.items():
        section = changes.get(name, getattr(config, name))
        changes[name] = with_entries(section, others) if isinstance(section, dict) else with_values(section, others)
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def with_entries(section: dict[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a dictionary with other entries; "a.b" is the entry b of the dictionary a."""
    section = dict(section)
    for name, value in entries.items():
        first, _, rest = name.partition(".")
        inner = section.get(first, {})
        if rest and not isinstance(inner, dict):
            raise UserError(f"{first} is {inner!r}, and {name} is given as an entry of it: give one")
        section[first] = with_entries(inner, {rest: value}) if rest else value
    return section


def values_of(section: Any, part: type[Any]) -> dict[str, Any]:
    """The values of a section for the fields of a dataclass that it is made of."""
    return {field.name: getattr(section, field.name) for field in dataclasses.fields(part)}


@typing.runtime_checkable
class Checked(typing.Protocol):
    """A section that checks its settings together; bounds of one setting are marks of its field."""

    def check(self) -> None:
        """Raise UserError if they contradict each other."""
        ...


def checked_sections(config: Any) -> list[Checked]:
    """The sections of a tree of dataclasses that check themselves, in the order of their fields."""
    sections = (getattr(config, field.name) for field in dataclasses.fields(config))
    return [section for section in sections if dataclasses.is_dataclass(section) and isinstance(section, Checked)]


def may_change(config: Any, prefix: str = "") -> list[str]:
    """List the settings and sections that are marked with `MAY_CHANGE`."""
    names: list[str] = []
    for name, (_, marks) in kinds_of(config.__class__).items():
        if MAY_CHANGE in marks:
            names.append(f"{prefix}{name}")
        elif dataclasses.is_dataclass(section := getattr(config, name)):
            names += may_change(section, f"{prefix}{name}.")
    return names


@functools.cache
def kinds_of(section: type[Any]) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """The type and the marks of each field of a dataclass.

    A field that is declared again has the marks of both declarations; of two bounds the later one counts.
    """
    kinds: dict[str, tuple[Any, tuple[Any, ...]]] = {}
    for part in reversed(section.__mro__):
        if not dataclasses.is_dataclass(part):
            continue
        hints = typing.get_type_hints(part, include_extras=True)
        for name in inspect.get_annotations(part):
            hint = hints[name]
            kind, *marks = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else [hint]
            kinds[name] = (kind, tuple(dict.fromkeys([*marks, *kinds.get(name, (None, ()))[1]])))
    return {field.name: kinds[field.name] for field in dataclasses.fields(section)}


def texts_of(section: type[Any]) -> dict[str, str]:
    """The text below each field of a dataclass; a field that is declared again has the texts of both declarations."""
    docs: dict[str, str] = {}
    for part in filter(dataclasses.is_dataclass, reversed(section.__mro__)):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        assert isinstance(body, ast.ClassDef)
        for line, below in pairwise([*body.body, None]):
            match line, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = " ".join(f"{docs.get(name, '')} {text}".split())
    return docs


def out_of_bounds(value: float, marks: Sequence[Any]) -> str:
    """What a number must be, in words, if it is not within the bounds of its marks; "" if it is."""
    low, high = _bounds(marks)
    is_within = not (
        (isinstance(low, Ge) and not value >= low.ge)  # type: ignore[operator]
        or (isinstance(low, Gt) and not value > low.gt)  # type: ignore[operator]
        or (isinstance(high, Le) and not value <= high.le)  # type: ignore[operator]
        or (isinstance(high, Lt) and not value < high.lt)  # type: ignore[operator]
    )
    if not is_within and value not in [mark.value for mark in marks if isinstance(mark, Or)]:
        return bounds_of(marks)
    if isinstance(value, int) and value > LARGEST:
        return f"at most {LARGEST}"
    if value in (math.inf, -math.inf):
        return "finite"
    return ""


def bounds_of(marks: Sequence[Any]) -> str:
    """The bounds of a number in words, such as "at least 1, or -1 for the default"; "" if it has none."""
    others = [f"{_short(mark.value)} {mark.meaning}" for mark in marks if isinstance(mark, Or)]
    return ", or ".join(filter(None, [_range(*_bounds(marks)), *others]))


def _bounds(marks: Sequence[Any]) -> tuple[Ge | Gt | None, Le | Lt | None]:
    parts = [part for mark in marks for part in (mark if isinstance(mark, Interval) else [mark])]
    low = next((part for part in parts if isinstance(part, Ge | Gt)), None)
    return low, next((part for part in parts if isinstance(part, Le | Lt)), None)


def _range(low: Ge | Gt | None, high: Le | Lt | None) -> str:
    if isinstance(low, Ge) and isinstance(high, Le):
        return f"from {_short(low.ge)} to {_short(high.le)}"
    words = [f"at least {_short(low.ge)}" if isinstance(low, Ge) else f"above {_short(low.gt)}"] if low else []
    words += [f"at most {_short(high.le)}" if isinstance(high, Le) else f"below {_short(high.lt)}"] if high else []
    return " and ".join(words)


def _short(number: Any) -> str:
    return str(int(number)) if number == int(number) else f"{number:g}"


def read_value(value: Any, kind: Any, where: str) -> Any:
    """Convert a text, or a value of a YAML file, to a type.

    A text is what it says: "7" is a whole number, "yes" is true, "a, b" is a list, and a dictionary is JSON. A value
    that is not text has to be of the type already, but a number may be a text, 7.0 is the whole number 7, and 1 and 0
    are true and false.

    Args:
        kind: a type such as `int`, `list[str]`, `Literal["a", "b"]` or `Annotated[int, Ge(1)]`.
    """
    plain, marks = _plain(kind)
    value = plain_number(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    text = str(value) if isinstance(value, str) or (is_number and plain in (str, bool)) else None
    if plain is int or int in typing.get_args(plain):
        value = _whole(value)
    try:
        if text is None:
            return _adapter(kind).validate_python(value, strict=True)
        return _adapter(kind).validate_python(_items(text, plain))
    except (ValueError, RecursionError) as error:  # a text may be nested too deeply for JSON
        bounds = ", ".join(filter(None, [_in_words(plain), _range(*_bounds(marks))]))
        reason = f"; it must be {bounds}" if bounds else f": {_first(error)}"
        raise UserError(f"{where} is {value!r}{reason}") from None


def plain_number(value: Any) -> Any:
    """A number of numpy or torch as one of Python; another value as it is."""
    return value.item() if getattr(value, "shape", None) == () else value


def _whole(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_whole, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def check_choices(config: Any) -> None:
    """Check that each setting of a tree of dataclasses that has choices is one of them; a parser has read them so."""
    for setting in leaves(config):
        if typing.get_origin(setting.kind) is typing.Literal and setting.value not in typing.get_args(setting.kind):
            raise UserError(f"{setting.name} is {setting.value!r}; it must be {_in_words(setting.kind)}")


def spell(choice: str) -> str:
    return choice or '""'


def _items(text: str, kind: Any) -> Any:
    origin = typing.get_origin(kind) or kind
    if origin in _LISTS and re.match(r"\s*\[\s*[\[{\"]", text):
        return json.loads(text)
    if origin in _LISTS:  # "[]" is none, as --dry-run shows it
        return [item.strip() for item in text.strip().strip("[]").split(",") if item.strip()]
    if origin in (dict, Mapping):
        return json.loads(text)
    return text if origin in (str, typing.Literal) else text.strip()


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter  # slow import, which a module of settings alone does not need
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False))
    except PydanticUserError:  # a model of pydantic has a config of its own
        return TypeAdapter(kind)


def _plain(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without marks and None, and its marks: of `Annotated[int, Ge(1)] | None` int and Ge(1)."""
    parts = [part for part in typing.get_args(kind) if part is not type(None)]
    if type(None) in typing.get_args(kind) and len(parts) == 1:
        return _plain(parts[0])
    if typing.get_origin(kind) is typing.Annotated:
        return parts[0], tuple(parts[1:])
    return kind, ()


def _in_words(kind: Any) -> str:
    origin, parts = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is typing.Literal:
        return f"one of: {', '.join(spell(str(choice)) for choice in parts)}"
    if origin in _LISTS:
        items = _ITEMS.get(parts[0] if parts else str, "")
        return items and f"{items}, with commas between them"
    return _WORDS.get(origin, "")


def _first(error: Exception) -> str:
    return str(error.errors()[0]["msg"]) if hasattr(error, "errors") else str(error)
