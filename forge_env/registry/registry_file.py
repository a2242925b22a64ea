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

import dataclasses
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from forge_env.core.errors import UserError, nearest
from forge_env.registry.contrib import tool_source
from forge_env.registry.tool_sets import check_options
from forge_env.utils.atomic import hold_lock, replace_file
from forge_env.utils.owners import path_problem, stat_problem
from forge_env.utils.targets import is_path, split_target
from forge_env.utils.yaml_text import read_yaml, write_yaml

Kind = Literal["env", "tools"]
FILE = Path(".forge_env") / "registry.yaml"
FILE_VARIABLE = "FORGE_ENV_REGISTRY"
_HEADER = "# Names of environments and tools, written by `forge-env register`. Editing it by hand is fine.\n"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_with_warning: set[Path] = set()
logger = logging.getLogger(__name__)


class _Fields(BaseModel, extra="forbid", strict=True):
    """An entry as it is written."""

    kind: Kind
    target: str
    options: dict[str, Any] = {}
    description: str = ""


_FIELDS = TypeAdapter(dict[str, _Fields])


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
    """Origin of the name: "process", "project", "package NAME" or "built-in"."""
    file: Path | None = None
    """The registry file that holds it, if any."""
    folder: Path | None = None
    """The project's folder, for imports of its modules, if there is one."""


def make_entry(name: str, target: str, *, kind: Kind, description: str = "", options: Mapping[str, Any]) -> Entry:
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is no name: it starts with a letter or _, and has letters, digits, _ and - only, 64 at most"
        )
    if kind not in get_args(Kind):
        raise UserError(f"the kind of {name!r} is {kind!r}; it must be env or tools")
    if options and kind == "env":
        raise UserError(f"{name!r} is an environment, and {', '.join(options)} is for tools: set it in its @tool marks")
    check_options(options)
    return Entry(name=name, kind=kind, target=target, description=" ".join(description.split()), options=options)


def check_free(name: str, holder: Entry | None) -> None:
    if holder is not None:
        raise UserError(
            f"the name {name!r} is taken by {holder.target} ({holder.file or holder.source}): choose another one with "
            "--name, or add --replace"
        )


def project_file() -> RegistryFile | None:
    """Return the project's file, which need not exist: the nearest one at or above the working directory.

    As in git, the search ends at the nearest folder with .git, at the home folder, or at the boundary of a file system.
    A pyproject.toml does not end it, because a project may hold several packages. A file that others than this user can
    change is skipped. If there is no file, its place is beside the nearest pyproject.toml or .git, else in the working
    directory. FORGE_ENV_REGISTRY names another file, which is not checked. None if the working directory was removed.
    """
    if path := os.environ.get(FILE_VARIABLE):
        return RegistryFile(Path(os.path.expanduser(path)))
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return None
    folders = _project_folders(here)
    for folder in folders:
        file = RegistryFile(folder / FILE, below=folder)
        if file.is_readable():
            return file
    root = next((folder for folder in folders if (folder / "pyproject.toml").is_file() or _has_git(folder)), here)
    return RegistryFile(root / FILE, below=root)


def registered_entries() -> Sequence[Entry]:
    file = project_file()
    return list(file.read().values()) if file is not None and file.is_readable() else []


