"""Regular expressions for text that a model or another program may write: they take time linear in its length.

Python's `re` takes exponential time for some pairs of pattern and text. These patterns are matched by pydantic's engine
(the crate regex, https://docs.rs/regex/latest/regex/#syntax), which has neither look-around nor back-references.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pydantic_core


@functools.lru_cache(1024)
def linear_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether a pattern matches anywhere in a text."""
    try:
        matcher = pydantic_core.SchemaValidator(pydantic_core.core_schema.str_schema(pattern=pattern))
    except pydantic_core.SchemaError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise ValueError(reason.removeprefix("error: ").removeprefix("SchemaError: ")) from None

    def matches(text: str) -> bool:
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode()  # half a surrogate pair is not text for the engine
        try:
            matcher.validate_python(text)
        except pydantic_core.ValidationError:
            return False
        return True

    return matches
