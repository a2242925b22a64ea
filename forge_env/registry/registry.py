"""Names of environments and tools. The registry holds import strings, which are imported only when they are used.

A name is looked up in this process (`register`), the project's file, the installed packages (entry-point groups
`forge_env.envs` and `forge_env.tools`), and what ships; the first match wins.
"""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from forge_env.core.env import Env
from forge_env.core.errors import UserError, nearest
from forge_env.core.tools import Tool
from forge_env.registry.contrib import family, rows, tool_source
from forge_env.registry.gymnasium_registration import is_imported
from forge_env.registry.registry_file import Entry, Kind, make_entry, registered_entries
from forge_env.registry.tool_sets import derive_tools
from forge_env.utils.targets import add_to_path, load, source_of

__all__ = ["Entry", "entries", "env_class", "env_names", "find", "load", "register", "tool_names", "tools_of"]

ENVS = {
    "code_exec": ("envs.code_exec:CodeExec", "Python in a sandbox, and a program that hidden tests grade."),
    "math": ("envs.math:Math", "Word problems, with a calculator."),
}
"""The heart's own: target and description."""

_KINDS: dict[Kind | None, str] = {
    "env": "environment",
    "tools": "set of tools",
    None: "environment and no set of tools",
}
_process: dict[tuple[Kind, str], Entry] = {}


def register(
    name: str,
    target: str | Callable[..., Any],
    *,
    kind: Kind | None = None,
    description: str = "",
    replace: bool = False,
    **options: Any,
) -> None:
    """Register an environment, a function or a class of tools in this process; `forge-env register` makes it permanent.

    Args:
        name: letters, digits, "_" and "-".
        target: the class or function, or its "module:attribute" or "path/to/file.py:attribute".
        kind: "env" or "tools"; detected for a class or function, "env" by default for a text.
        description: one line.
        replace: replace the present entry of that name in this process.
        **options: of tools: settings of `@tool`, such as `timeout=5.0`.

    Raises:
        UserError: when the name is taken, the object cannot be imported by a name, or an option is wrong.
    """
    if kind is None:
        kind = "env" if isinstance(target, str) or is_env(target) else "tools"
    text = target if isinstance(target, str) else source_of(target)
    entry = make_entry(name, text, kind=kind, description=description, options=options)
    present = _process.get((kind, name)) or (_built_in().get(name) if kind == "env" else None)
    holder = present.target if present else text
    if holder != text and not replace:
        raise UserError(f"the {_KINDS[kind]} name {name!r} is taken by {holder}; choose another name")
    _process[kind, name] = entry
    if kind == "env" and is_imported() and (row := rows("gymnasium").get("register")):
        row.load()(name)


def is_of_process(name: str) -> bool:
    return ("env", name) in _process


def entries() -> list[Entry]:
    """Return the entries of all names, sorted by name, without those that an earlier source hides.

    Raises:
        UserError: when a registry file is malformed.
    """
    visible: dict[tuple[str, Kind], Entry] = {}
    for source in _sources():
        for entry in source:
            visible.setdefault((entry.name, entry.kind), entry)
    return [visible[key] for key in sorted(visible)]


def find(name: str, kind: Kind | None = None) -> Entry | None:
    """Return the entry of a name, None if there is none; without a kind, the first entry of any kind."""
    for source in _sources():
        matching = [entry for entry in source if entry.name == name and kind in (None, entry.kind)]
        rivals = {f"{entry.source} ({entry.target})" for entry in matching if entry.kind == matching[0].kind}
        if len(rivals) > 1:
            packages = " and ".join(sorted(rivals))
            raise UserError(f"the name {name!r} comes from {packages}: register one of them in this project")
        if matching:
            return matching[0]
    return None


def env_names() -> list[str]:
    return [entry.name for entry in entries() if entry.kind == "env"]


def tool_names() -> list[str]:
    return [entry.name for entry in entries() if entry.kind == "tools"]


def env_class(name: str) -> type[Env]:
    """Return the class of a registered name, of a target such as "module:Class", or of a family's member.

    Raises:
        UserError: for an unknown name, with the nearest one, or a target that is not an environment.
    """
    target = load_entry(resolve(name, "env"))
    if not is_env(target):
        hint = "a function that makes a gymnasium.Env has the prefix gymnasium:"
        raise UserError(f"{name!r} is not an environment: {target!r} is no subclass of forge_env.Env; {hint}")
    return target


