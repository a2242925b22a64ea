"""`forge-env register` and `forge-env unregister`."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from forge_env.cli.output import Json, emit, note, say
from forge_env.core.errors import UserError

KindOption = Annotated[Literal["auto", "env", "tools"], typer.Option(help="What it is; auto finds out.")]
UserOption = Annotated[bool, typer.Option("--user", help="In the user's file, for every project.")]


def register(
    target: Annotated[str, typer.Argument(help="path/to/file.py:NAME, module:NAME, openapi:DOCUMENT or mcp:SERVER")],
    name: Annotated[str, typer.Option(help="What it is called from now on; its own name by default.")] = "",
    kind: KindOption = "auto",
    timeout: Annotated[float | None, typer.Option(help="Of tools: seconds after which a call is given up.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Of tools: calls at once in a process.")] = None,
    max_output: Annotated[int | None, typer.Option(help="Of tools: characters of a result that are shown.")] = None,
    retries: Annotated[int | None, typer.Option(help="Of tools: further attempts; only with --idempotent.")] = None,
    idempotent: Annotated[bool | None, typer.Option(help="Of tools: twice does no more than once.")] = None,
    parallel: Annotated[bool | None, typer.Option(help="Of tools: may run beside others in one turn.")] = None,
    base_url: Annotated[str, typer.Option(help="Of openapi:DOCUMENT: where its service is.")] = "",
    user: UserOption = False,
    replace: Annotated[bool, typer.Option("--replace", help="Take the name from what has it.")] = False,
    import_timeout: Annotated[float, typer.Option(help="Seconds that importing it may take.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Give a function, a class of tools, a source of tools or an environment a name that works everywhere.

    It is imported in a child process and examined; its schema is printed.
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
        _with_base_url(target, base_url),
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
    from forge_env.cli.listing import show_schemas

    show_schemas(data)
    for remark in data["notes"]:
        note(remark)
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
    """Examine a target in a child process and write its entry; returns what is known of it.

    Raises:
        UserError: when the name is taken, or the target cannot be registered.
    """
    from forge_env.cli.child import examine_in_child
    from forge_env.registry.registry import find, make_entry
    from forge_env.registry.registry_file import Entry
    from forge_env.utils.targets import is_source

    if not seconds > 0:
        raise UserError(f"--import-timeout is {seconds:g}; it is a number of seconds above 0")
    file = registry_file(user=user)
    if options and is_source(target):
        raise UserError(f"{target!r} is a source of tools, and {', '.join(options)} is for functions: leave it out")
    if name:
        make_entry(name, target, kind="tools", options=options)  # refused before anything is imported
        _check_free(name, replace)
    entry = Entry(name=name, kind="tools", target=_absolute(target), options=options, folder=file.folder)
    data = examine_in_child(entry, kind="" if kind == "auto" else kind, seconds=seconds)
    entry = make_entry(data["name"], entry.target, kind=data["kind"], description=data["description"], options=options)
    _check_free(entry.name, replace)
    file.add(entry, replace=replace)
    notes = data.pop("notes", [])
    found = find(entry.name)
    if found is None or found.file != file.path:
        notes.append(
            f"here {entry.name!r} still is {found and found.target}, which comes from {found and found.source}"
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
    name: Annotated[str, typer.Argument(help="A name that `forge-env list` shows.")],
    user: UserOption = False,
    as_json: Json = False,
) -> None:
    """Take a name out of the project's file, or the user's."""
    from forge_env.registry.registry import find

    file = registry_file(user=user)
    found = find(name)
    if name not in file.read() and found is not None:
        where = {"user": "add --user", "project": "leave --user out"}.get(found.source, "it cannot be unregistered")
        raise UserError(f"{name!r} is not in {file.path}; it comes from {found.file or found.source}: {where}")
    removed = file.remove(name)
    if as_json:
        emit(dataclasses.asdict(removed) | {"registry": str(file.path)})
        return
    say(f"{name} ({removed.target}) is no longer in {file.path}")


def registry_file(*, user: bool) -> Any:
    """The file that a command changes.

    Raises:
        UserError: when there is no place for it, or others than this user can write there.
    """
    from forge_env.registry.registry import project_file, user_file

    file = user_file() if user else project_file()
    if file is None:
        what = (
            "this user has no home folder: set XDG_CONFIG_HOME" if user else "the working directory is gone: leave it"
        )
        raise UserError(what)
    if file.problem:
        raise UserError(file.problem)
    return file


def _check_free(name: str, replace: bool) -> None:
    from forge_env.registry.registry import find

    taken = None if replace else find(name)
    if taken is not None:
        raise UserError(
            f"the name {name!r} is taken by {taken.target} ({taken.file or taken.source}): choose another one with "
            "--name, or add --replace"
        )


def _absolute(target: str) -> str:
    """A target that means the same in every working directory."""
    from forge_env.utils.targets import is_file, is_source, split_target

    if is_source(target):
        return _absolute_source(target)
    if is_file(target):
        raise UserError(f"{target!r} names a file only: write {target}:NAME{_names_in(Path(target))}")
    source, attribute = split_target(target)
    return f"{Path(source).expanduser().resolve()}:{attribute}" if is_file(source) else target


def _absolute_source(source: str) -> str:
    """A source of tools whose file, if its document is one, means the same in every working directory."""
    kind, _, rest = source.partition(":")
    document, separator, base_url = rest.partition("#")
    if kind != "openapi" or not document or "://" in document:
        return source
    return f"openapi:{Path(document).expanduser().resolve()}{separator}{base_url}"


def _with_base_url(target: str, base_url: str) -> str:
    if not base_url:
        return target
    if not target.startswith("openapi:") or "#" in target:
        raise UserError(
            f"--base-url {base_url} is for openapi:DOCUMENT without a # in it, and the target is {target!r}"
        )
    return f"{target}#{base_url}"


def _names_in(path: Path) -> str:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    return f", where NAME is one of: {', '.join(names)}" if names else ""
