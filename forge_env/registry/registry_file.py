"""The registry file: names of environments and tools, written by `forge-env register`, in YAML for people to edit.

Example::

    add:
      kind: tools
      target: tools/arithmetic.py:add
      options: {timeout: 5.0}
      description: Add two numbers.

Paths inside the project's folder are relative to it. A change replaces only the lines of one entry, so that comments
stay. It is made under a lock, and the new file replaces the old one atomically.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from forge_env.core.errors import UserError, nearest
from forge_env.registry.contrib import is_source
from forge_env.registry.tool_sets import check_options
from forge_env.utils.atomic import locked, replace_file
from forge_env.utils.owners import path_problem, stat_problem
from forge_env.utils.targets import is_path, split_target
from forge_env.utils.yaml_text import loader, write_yaml

if TYPE_CHECKING:
    import yaml

Kind = Literal["env", "tools"]
FILE = Path(".forge_env") / "registry.yaml"
_HEADER = "# Names of environments and tools, written by `forge-env register`. Editing it by hand is fine.\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a name stands for.

    Example: ``Entry(name="add", kind="tools", target="/home/me/tools.py:add", source="project")``
    """

    name: str
    kind: Kind
    target: str
    """ "module:attribute", "/absolute/path/file.py:attribute", or a source, as "openapi:/absolute/shop.yaml#URL"."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of tools: fields of `ToolOptions` that override the `@tool` marks."""
    description: str = ""
    source: str = "process"
    """Origin of the name: "process", "project", "user", "package NAME" or "built-in"."""
    file: Path | None = None
    """The registry file that holds it, if any."""
    folder: Path | None = None
    """The project's folder, for imports of its modules, if there is one."""