def tools_of(name: str) -> list[Tool]:
    """Return the tools of a registered name, or of a target such as "tools.py:add".

    A function is one tool, with the registered name. A class gives its `@tool` methods, bound to a new instance; if
    none is marked, its public methods with a docstring and types. A limit on concurrency holds among the episodes that
    share the returned tools, so call this once in a process.

    Raises:
        UserError: for an unknown name, with the nearest one, or a target without tools.
    """
    entry = resolve(name, "tools")
    target = load_entry(entry)
    if is_env(target):
        raise UserError(f"{name!r} is an environment, not a set of tools")
    try:
        return derive_tools(target, name=entry.name, options=entry.options)
    except UserError as error:
        raise UserError(f"{error}{_registered_in(entry)}") from None


def is_env(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Env)


def resolve(name: str, kind: Kind | None = None) -> Entry:
    """Return the entry of a name; for a target, an entry without a name."""
    if ":" in name:
        row = family(name)
        return Entry(name="", kind=kind or "env", target=name, source=row.target if row else "process")
    entry = find(name, kind)
    if entry is not None:
        return entry
    other = find(name)
    if other is not None and kind is not None:
        raise UserError(f"there is no {_KINDS[kind]} {name!r}: that name is registered as kind {other.kind}")
    names = [entry.name for entry in entries() if kind in (None, entry.kind)]
    raise UserError(f"there is no {_KINDS[kind]} {name!r}. {nearest(name, names)}")


def registration(name: str) -> dict[str, str]:
    """Return what a registry file says of an environment's name: its "target" and the "file"; {} for another name."""
    entry = find(name, "env") if ":" not in name else None
    return {"target": entry.target, "file": str(entry.file)} if entry is not None and entry.file else {}


def check_registered(name: str, registration: object) -> None:
    """Check that a name which a run recorded is known here.

    Args:
        registration: what it was when the run began, as the run's folder has it.
    """
    if not isinstance(registration, Mapping) or not {"target", "file"} <= registration.keys():
        return
    if ":" in name or find(name, "env") is not None:
        return
    target, file = registration["target"], registration["file"]
    raise UserError(
        f"there is no environment {name!r} in this folder; when the run began, it was {target}, registered in {file}: "
        f"work in the folder of that file, set FORGE_ENV_REGISTRY={file}, or register it here with `forge-env register "
        f"{target} --name {name}`"
    )


def load_entry(entry: Entry) -> Any:
    """Import the target of an entry, or make the class of a family's member.

    A class of Gymnasium's gives the environment over messages.
    """
    if row := tool_source(entry.target):
        name = entry.name or entry.target
        what = "a source of tools, which is opened and not imported"
        raise UserError(f"{name!r} is {what}: use it with `{row.about} {name}`{_registered_in(entry)}")
    if entry.folder is not None:
        add_to_path(entry.folder)
    try:
        if row := family(entry.target):
            return row.load()(entry.target.partition(":")[2])
        target, gymnasium = load(entry.target), sys.modules.get("gymnasium")
        is_theirs = gymnasium is not None and isinstance(target, type) and issubclass(target, gymnasium.Env)
        row = rows("families").get("gymnasium") if is_theirs else None
        return row.load()(entry.target) if row else target
    except UserError as error:
        raise UserError(f"{error}{_registered_in(entry)}") from error


def _sources() -> Iterator[Sequence[Entry]]:
    """Yield the entries of each source, in order of precedence; a source is read when it is reached."""
    yield list(_process.values())
    yield registered_entries()
    yield _entry_points(tuple(sys.path))
    yield list(_built_in().values())


def _built_in() -> dict[str, Entry]:
    contrib = {name: (row.target, row.about) for name, row in rows("envs").items()}
    return {
        name: Entry(name=name, kind="env", target=target, description=about, source="built-in")
        for name, (target, about) in sorted((ENVS | contrib).items())
    }


@functools.lru_cache(maxsize=4)
def _entry_points(path: tuple[str, ...]) -> Sequence[Entry]:
    """Return the entry points of the packages on a path. Cached, because scanning takes about 20 ms."""
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


def _registered_in(entry: Entry) -> str:
    return f" ({entry.name!r} is registered in {entry.file})" if entry.file else ""
