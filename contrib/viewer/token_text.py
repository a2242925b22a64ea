"""The text of single tokens, where the tokenizer of the run's model is available."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

MAX_TOKENS_PER_CHARACTER = 8
"""Tokens that may form one character together; beyond that the character counts as broken."""
_NO_TOKEN = 2**31 - 1


def token_texts(model: Path | None, token_ids: Sequence[Any]) -> list[str] | None:
    """Return the text of each token; None without a tokenizer, or where `tokenizers` is not installed.

    Of several tokens that form one character, the first has the character and the others have "".
    """
    tokenizer = None if model is None else _open_tokenizer(model)
    if tokenizer is None:
        return None
    texts: list[str] = []
    pending: list[int] = []
    for token in token_ids:
        pending.append(token if isinstance(token, int) and 0 <= token <= _NO_TOKEN else _NO_TOKEN)
        text = tokenizer.decode(pending, skip_special_tokens=False)
        if "\ufffd" in text and len(pending) < MAX_TOKENS_PER_CHARACTER:
            continue
        texts += [text, *[""] * (len(pending) - 1)]
        pending.clear()
    if pending:
        texts += [tokenizer.decode(pending, skip_special_tokens=False), *[""] * (len(pending) - 1)]
    return texts


@lru_cache(maxsize=4)
def _open_tokenizer(model: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    try:
        return Tokenizer.from_file(str(model / "tokenizer.json"))
    except Exception:  # tokenizers raises no narrower class
        return None
