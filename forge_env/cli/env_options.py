"""Options of an environment on a command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forge_env.core.errors import UserError
from forge_env.utils.secret_values import masked
from forge_env.utils.settings import with_entries


def parse_options(option: Sequence[str], tools: Sequence[str] = (), command: str = "") -> dict[str, Any]:
    """Parse name=value pairs; `tools` and `command` are options that have a command-line option of their own.

    The name "headers.a" is the entry a of the dictionary that is the option headers.
    """
    pairs: list[tuple[str, Any]] = []
    for text in option:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UserError(f"--option {text!r} is not of the form name=value, for example --option level=2")
        pairs.append((name, value))
    if tools:
        pairs.append(("tools", tools[0] if len(tools) == 1 else list(tools)))  # one text may be a list with commas
    if command:
        pairs.append(("command", command))
    options = dict(reversed(pairs))
    for name, value in pairs:
        if options[name] != value:
            first, second = masked({name: options[name]}), masked({name: value})
            raise UserError(f"the option {name} is given twice, {first[name]!r} and {second[name]!r}: give one")
    return with_entries({}, dict(sorted(pairs, key=lambda pair: pair[0].count("."))))
