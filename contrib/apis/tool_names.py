"""Names of tools from several sources: a name that is taken gets the label of its source as a prefix.

    shop.yaml has `search`, and so has the MCP server `python -m wiki`:  search, wiki_search

Sources are named in the order in which the user wrote them, so a source added at the end renames no tool.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable
from pathlib import PurePath
from urllib.parse import urlsplit

_LONGEST_LABEL = 24


class ToolNames:
    """The names that are taken so far. Example: ``ToolNames().of("wiki.py:search", ["search"])``."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = set(names)

    def of(self, source: str, names: Iterable[str]) -> dict[str, str]:
        """Return the name of each tool of the next source, by the name that the source has for it."""
        names_of_source = list(names)
        result = {name: name for name in names_of_source if name not in self._names}
        self._names |= result.keys()
        for name in names_of_source:
            if name not in result:
                result[name] = free_name(f"{label_of(source)}_{name}", self._names)
                self._names.add(result[name])
        return result


def label_of(source: str) -> str:
    """Return a short name of a source.

    >>> label_of("openapi:pets/shop.yaml"), label_of("mcp:python -m my.wiki --port 3"), label_of("tools.py:search")
    ('shop', 'wiki', 'tools')
    """
    kind, _, rest = source.partition(":")
    if kind == "openapi":
        document = rest.partition("#")[0]
        label = _host(document) or PurePath(document).stem
    elif kind == "mcp":
        label = _host(rest) or _program(rest)
    else:
        label = PurePath(source.rpartition(":")[0] or source).name.removesuffix(".py").rpartition(".")[2]
    return re.sub(r"[^A-Za-z0-9]+", "_", label).strip("_")[:_LONGEST_LABEL] or "other"


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or "" if "://" in url else ""
    except ValueError:
        return ""


def _program(command: str) -> str:
    """Return the program of a command line. Its arguments are not read, since they may hold anything."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    if "-m" in words[1:-1]:
        return words[words.index("-m") + 1].rpartition(".")[2]
    plain = [word for word in words[1:] if not word.startswith("-")]
    return PurePath((plain or words or ["mcp"])[0]).stem


def free_name(name_hint: str, names: Collection[str]) -> str:
    """Return a name of 1 to 64 characters that the APIs of models accept, different from all other `names`."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", name_hint)[:64] or "tool"
    number, free = 1, name
    while free in names:
        number += 1
        free = f"{name[: 63 - len(str(number))]}_{number}"
    return free
