"""Output of commands: text for people, or exactly one JSON object on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Annotated, Any

import typer

from forge_env.core.errors import ForgeError
from forge_env.utils.secret_values import masked_text

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else.")]
_has_ended = False


def emit(data: Any) -> None:
    sys.stdout.write(json.dumps(data, ensure_ascii=False, default=str) + "\n")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    sys.stderr.write(f"note: {text}\n")


def last_words(text: str) -> None:
    """Print a remark on stderr as the command is stopped; only the first of them, which knows most."""
    global _has_ended
    if not _has_ended:
        note(text)
    _has_ended = True


def fail(sentence: str, *, as_json: bool) -> None:
    """Print an error: one sentence on stderr, and in JSON mode on stdout too."""
    sentence = masked_text(" ".join(sentence.split()))
    sys.stderr.write(f"error: {sentence}\n")
    if as_json:
        with suppress(ForgeError):  # stdout cannot be written, and stderr has the sentence
            emit({"error": sentence})
            sys.stdout.flush()


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, whole: Sequence[int] = ()) -> None:
    """Print a table as wide as the terminal; long cells are wrapped, never cut.

    Args:
        whole: the columns that no narrow terminal may wrap, as they are narrow themselves.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False, collapse_padding=bool(whole))
    for number, column in enumerate(table.columns):
        column.overflow, column.no_wrap = "fold", number in whole
    for row in rows:
        table.add_row(*map(Text, row))  # Text: brackets are not markup
    Console().print(table)


def show_json(data: Any) -> None:
    from rich.console import Console

    Console(soft_wrap=True).print_json(data=data, default=str)


@contextmanager
def stdout_to_stderr(is_json: bool) -> Iterator[None]:
    """Redirect stdout to stderr within the block, so that stdout holds only the JSON object."""
    if not is_json:
        yield
        return
    sys.stdout.flush()
    stdout_copy = os.dup(1)
    os.dup2(2, 1)  # also for child processes and C libraries
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(stdout_copy, 1)
        os.close(stdout_copy)
