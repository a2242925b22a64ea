"""Sizes on a command line."""

from __future__ import annotations

import re

from forge_env.core.errors import UserError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def size_in_bytes(text: str, option: str) -> int:
    """Read a size such as 256M. Raises UserError if it is none, or less than 16M."""
    match = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(match[1]) * _UNITS[match[2].upper()] if match else 0
    if size < 2**24:
        raise UserError(f"{option} is {text!r}; it must be a number with K, M or G and at least 16M, for example 256M")
    return size
