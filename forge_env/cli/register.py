"""`forge-env register` and `forge-env unregister`."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from forge_env.cli.output import Json, emit, note, say
from forge_env.core.errors import UserError
from forge_env.utils.syntax import parse_python

KindOption = Annotated[Literal["auto", "env", "tools"], typer.Option(help="Kind of the target; auto detects it.")]
UserOption = Annotated[bool, typer.Option("--user", help="Use the user's file, which holds for all projects.")]


def register(
    target: Annotated[str, typer.Argument(help="path/to/file.py:NAME, module:NAME, openapi:DOCUMENT or mcp:SERVER")],
    name: Annotated[str, typer.Option(help="The name to register; the target's own name by default.")] = "",
    kind: KindOption = "auto",
    timeout: Annotated[float | None, typer.Option(help="Of tools: time limit of a call, in seconds.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Of tools: maximum concurrent calls in a process.")] = None,
    max_output: Annotated[int | None, typer.Option(help="Of tools: maximum number of characters of a result.")] = None,
    retries: Annotated[int | None, typer.Option(help="Of tools: further attempts; only with --idempotent.")] = None,
    idempotent: Annotated[bool | None, typer.Option(help="Of tools: calling twice equals calling once.")] = None,
    parallel: Annotated[bool | None, typer.Option(help="Of tools: may run in parallel within a turn.")] = None,
    base_url: Annotated[str, typer.Option(help="Of openapi:DOCUMENT: base URL of the service.")] = "",
    user: UserOption = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the present entry of that name.")] = False,
    import_timeout: Annotated[float, typer.Option(help="Time limit of the import, in seconds.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Register a function, a class of tools, a source of tools or an environment under a name.

    The target is imported in a child process; its tools and options are printed.
    """
    options = {
        "timeout": timeout,
        "concurrency": concurrency,
        "max_output": max_output,
        "retries": retries,
        "idempotent": idempotent,
        "parallel": parallel,
    }
    given = {option: value for option, value in options.items() if value is not None}
    data = add_to_registry(
        _written(target, base_url),
        name=name,
        kind=kind,
        options=given,
        user=user,
        replace=replace,
        seconds=import_timeout,
    )
    if as_json:
        emit(data)
        return
    from forge_env.cli.list_info import show_schemas

    show_schemas(data)
    for text in data["notes"]:
        note(text)
    say(f"{data['name']} is registered in {data['registry']}")


def add_to_registry(
    target: str,
    *,
    name: str = "",
    kind: str = "auto",
    options: dict[str, Any],
    user: bool = False,
    replace: bool = False,
    seconds: float = 60.0,
) -> dict[str, Any]:
    """Describe a target in a child process and write its entry; returns the description."""
    from forge_env.cli.describe_in_child import describe_in_child
    from forge_env.registry.contrib import is_source
    from forge_env.registry.registry import find, make_entry
    from forge_env.registry.registry_file import Entry

    if not seconds > 0:
        raise UserError(f"--import-timeout is {seconds:g}; it is a number of seconds above 0")
    file = registry_file(user=user)
    if options and is_source(target):
        raise UserError(f"{target!r} is a source of tools, and {', '.join(options)} is for functions: leave it out")
    if name:
        make_entry(name, target, kind="tools", options=options)  # checked before anything is imported
        _check_free(name, replace)
    entry = Entry(name=name, kind="tools", target=_absolute(target), options=options, folder=file.folder)
    data = describe_in_child(entry, kind="" if kind == "auto" else kind, seconds=seconds)
    entry = make_entry(data["name"], entry.target, kind=data["kind"], description=data["description"], options=options)
    _check_free(entry.name, replace)
    file.add(entry, replace=replace)
    notes = data.pop("notes")
    effective = find(entry.name)
    if effective is None or effective.file != file.path:
        notes.append(
            f"here {entry.name!r} still is {effective and effective.target}, which comes from "
            f"{effective and effective.source}"
        )
    return {
        **data,
        "target": entry.target,
        "settings": options,
        "source": file.source,
        "registry": str(file.path),
        "notes": notes,
    }


def unregister(
    name: Annotated[str, typer.Argument(help="A name of `forge-env list`.")],
    user: UserOption = False,
    as_json: Json = False,
) -> None:
    """Remove a name from the project's file, or the user's."""
    from forge_env.registry.registry import find

    file = registry_file(user=user)
    entry = find(name)
    if name not in file.read() and entry is not None:
        remedy = {"user": "add --user", "project": "leave --user out"}.get(entry.source, "it cannot be unregistered")
        raise UserError(f"{name!r} is not in {file.path}; it comes from {entry.file or entry.source}: {remedy}")
    removed = file.remove(name)
    if as_json:
        emit(dataclasses.asdict(removed) | {"registry": str(file.path)})
        return
    say(f"{name} ({removed.target}) is no longer in {file.path}")


def registry_file(*, user: bool) -> Any:
    """Return the registry file that a command changes."""
    from forge_env.registry.locations import project_file, user_file

    file = user_file() if user else project_file()
    if file is None:
        no_home = "this user has no home folder: set XDG_CONFIG_HOME"
        raise UserError(no_home if user else "the working directory has been removed: change to another one")
    if file.problem:
        raise UserError(file.problem)
    return file


def _check_free(name: str, replace: bool) -> None:
    from forge_env.registry.registry import find

    holder = None if replace else find(name)
    if holder is not None:
        raise UserError(
            f"the name {name!r} is taken by {holder.target} ({holder.file or holder.source}): choose another one with "
            "--name, or add --replace"
        )


def _written(target: str, base_url: str) -> str:
    """Return a source of tools as it is valid in every working directory, and any other target as it is."""
    from forge_env.registry.contrib import is_source, rows

    if is_source(target):
        return str(rows("tool_sources")[target.partition(":")[0]].load().written(target, base_url))
    if base_url:
        raise UserError(f"--base-url {base_url} is for the service of an OpenAPI document, and {target!r} names none")
    return target


def _absolute(target: str) -> str:
    """Return a target with an absolute path, which is valid in every working directory."""
    from forge_env.registry.contrib import is_source
    from forge_env.utils.targets import is_file, is_path, split_target

    if is_source(target):
        return target
    if is_file(target):
        raise UserError(f"{target!r} names a file only: write {target}:NAME{_list_names(Path(target))}")
    source, attribute = split_target(target)
    return f"{Path(source).expanduser().resolve()}:{attribute}" if is_path(source) else target


def _list_names(path: Path) -> str:
    try:
        tree = parse_python(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    return f", where NAME is one of: {', '.join(names)}" if names else ""