class RegistryFile:
    """A file of entries, which need not exist.

    Args:
        below: only this user may be able to write to this folder and everything below it on the way to the file, see
            `problem`; None for a file that the user has named, which is not checked.
    """

    def __init__(self, path: Path, *, below: Path | None = None) -> None:
        self._given_path, self._below = path, below
        self.path = Path(os.path.realpath(path))  # a link is kept, and its target is changed
        # The folder that holds `.forge_env`; for a file in another folder, that folder.
        self.folder = self.path.parent.parent if self.path.parent.name == FILE.parent.name else self.path.parent

    @property
    def problem(self) -> str:
        """One sentence with a remedy, if others than this user and root can change the file; else ""."""
        if self._below is None or not (problem := path_problem(self._given_path, below=self._below)):
            return ""
        location, is_writable, _ = problem.partition(" can be written by ")
        remedy = f"`chmod go-w {location}`, or set" if is_writable else "set"
        effect = "is not read" if self.path.exists() else "cannot be made"
        return (
            f"{self.path} {effect}: {problem}, and the code that a registry names runs as you; {remedy} "
            f"{FILE_VARIABLE}={self.path} if you trust all who can write there"
        )

    def is_readable(self) -> bool:
        """Whether the file is there and has no problem, which is logged once in this process."""
        if not self.path.exists():
            return self._below is None
        if (problem := self.problem) and self.path not in _with_warning:
            _with_warning.add(self.path)
            logger.warning("%s", problem)
        return not problem

    def read(self) -> dict[str, Entry]:
        return self._parse(self._text())

    def add(self, entry: Entry, *, replace: bool = False) -> None:
        """Write an entry at the end, or in the place of the present one of that name."""
        with self._change() as (text, entries):
            if not replace:
                check_free(entry.name, entries.get(entry.name))
            self._write(text, entries | {entry.name: entry}, entry.name)

    def remove(self, name: str) -> Entry:
        self._find(name, self.read())  # raises before a folder is created
        with self._change() as (text, entries):
            previous = self._find(name, entries)
            self._write(text, {other: entry for other, entry in entries.items() if other != name}, name)
        return previous

    def _find(self, name: str, entries: Mapping[str, Entry]) -> Entry:
        if name not in entries:
            raise UserError(f"there is no {name!r} in {self.path}. {nearest(name, entries)}")
        return entries[name]

    @contextmanager
    def _change(self) -> Iterator[tuple[str, dict[str, Entry]]]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with hold_lock(self.path):
                text = self._text()
                yield text, self._parse(text)
        except OSError as error:
            raise UserError(f"{self.path} cannot be written: {error.strerror or error}") from None

    def _write(self, text: str, entries: Mapping[str, Entry], name: str) -> None:
        """Write the entries: `text` with one of them changed, or taken away."""
        block = write_yaml({name: self._fields(entries[name])}) if name in entries else ""
        text = _HEADER if not text else text if text.endswith("\n") else f"{text}\n"
        present = re.compile(rf"^(['\"]?){name}\1 *:.*\n(([ \t]*\n|#.*\n)*[ \t]+\S.*\n)*", re.MULTILINE)
        new = present.sub(lambda _: block, text) if present.search(text) else text + block
        try:
            is_whole = _contents(self._parse(new)) == _contents(entries)
        except UserError:
            is_whole = False
        if not is_whole:
            raise UserError(
                f"{self.path} is written in a way that cannot be changed without losing some of it: give each name "
                "lines of its own, as in `add:` followed by the indented `kind: tools` and `target: tools.py:add`"
            )
        replace_file(self.path, new)

    def _fields(self, entry: Entry) -> dict[str, Any]:
        """Return an entry as it is written, with a path in the project relative to its folder."""
        target, (source, attribute) = entry.target, split_target(entry.target)
        if not tool_source(target) and is_path(source) and Path(source).is_relative_to(self.folder):
            target = f"{Path(source).relative_to(self.folder)}:{attribute}"
        fields = {"kind": entry.kind, "target": target, "options": dict(entry.options)}
        return {name: value for name, value in (fields | {"description": entry.description}).items() if value}

    def _text(self) -> str:
        try:
            with self.path.open(encoding="utf-8") as file:
                # Check the opened file: the path may have been replaced since it was checked.
                if self._below is not None and (problem := stat_problem(os.fstat(file.fileno()))):
                    raise UserError(f"{self.path} {problem}: it is not read")
                return file.read()
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError:
            raise UserError(f"{self.path} is not UTF-8 text: correct it or remove it") from None
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror}") from None

    def _parse(self, text: str) -> dict[str, Entry]:
        import yaml

        try:
            fields_by_name = _FIELDS.validate_python(read_yaml(text, str(self.path)) or {})
        except ValidationError as error:
            wrong = error.errors()[0]
            where = ".".join(map(str, wrong["loc"])) or "the names"
            raise UserError(f"{self.path}: {where}: {wrong['msg'][:1].lower()}{wrong['msg'][1:]}") from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f", line {mark.line + 1}" if mark else ""
            reason = getattr(error, "problem", None) or " ".join(str(error).split())
            raise UserError(f"{self.path}{line}: it is not YAML: {reason}") from None
        try:
            return {name: self._entry(name, fields) for name, fields in fields_by_name.items()}
        except UserError as error:
            raise UserError(f"{self.path}: {error}") from None

    def _entry(self, name: str, fields: _Fields) -> Entry:
        source, attribute = split_target(target := fields.target)
        if is_path(source) and not tool_source(target):
            target = f"{(self.folder / source).resolve()}:{attribute}"
        entry = make_entry(name, target, kind=fields.kind, description=fields.description, options=fields.options)
        return dataclasses.replace(entry, source="project", file=self.path, folder=self.folder)


def _contents(entries: Mapping[str, Entry]) -> dict[str, tuple[Any, ...]]:
    return {n: (entry.kind, entry.target, dict(entry.options), entry.description) for n, entry in entries.items()}


def _has_git(folder: Path) -> bool:
    return os.path.lexists(folder / ".git")


def _project_folders(here: Path) -> list[Path]:
    folders: list[Path] = []
    home, device = Path(os.path.expanduser("~")), os.stat(here).st_dev
    for folder in (here, *here.parents):
        if os.stat(folder).st_dev != device:
            break
        folders.append(folder)
        if folder == home or _has_git(folder):
            break
    return folders
