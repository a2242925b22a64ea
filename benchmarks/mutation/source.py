"""A mutant, and the place of its edit: found by the name of a function, so that moved files change nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

PACKAGES = ("forge_env", "agents", "envs", "sandboxes", "trainers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A mistake that the tests must notice: one edit of one function."""

    name: str
    """What is wrong then, in a few words; unique in the table."""
    function: str
    """Qualified name within its module, such as "Schedule.admits"; a class is named for its own body."""
    old: str
    """A fragment of the function's source, which occurs there once. White space between its words does not count."""
    new: str
    """What stands in its place."""
    tests: tuple[str, ...]
    """Base names of the test files that run, the likeliest first."""


class Lost(Exception):
    """A mutant's function, its fragment or its tests are not there any more; the text says which."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the edit goes: characters `start` to `end` of a file."""

    path: Path
    """Relative to the root of the tree."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Definition:
    """A function or class, decorators included: characters `start` to `end` of a file."""

    name: str
    path: Path
    start: int
    end: int


class Sources:
    """The source files of the packages below a root, and all functions and classes in them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.texts: dict[Path, str] = {}
        self._definitions: dict[str, list[_Definition]] = {}
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                self._read(path.relative_to(root))

    def locate(self, mutant: Mutant) -> Place:
        """Return the one place of a mutant's edit.

        Raises:
            Lost: when there is no such function, or its fragment occurs in none or in several places.
        """
        candidates = self._definitions.get(mutant.function, [])
        places = [place for definition in candidates for place in self._matches(definition, mutant.old)]
        if len(places) == 1:
            return places[0]
        if not candidates:
            raise Lost(f"there is no function {mutant.function}{self._hint(mutant)}")
        files = ", ".join(sorted({str(definition.path) for definition in candidates}))
        count = f"{len(places)} times" if places else "not"
        raise Lost(
            f"{mutant.old!r} occurs {count} in {mutant.function} ({files}){'' if places else self._hint(mutant)}"
        )

    def edited(self, mutant: Mutant) -> tuple[Path, str]:
        """Return the file of a mutant, relative to the root, and the text that it has then.

        Raises:
            Lost: see `locate`; also when the edit changes nothing, or leaves what is no Python.
        """
        place = self.locate(mutant)
        text = self.texts[place.path]
        changed = text[: place.start] + mutant.new + text[place.end :]
        try:
            same = ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text))
        except SyntaxError as error:
            raise Lost(f"{place.path} is no Python after the edit: {error}") from None
        if same:
            raise Lost(f"the edit leaves {place.path} as it is")
        return place.path, changed

    def _read(self, path: Path) -> None:
        text = (self.root / path).read_text(encoding="utf-8")
        self.texts[path] = text
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        for name, node in _definitions(ast.parse(text)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            assert node.end_lineno is not None
            definition = _Definition(name, path, starts[first - 1], starts[node.end_lineno])
            self._definitions.setdefault(name, []).append(definition)

    def _matches(self, definition: _Definition, fragment: str) -> list[Place]:
        text = self.texts[definition.path]
        matches = pattern(fragment).finditer(text, definition.start, definition.end)
        return [Place(definition.path, match.start(), match.end()) for match in matches]

    def _hint(self, mutant: Mutant) -> str:
        """Where the fragment stands elsewhere, for whoever mends the table."""
        holders: Mapping[str, None] = {
            f"{definition.name} in {definition.path}": None
            for definitions in self._definitions.values()
            for definition in definitions
            if self._matches(definition, mutant.old)
        }
        return f"; its text stands in {', '.join(list(holders)[:4])}" if holders else "; its text stands nowhere"


def _definitions(
    tree: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name, node
            yield from _definitions(node, f"{prefix}{node.name}.")
        else:
            yield from _definitions(node, prefix)


def pattern(fragment: str) -> re.Pattern[str]:
    """The pattern of a fragment: its words and signs in order, with any white space between them.

    >>> bool(pattern("f(a, b)").search("f(  a,\\n b )")), bool(pattern("a").search("ab"))
    (True, False)
    """
    lexemes = re.findall(r"\w+|[^\w\s]", fragment)
    parts = [re.escape(lexemes[0])]
    for before, after in pairwise(lexemes):
        both_words = _is_word(before) and _is_word(after)
        parts.append((r"\s+" if both_words else r"\s*") + re.escape(after))
    begin, end = (r"(?<!\w)" if _is_word(lexemes[0]) else ""), (r"(?!\w)" if _is_word(lexemes[-1]) else "")
    return re.compile(begin + "".join(parts) + end)


def _is_word(lexeme: str) -> bool:
    return re.fullmatch(r"\w+", lexeme) is not None
