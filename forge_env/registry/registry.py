"""Names of environments and tools. The registry holds strings, imported only when they are needed.

A name is looked up in this process (`register`), the project's file, the user's file, the installed packages
(entry-point groups `forge_env.envs` and `forge_env.tools`) and the tables below; the first that has it wins.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from forge_env.core.env import Env
from forge_env.core.errors import UserError, nearest
from forge_env.core.tools import Tool
from forge_env.registry import gymnasium_ids
from forge_env.registry.registry_file import FILE, Entry, Kind, RegistryFile
from forge_env.registry.tool_sets import check_options, derive_tools
from forge_env.utils.targets import add_to_path, is_source, load, source_of

__all__ = ["Entry", "entries", "env_class", "env_names", "find", "load", "register", "tool_names", "tools_of"]

ENVS: dict[str, str] = {
    "code_exec": "envs.code_exec:CodeExec",
    "external": "envs.external:External",
    "math": "envs.math:Math",
    "tool_api": "envs.tool_api:ToolApi",
}
TOOLS: dict[str, str] = {}
_DESCRIPTIONS = {
    "code_exec": "Python in a sandbox, and a program that hidden tests grade.",
    "external": "A program of yours, with the model behind an OpenAI-compatible endpoint.",
    "math": "Word problems, with a calculator.",
    "tool_api": "Tools that are HTTP services, MCP servers or your own functions.",
}
FAMILIES: dict[str, str] = {
    "gymnasium": "envs.gymnasium_text:resolve",
    "reasoning_gym": "envs.reasoning.env:resolve",
}
"""Names with a prefix, such as "gymnasium:FrozenLake-v1": a function makes the class from what follows it."""

FILE_VARIABLE = "FORGE_ENV_REGISTRY"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_KINDS: dict[Kind | None, str] = {
    "env": "environment",
    "tools": "set of tools",
    None: "environment and no set of tools",
}
_process: dict[tuple[Kind, str], Entry] = {}
_told: set[Path] = set()
logger = logging.getLogger(__name__)


def register(
    name: str,
    target: str | Callable[..., Any],
    *,
    kind: Kind | None = None,
    description: str = "",
    replace: bool = False,
    **options: Any,
) -> None:
    """Give an environment, a function or a class of tools a name, in this process; `forge-env register` keeps it.

    Args:
        name: letters, digits, "_" and "-".
        target: the class or function, or its "module:attribute" or "path/to/file.py:attribute".
        kind: "env" or "tools"; known for a class or function, and "env" for a text without it.
        description: one line.
        replace: take the name from what has it in this process.
        **options: of tools: settings of `@tool`, such as `timeout=5.0`.

    Raises:
        UserError: when the name is taken by something else, what has no target, or an option is wrong.
    """
    if kind is None:
        kind = "env" if isinstance(target, str) or _is_env(target) else "tools"
    text = target if isinstance(target, str) else source_of(target)
    entry = make_entry(name, text, kind=kind, description=description, options=options)
    table = ENVS if kind == "env" else TOOLS
    taken = _process.get((kind, name))
    holder = taken.target if taken else table.get(name, text)
    if holder != text and not replace:
        raise UserError(f"the {_KINDS[kind]} name {name!r} is taken by {holder}; choose another name")
    _process[kind, name] = entry
    if kind == "env" and gymnasium_ids.is_imported():
        gymnasium_ids.register_env(name)


def make_entry(name: str, target: str, *, kind: Kind, description: str = "", options: dict[str, Any]) -> Entry:
    """Return an entry whose name, kind and options are right.

    Raises:
        UserError: saying which of them is wrong.
    """
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


def entries() -> list[Entry]:
    """Return what every name stands for, sorted by name; what another source hides is left out.

    Raises:
        UserError: when a registry file is malformed.
    """
    found: dict[tuple[str, Kind], Entry] = {}
    for source in _sources():
        for entry in source:
            found.setdefault((entry.name, entry.kind), entry)
    return [found[key] for key in sorted(found)]


def find(name: str, kind: Kind | None = None) -> Entry | None:
    """Return what a name stands for; without a kind, whichever comes first.

    Raises:
        UserError: when two installed packages give the same name, or a registry file is malformed.
    """
    for source in _sources():
        found = [entry for entry in source if entry.name == name and kind in (None, entry.kind)]
        rivals = {f"{entry.source} ({entry.target})" for entry in found if entry.kind == found[0].kind}
        if len(rivals) > 1:
            packages = " and ".join(sorted(rivals))
            raise UserError(f"the name {name!r} comes from {packages}: register the one that is meant in this project")
        if found:
            return found[0]
    return None


def env_names() -> list[str]:
    return [entry.name for entry in entries() if entry.kind == "env"]


def tool_names() -> list[str]:
    return [entry.name for entry in entries() if entry.kind == "tools"]


def env_class(name: str) -> type[Env]:
    """Return the class of a registered name, of a target such as "module:Class", or of a family's member.

    Raises:
        UserError: for an unknown name, with the nearest one, or what is no environment.
    """
    found = load_target(name) if is_member(name) else load_entry(resolve(name, "env"))
    if not _is_env(found):
        raise UserError(f"{name!r} is not an environment: {found!r} is no subclass of forge_env.Env")
    return found


def is_member(name: str) -> bool:
    """Whether a name is one of a family, such as "gymnasium:FrozenLake-v1"."""
    family, colon, _ = name.partition(":")
    return bool(colon) and family in FAMILIES


def load_target(target: str) -> Any:
    """Import the object of a "module:attribute" or "file.py:attribute", or make the class of a family's member.

    Raises:
        UserError: for what is not there.
    """
    if not is_member(target):
        return load(target)
    family, _, member = target.partition(":")
    return load(FAMILIES[family])(member)


def tools_of(name: str) -> list[Tool]:
    """Return the tools of a registered name, or of a target such as "tools.py:add".

    A function is one tool, under the registered name. A class gives its `@tool` methods, bound to a fresh instance;
    where none is marked, its public methods that have a docstring and types. A limit on concurrency holds among the
    episodes that share the returned tools, so ask once in a process.

    Raises:
        UserError: for an unknown name, with the nearest one, or what makes no tools.
    """
    entry = resolve(name, "tools")
    found = load_entry(entry)
    if _is_env(found):
        raise UserError(f"{name!r} is an environment, not a set of tools")
    try:
        return derive_tools(found, name=entry.name, options=entry.options)
    except UserError as error:
        raise UserError(f"{error}{_registered(entry)}") from None


def resolve(name: str, kind: Kind | None = None) -> Entry:
    """Return what a name stands for; a target stands for itself.

    Raises:
        UserError: for an unknown name, with the nearest one.
    """
    if ":" in name:
        family = name.partition(":")[0] if is_member(name) else ""
        return Entry(name="", kind=kind or "env", target=name, source=FAMILIES.get(family, "process"))
    entry = find(name, kind)
    if entry is not None:
        return entry
    other = find(name)
    if other is not None and kind is not None:
        raise UserError(f"there is no {_KINDS[kind]} {name!r}: that name is registered as kind {other.kind}")
    known = [entry.name for entry in entries() if kind in (None, entry.kind)]
    raise UserError(f"there is no {_KINDS[kind]} {name!r}. {nearest(name, known)}")


def load_entry(entry: Entry) -> Any:
    """Import what an entry stands for.

    Raises:
        UserError: when it cannot be imported, saying where it is registered.
    """
    if is_source(entry.target):
        raise UserError(
            f"{entry.name or entry.target!r} is a source of tools, which is opened and not imported: use it with "
            f"`--env tool_api --tools {entry.name or entry.target}`{_registered(entry)}"
        )
    if entry.folder is not None:
        add_to_path(entry.folder)
    try:
        return load(entry.target)
    except UserError as error:
        raise UserError(f"{error}{_registered(entry)}") from error


def project_file() -> RegistryFile | None:
    """The project's file, which need not exist: the nearest one at or above the working directory.

    The search ends where git's would: at the nearest folder with .git, the home folder, or where another file system
    begins. A pyproject.toml does not end it, for a project may hold packages. A file that is not this user's alone is
    passed over. Where there is none, it belongs beside the nearest pyproject.toml or .git, else
    here. FORGE_ENV_REGISTRY names another one, whosever it is. None where the working directory has been removed.
    """
    if named := os.environ.get(FILE_VARIABLE):
        return RegistryFile(Path(os.path.expanduser(named)), "project")
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return None
    folders = _project_folders(here)
    for folder in folders:
        if os.path.isfile(folder / FILE):
            file = RegistryFile(folder / FILE, "project", below=folder)
            if not file.problem:
                return file
            _tell_of(file)
    place = next((f for f in folders if os.path.isfile(f / "pyproject.toml") or os.path.lexists(f / ".git")), here)
    return RegistryFile(place / FILE, "project", below=place)


def user_file() -> RegistryFile | None:
    """The user's file, which need not exist; None for a user without a home."""
    home = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not home.is_absolute():
        home = Path(os.path.expanduser("~/.config"))
    return RegistryFile(home / "forge_env" / FILE.name, "user", below=home) if home.is_absolute() else None


