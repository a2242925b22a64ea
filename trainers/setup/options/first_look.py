"""A first look at a command line: it refuses a typo before torch is imported, which takes seconds."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge_env.core.errors import UserError, nearest
from trainers.config import SHORT_OPTIONS, RunConfig
from trainers.objective.settings import AlgorithmConfig
from trainers.settings.supervised import SFTConfig
from trainers.setup.options.parser import parse

ALGORITHMS = ("cispo", "dapo", "gspo", "grpo", "reinforce", "sapo", "sft")
COMMANDS = (*ALGORITHMS, "trainers")
"""What `python -m trainers.NAME` starts, and `python -m trainers FILE.py:NAME`."""
_ELSEWHERE = {
    "ppo": "grpo",
    "rloo": "reinforce",
    "dr_grpo": "grpo",
    "drgrpo": "grpo",
    "reinforce_plus_plus": "reinforce",
}
"""Algorithms of others, and the nearest one here."""


def check_command(name: str, options: Sequence[str] = ()) -> None:
    """Check the name of an algorithm, and the names and types of its options."""
    if name not in COMMANDS:
        known = ", ".join(ALGORITHMS)
        hint = (
            f"Did you mean {_ELSEWHERE[name]}? Available: {known}." if name in _ELSEWHERE else nearest(name, ALGORITHMS)
        )
        raise UserError(
            f"there is no algorithm {name!r}. {hint} An algorithm of your own is started by "
            "python -m trainers my_file.py:MINE"
        )
    if name in ALGORITHMS and not {"-h", "--help"} & {*options}:
        section = SFTConfig if name == "sft" else _section(name)
        fields = [(name, section, dataclasses.field(default_factory=section))]
        parse(dataclasses.make_dataclass("Config", fields, bases=(RunConfig,), frozen=True), options, SHORT_OPTIONS)


def _section(name: str) -> type[Any]:
    """The section of an algorithm's settings, by the text of its file: its module imports torch."""
    text = (Path(__file__).parents[2] / f"{name}.py").read_text(encoding="utf-8")
    fields: list[Any] = []
    for part in ast.parse(text).body:
        if isinstance(part, ast.ClassDef) and [ast.unparse(base) for base in part.bases] == [AlgorithmConfig.__name__]:
            own = [line for line in part.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)]
            for line in own:
                kind = bool if ast.unparse(line.annotation) == "bool" else Any
                fields.append((line.target.id, kind, None))  # type: ignore[union-attr]
    return dataclasses.make_dataclass("Section", fields, bases=(AlgorithmConfig,), frozen=True, kw_only=True)
