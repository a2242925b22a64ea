"""What --help prints: the short options, and every setting with its default, its docstring and its bounds."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Set
from typing import Any

from forge_env.utils.settings import bounds_of, kinds_of, leaves, shown
from trainers.config import SHORT_OPTIONS, RunConfig

_WIDTH = 118
_INDENT = " " * 8


def usage(config_class: type[RunConfig]) -> str:
    """The help of a trainer, section by section."""
    sections, settings = [], []
    config = config_class()
    for name, value, text in _fields(config):
        if dataclasses.is_dataclass(value):
            sections += _section(name, value, text)
        else:
            settings += _setting(name, value, text)
    return "\n".join(
        [
            "Options: --NAME VALUE or --NAME=VALUE; what is true or false may leave the value out.",
            "--config FILE reads a YAML file first, --dry-run prints what would run and starts nothing.",
            "",
            "Short names:",
            *_short_names({setting.name for setting in leaves(config)}),
            "",
            "Settings and their defaults:",
            *settings,
            *sections,
        ]
    )


def docs_of(section: type[Any]) -> dict[str, str]:
    """The text below each field of a dataclass, and of those that it is made of; "" if there is none.

    A field that is declared again, as with another default, has the texts of both declarations.
    """
    docs: dict[str, str] = {}
    for part in reversed(section.__mro__):
        if not dataclasses.is_dataclass(part):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        assert isinstance(body, ast.ClassDef)
        for line, following in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                texts = (docs.get(line.target.id, ""), _text(following))
                docs[line.target.id] = " ".join(filter(None, texts))
    return docs


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


def _fields(section: Any) -> list[tuple[str, Any, str]]:
    """Name, value and text of each field; the text says what a value may be."""
    docs, fields = docs_of(type(section)), []
    for name, (kind, marks) in kinds_of(section.__class__).items():
        allowed = bounds_of(marks)
        if typing.get_origin(kind) is typing.Literal:
            allowed = f"one of: {', '.join(map(shown, typing.get_args(kind)))}"
        sentence = f"{allowed[0].upper()}{allowed[1:]}." if allowed else ""
        fields.append((name, getattr(section, name), " ".join(filter(None, [docs.get(name, ""), sentence]))))
    return fields


def _section(name: str, section: Any, text: str) -> list[str]:
    lines = ["", f"{name}:", *textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="  ")]
    for field, value, text in _fields(section):
        make = _section if dataclasses.is_dataclass(value) else _setting
        lines += make(f"{name}.{field}", value, text)
    return lines


def _setting(name: str, value: Any, text: str) -> list[str]:
    return [f"  --{name} {value!r}", *textwrap.wrap(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)]


def _short_names(settings: Set[str]) -> list[str]:
    """One line for each; a short name that is no setting's is a section's."""
    lines = []
    for short, dotted in SHORT_OPTIONS.items():
        rest = "" if dotted in settings or dotted.startswith("env.options.") else ".NAME"
        lines.append(f"  --{short + rest:<16} {dotted + rest}")
    return lines