class RegistryFile:
    """A file of entries, which need not exist.

    Args:
        path: the file.
        source: "project" or "user".
        below: only this user may be able to write to this folder and everything below it on the way to the file, see
            `problem`; None for a file that the user has named, which is not checked.
    """

    def __init__(self, path: Path, source: str, *, below: Path | None = None) -> None:
        self._given_path, self._below = path, below
        self.path = Path(os.path.realpath(path))  # a link is kept, and its target is changed
        self.source = source
        # The folder that holds `.forge_env`; for a file in another folder, that folder.
        self.folder = self.path.parent.parent if self.path.parent.name == FILE.parent.name else self.path.parent

    @property
    def problem(self) -> str:
        """One sentence with a remedy, if others than this user and root can change the file; else ""."""
        if self._below is None:
            return ""
        problem = path_problem(self._given_path, below=self._below)
        if not problem:
            return ""
        location, is_writable, _ = problem.partition(" can be written by ")
        remedy = f"`chmod go-w {location}`, or set" if is_writable else "set"
        is_there = os.path.exists(self.path)
        effect = f"{self.path} is not read" if is_there else "there is no place for a registry here"
        return (
            f"{effect}: {problem}, and the code that a registry names runs as you; {remedy} "
            f"FORGE_ENV_REGISTRY={self.path} if you trust all who can write there"
        )

    def read(self) -> dict[str, Entry]:
        """Return the entries by name, in the file's order."""
        return {name: entry for name, (entry, _) in self._parse(self._text()).items()}

    def add(self, entry: Entry, *, replace: bool = False) -> None:
        """Write an entry at the end, or in the place of the present one of that name."""

        def change(entries: dict[str, Entry]) -> None:
            old = entries.get(entry.name)
            if old is not None and not replace:
                raise UserError(
                    f"the name {entry.name!r} is taken by {old.target} in {self.path}: choose another one with --name, "
                    "or add --replace"
                )
            entries[entry.name] = entry

        self._change(entry.name, change)

    def remove(self, name: str) -> Entry:
        """Remove an entry and return it."""
        removed: list[Entry] = []

        def change(entries: dict[str, Entry]) -> None:
            if name not in entries:
                raise UserError(f"there is no {name!r} in {self.path}. {nearest(name, entries)}")
            removed.append(entries.pop(name))

        change(self.read())  # raises before a folder is created
        self._change(name, change)
        return removed[-1]

    def _change(self, name: str, change: Callable[[dict[str, Entry]], None]) -> None:
        with _report_write_errors(self.path), locked(self.path):
            text = self._text()
            old = self._parse(text)
            entries = {n: entry for n, (entry, _) in old.items()}
            change(entries)
            lines = text.splitlines(keepends=True) or [_HEADER]
            block = self._block(entries[name]) if name in entries else []
            first, last = old[name][1] if name in old else (len(lines), len(lines))
            if not lines[first - 1].endswith("\n"):
                lines[first - 1] += "\n"
            new = "".join([*lines[:first], *block, *lines[last:]])
            self._check(new, entries)
            replace_file(self.path, new)

    def _check(self, text: str, entries: Mapping[str, Entry]) -> None:
        """Check that a new text holds exactly these entries, whatever the style of the old text."""
        try:
            parsed = {name: _content(entry) for name, (entry, _) in self._parse(text).items()}
        except UserError:
            parsed = {}
        if parsed != {name: _content(entry) for name, entry in entries.items()}:
            raise UserError(
                f"{self.path} is written in a way that cannot be changed without losing some of it: give each name "
                "lines of its own, as in `add:` followed by the indented `kind: tools` and `target: tools.py:add`"
            )

    def _block(self, entry: Entry) -> list[str]:
        content: dict[str, Any] = {"kind": entry.kind, "target": self._relative(entry.target)}
        if entry.options:
            content["options"] = dict(entry.options)
        if entry.description:
            content["description"] = entry.description
        text = write_yaml({entry.name: content})
        return text.splitlines(keepends=True)

    def _relative(self, target: str) -> str:
        source, attribute = split_target(target)
        if not is_source(target) and is_path(source) and Path(source).is_relative_to(self.folder):
            return f"{Path(source).relative_to(self.folder)}:{attribute}"
        return target

    def _text(self) -> str:
        try:
            with self.path.open(encoding="utf-8") as file:
                # Check the opened file: the path may have been replaced since it was checked.
                if self._below is not None and (problem := stat_problem(os.fstat(file.fileno()))):
                    raise UserError(f"{self.path} {problem}: it is not read")
                return file.read()
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise UserError(f"{self.path}, line {line}: it is not UTF-8 text: correct it or remove it") from None
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror}") from None

    def _parse(self, text: str) -> dict[str, tuple[Entry, tuple[int, int]]]:
        """Return the entries by name, each with its first line and the line after its last."""
        if not text:
            return {}
        root = _compose(self.path, text)
        entries: dict[str, tuple[Entry, tuple[int, int]]] = {}
        lines = text.splitlines()
        for key, value in _pairs(self.path, root):
            name, first = str(key.value), key.start_mark.line
            if name in entries:
                raise UserError(f"{self.path}, line {first + 1}: the name {name!r} is there twice: remove one of them")
            last = value.end_mark.line + (value.end_mark.column > 0)
            while last > first + 1 and (not lines[last - 1].strip() or lines[last - 1].startswith("#")):
                last -= 1
            entries[name] = self._entry(name, value), (first, last)
        return entries

    def _entry(self, name: str, node: yaml.Node) -> Entry:
        fields = {key.value: value for key, value in _pairs(self.path, node, f"the entry {name!r}")}
        for key in fields.keys() - {"kind", "target", "options", "description"}:
            known = nearest(key, ["kind", "target", "options", "description"])
            raise UserError(f"{self._at(fields[key])}: the entry {name!r} has no field {key!r}. {known}")
        kind, target = (self._word(name, node, fields, word) for word in ("kind", "target"))
        if kind not in get_args(Kind):
            raise UserError(f"{self._at(fields['kind'])}: the kind of {name!r} is {kind!r}; it must be env or tools")
        options: dict[str, Any] = {}
        if "options" in fields:
            pairs = _pairs(self.path, fields["options"], f"the options of {name!r}")
            options = {key.value: self._value(value) for key, value in pairs}
        try:
            check_options(options)
        except UserError as error:
            raise UserError(f"{self._at(fields['options'])}: {error}") from None
        if options and kind == "env":
            raise UserError(f"{self._at(fields['options'])}: {name!r} is an environment, and options are for tools")
        return Entry(
            name=name,
            kind=kind,  # type: ignore[arg-type]
            target=self._absolute(target, fields["target"]),
            options=options,
            description=self._word(name, node, fields, "description") if "description" in fields else "",
            source=self.source,
            file=self.path,
            folder=self.folder if self.source == "project" else None,
        )

    def _word(self, name: str, node: yaml.Node, fields: Mapping[str, yaml.Node], word: str) -> str:
        if word not in fields:
            raise UserError(f"{self._at(node)}: the entry {name!r} has no {word}")
        if not isinstance(fields[word].value, str):
            raise UserError(f"{self._at(fields[word])}: the {word} of {name!r} is not a text")
        return fields[word].value

    def _value(self, node: yaml.Node) -> Any:
        import yaml

        try:
            return loader()("").construct_document(node)
        except (yaml.MarkedYAMLError, ValueError):
            raise UserError(f"{self._at(node)}: the value {node.value!r} cannot be read") from None

    def _absolute(self, target: str, node: yaml.Node) -> str:
        try:
            source, attribute = split_target(target)
        except UserError as error:
            raise UserError(f"{self._at(node)}: {error}") from None
        is_local_file = is_path(source) and not is_source(target)
        return f"{(self.folder / source).resolve()}:{attribute}" if is_local_file else target

    def _at(self, node: yaml.Node) -> str:
        return f"{self.path}, line {node.start_mark.line + 1}"


def _content(entry: Entry) -> tuple[Any, ...]:
    return entry.kind, entry.target, dict(entry.options), entry.description


def _compose(path: Path, text: str) -> yaml.Node | None:
    import yaml

    try:
        return yaml.compose(text, Loader=loader())
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{path}, line {line}: it is not YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(f"{path}, line {line}: it is not YAML: {error.reason}") from None


def _pairs(path: Path, node: yaml.Node | None, what: str = "the file") -> list[tuple[yaml.Node, yaml.Node]]:
    import yaml

    if node is None:
        return []
    if not isinstance(node, yaml.MappingNode) or not all(isinstance(key, yaml.ScalarNode) for key, _ in node.value):
        line = node.start_mark.line + 1
        raise UserError(f"{path}, line {line}: {what} is not a mapping, `name: value` on lines of their own")
    return list(node.value)


@contextmanager
def _report_write_errors(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
