"""Command lines of tests."""

from __future__ import annotations


def with_changes(options: list[str], changes: tuple[str, ...]) -> list[str]:
    """Options of one value each, of which `changes` may give some another value."""
    pairs = zip(options[::2], options[1::2], strict=True)
    return [text for flag, value in pairs if flag not in changes for text in (flag, value)] + list(changes)
