"""What --help prints: what most people set, then every setting with its default, its docstring and its bounds."""

from __future__ import annotations

import dataclasses
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

from forge_env.utils.settings import bounds_of, kinds_of, spell, texts_of
from trainers.config import SHORT_OPTIONS, RunConfig

FIRST = {
    "What most people set: the model and its tasks": "model.path lora.rank env.name env.options dataset.path sft.data",
    "How it is trained": """training.steps training.learning_rate training.batch_size {algorithm}.n_samples
        {algorithm}.beta env.max_turns env.max_turn_tokens env.max_tokens sft.epochs""",
    "Where it runs, and what is kept": """services.trainer.procs services.generator.procs output resume
        checkpoint.interval evaluation.interval""",
}
"""Settings by their purpose; a trainer leaves out the ones that it does not have."""


def usage(config_class: type[RunConfig]) -> str:
    """The help of a trainer: `FIRST`, then section by section."""
    config = config_class()
    settings = {name: (value, text) for name, value, text in _settings(config)}
    short = {full_name: name for name, full_name in SHORT_OPTIONS.items()}
    lines = [
        "Options: --NAME VALUE or --NAME=VALUE; what is true or false may leave the value out.",
        "--config FILE reads a YAML file first, --dry-run prints what would run and starts nothing.",
    ]
    for title, names in FIRST.items():
        lines += ["", f"{title}:"]
        for name in filter(settings.__contains__, names.format(algorithm=config.algorithm_name).split()):
            value, text = settings[name]
            lines += _entry(f"--{short.pop(name, name)} {value!r}", text.partition(". ")[0])
    lines += ["", "Other short names:"]
    for name, abbreviation in short.items():
        of_section = ".NAME" if name in settings and dataclasses.is_dataclass(settings[name][0]) else ""
        lines.append(f"  --{abbreviation + of_section:<16} {name + of_section}")
    lines += ["", "All settings and their defaults:"]
    for name, (value, text) in settings.items():
        if dataclasses.is_dataclass(value):
            lines += ["", f"{name}:", *textwrap.wrap(text, 118, initial_indent="  ", subsequent_indent="  ")]
        else:
            lines += _entry(f"--{name} {value!r}", text)
    return "\n".join(lines)


def _entry(option: str, text: str) -> list[str]:
    return [f"  {option}", *textwrap.wrap(text, 118, initial_indent=" " * 8, subsequent_indent=" " * 8)]


def _settings(section: Any, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Name, value and text of each setting, and of each section before its settings; the text says what is allowed."""
    docs = texts_of(type(section))
    for name, (kind, marks) in kinds_of(section.__class__).items():
        value, bounds = getattr(section, name), bounds_of(marks)
        if typing.get_origin(kind) is typing.Literal:
            bounds = f"one of: {', '.join(map(spell, typing.get_args(kind)))}"
        sentence = f"{bounds[0].upper()}{bounds[1:]}." if bounds else ""
        yield f"{prefix}{name}", value, f"{docs.get(name, '')} {sentence}".strip()
        if dataclasses.is_dataclass(value):
            yield from _settings(value, f"{prefix}{name}.")
