"""Names of tools from several sources: one that is taken gets the label of its own source in front.

    shop.yaml has `search`, and so has the MCP server `python -m wiki`:  search, wiki_search

The sources are named in the order in which the user wrote them, so one that is added at the end renames nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import PurePath
from urllib.parse import urlsplit

_LONGEST_NAME, _LONGEST_LABEL = 64, 24


class ToolNames:
    """The names that tools have so far. Example: ``ToolNames().of("wiki.py:search", ["search"])``.

    Args:
        taken: names that are given already, to tools of no source.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def of(self, source: str, names: Iterable[str]) -> dict[str, str]:
        """Return the name of each tool of the next source, by the name that the source has for it."""
        listed = list(names)
        result = {name: name for name in listed if name not in self._taken}
        self._taken |= result.keys()
        for name in listed:
            if name not in result:
                result[name] = self._free(f"{label_of(source)}_{name}")
                self._taken.add(result[name])
        return result

    def _free(self, wanted: str) -> str:
        number, free = 1, wanted[:_LONGEST_NAME]
        while free in self._taken:
            number += 1
            free = f"{wanted[: _LONGEST_NAME - 1 - len(str(number))]}_{number}"
        return free


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
    """What a command line runs. Its further words are not looked at: there may be anything in them."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    if "-m" in words[1:-1]:
        return words[words.index("-m") + 1].rpartition(".")[2]
    plain = [word for word in words[1:] if not word.startswith("-")]
    return PurePath((plain or words or ["mcp"])[0]).stem
