"""The text of tokens, one by one, where the run's model has a tokenizer at hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

LONGEST_CHARACTER = 8
"""Tokens that may share one character, before it is taken to be broken."""


def token_texts(model: Path | None, token_ids: Sequence[Any]) -> list[str] | None:
    """Return the text of each token; None where there is no tokenizer, or `tokenizers` is not installed.

    Where a character is spread over several tokens, the first has it and the others are empty.
    """
    tokenizer = None if model is None else _open(model)
    if tokenizer is None:
        return None
    texts: list[str] = []
    waiting: list[int] = []
    for token in token_ids:
        waiting.append(token if isinstance(token, int) and 0 <= token < 2**31 else 2**31 - 1)
        text = tokenizer.decode(waiting, skip_special_tokens=False)
        if "\ufffd" in text and len(waiting) < LONGEST_CHARACTER:
            continue
        texts += [text, *[""] * (len(waiting) - 1)]
        waiting.clear()
    if waiting:
        texts += [tokenizer.decode(waiting, skip_special_tokens=False), *[""] * (len(waiting) - 1)]
    return texts


@lru_cache(maxsize=4)
def _open(model: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    try:
        return Tokenizer.from_file(str(model / "tokenizer.json"))
    except Exception:  # tokenizers raises this class itself
        return None
