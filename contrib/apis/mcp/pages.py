"""Lists all pages of tools that a server has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from forge_env.core.errors import ServiceError

T = TypeVar("T")
MAX_PAGES = 1000


async def all_pages(
    ask: Callable[[str | None], Awaitable[tuple[Sequence[tuple[str, T]], str | None]]], of: str
) -> list[T]:
    """Return the tools of all pages. A page is the last one if it names no next one; "" is a name as any other."""
    tools, names = list[T](), set[str]()
    cursor: str | None = None
    cursors = set[str]()
    while True:
        page, next_cursor = await ask(cursor)
        if cursor == next_cursor == "" and {name for name, _ in page} <= names:
            return tools  # many servers write "" for the end, and begin again
        tools += [tool for name, tool in page if name not in names]  # pages may overlap
        names |= {name for name, _ in page}
        cursor = next_cursor
        if cursor is None:
            return tools
        if cursor in cursors or len(cursors) == MAX_PAGES:
            end = f"names the page {cursor[:100]!r} twice" if cursor in cursors else f"has over {MAX_PAGES} pages"
            raise ServiceError(f"the list of tools of {of} {end}, so it has no end")
        cursors.add(cursor)