def _project_folders(here: Path) -> list[Path]:
    """A folder and those above it, up to the root of its project."""
    folders: list[Path] = []
    home, device = Path(os.path.expanduser("~")), os.stat(here).st_dev
    for folder in (here, *here.parents):
        if os.stat(folder).st_dev != device:
            break
        folders.append(folder)
        if folder == home or os.path.lexists(folder / ".git"):
            break
    return folders


def _tell_of(file: RegistryFile) -> None:
    """Say once in this process that a file is not read."""
    if file.path not in _told:
        _told.add(file.path)
        logger.warning("%s", file.problem)


def _sources() -> Iterator[Sequence[Entry]]:
    """What each source has, in order of precedence; each is read when it is asked."""
    yield list(_process.values())
    for file in (project_file(), user_file()):
        if file is not None and file.problem:
            if os.path.isfile(file.path):
                _tell_of(file)
            file = None
        yield list(file.read().values()) if file else []
    yield _installed(tuple(sys.path))
    yield [_built_in(n, "env", t) for n, t in ENVS.items()]
    yield [_built_in(n, "tools", t) for n, t in TOOLS.items()]


def _built_in(name: str, kind: Kind, target: str) -> Entry:
    return Entry(name=name, kind=kind, target=target, description=_DESCRIPTIONS.get(name, ""), source="built-in")


@functools.lru_cache(maxsize=4)
def _installed(path: tuple[str, ...]) -> Sequence[Entry]:
    """The entry points of the packages on a path: scanning them all takes some 20 ms."""
    points = importlib.metadata.entry_points()
    groups: tuple[tuple[Kind, str], ...] = (("env", "forge_env.envs"), ("tools", "forge_env.tools"))
    return [
        Entry(
            name=point.name,
            kind=kind,
            target=f"{point.module}:{point.attr}",
            source=f"package {point.dist.name}" if point.dist else "package",
        )
        for kind, group in groups
        for point in points.select(group=group)
    ]


def _is_env(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, Env)


def _registered(entry: Entry) -> str:
    return f" ({entry.name!r} is registered in {entry.file})" if entry.file else ""
