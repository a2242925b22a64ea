"""Options of an environment on a command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forge_env.core.errors import UserError


def parse_options(option: Sequence[str], tools: Sequence[str] = (), command: str = "") -> dict[str, Any]:
    """Parse name=value pairs; `tools` and `command` are options that have a command-line option of their own.

    Raises:
        UserError: for a text that is not of the form name=value.
    """
    for text in option:
        if "=" not in text[1:]:
            raise UserError(f"--option {text!r} is not of the form name=value, for example --option level=2")
    options: dict[str, Any] = {name: value for name, _, value in (text.partition("=") for text in option)}
    if tools:
        options["tools"] = tools[0] if len(tools) == 1 else list(tools)  # one text may be a list with commas
    if command:
        options["command"] = command
    return options
