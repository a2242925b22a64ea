"""YAML with the scalars of YAML 1.2: true and false are booleans, numbers are decimal, other values stay text.

PyYAML reads the scalars of YAML 1.1, which guesses: `no` and `on` are booleans, `12:30` and `012` are 750 and 10,
`2024-03-01` is a date, and `1e-6` is a text.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, ClassVar

from forge_env.core.errors import UserError

_SCALARS = (
    ("null", r"(?:~|null|Null|NULL|)$", ("~", "n", "N", "")),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"(?:[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+)$", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))$",
        "-+.0123456789",
    ),
    ("float", r"\.(?:nan|NaN|NAN)$", "."),
    ("merge", "<<$", "<"),
)
"""Tag, pattern and first characters of the scalars of YAML 1.2 that are not text; `<<` is of 1.1, and in wide use."""
_MOST_DEPTH = 100
"""PyYAML's reader in C ends the whole process at a depth of some thousands."""


def read_yaml(text: str, settings_of: str = "") -> Any:
    """Raises yaml.YAMLError, and RecursionError for values that are nested too deeply."""
    import yaml

    return yaml.load(text, Loader=strict_loader(settings_of) if settings_of else loader())


def read_yaml_file(file: Path, *, is_strict: bool = False) -> Any:
    import yaml

    try:
        return read_yaml(file.read_text(encoding="utf-8"), str(file) if is_strict else "")
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None


def write_yaml(data: Any) -> str:
    """Return plain data as YAML that reads back the same with the scalars of 1.1 and of 1.2."""
    import yaml

    return str(yaml.dump(data, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=10**9))


@functools.cache
def loader() -> Any:
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}
        depth = 0

        def descend_resolver(self, parent: Any, index: Any) -> None:
            self.depth += 1
            if self.depth > _MOST_DEPTH:
                raise RecursionError(f"values are nested more than {_MOST_DEPTH} deep")

        def ascend_resolver(self) -> None:
            self.depth -= 1

    _add_scalars(Loader)
    Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node), 0))
    return Loader


def strict_loader(path: str) -> Any:
    """Return a class that reads the YAML of settings: a `UserError` names the file in which a key is set twice."""

    class Loader(loader()):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            return super().construct_mapping(self.once(node), deep)

        def once(self, node: Any) -> Any:
            """The mapping, once it names each of its keys only once."""
            lines: dict[str, int] = {}
            for key, _ in node.value:
                name, line = str(key.value), key.start_mark.line + 1
                if name in lines:
                    first = lines[name]
                    raise UserError(f"{path}, lines {first} and {line}: {name} is set twice: leave one of them out")
                lines[name] = line
            self.flatten_mapping(node)  # merged keys come first, and own ones replace them
            node.value = list({str(pair[0].value): pair for pair in node.value}.values())
            return node

    return Loader


@functools.cache
def _dumper() -> Any:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes a text that is a value for either version."""

    _add_scalars(Dumper)
    return Dumper


def _add_scalars(kind: Any) -> None:
    for tag, pattern, first in _SCALARS:
        kind.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))
