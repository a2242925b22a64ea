"""Parses Python source in a process with several threads."""

from __future__ import annotations

import ast
from typing import Any

_ATTEMPTS = 20


def parse_python(source: str | bytes, filename: str = "<unknown>", *, mode: str = "exec") -> Any:
    """Do what `ast.parse` does, correctly in every thread.

    Before Python 3.13 the interpreter counts the depth of the tree in one place for all threads. Another thread that
    parses meanwhile, or a finalizer, lets `ast.parse` raise SystemError ("AST constructor recursion depth mismatch")
    for correct source, about once in 100,000 calls under load. The next attempt succeeds.
    """
    for _ in range(_ATTEMPTS):
        try:
            return ast.parse(source, filename, mode)
        except SystemError as error:
            if "recursion depth mismatch" not in str(error):
                raise
    return ast.parse(source, filename, mode)
