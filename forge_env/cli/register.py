"""`forge-env register` and `forge-env unregister`."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from forge_env.cli.output import Json, emit, note, say, show_json, show_table, stdout_to_stderr
from forge_env.core.errors import UserError
from forge_env.utils.targets import parse_python

if TYPE_CHECKING:
    from forge_env.registry.registry_file import Entry, RegistryFile

Kind = Literal["auto", "env", "tools"]


def register(
    target: Annotated[str, typer.Argument(help="path/to/file.py:NAME, module:NAME, openapi:DOCUMENT or mcp:SERVER")],
    name: Annotated[str, typer.Option(help="The name to register; the target's own name by default.")] = "",
    kind: Annotated[Kind, typer.Option(help="Kind of the target; auto detects it.")] = "auto",
    timeout: Annotated[float | None, typer.Option(help="Of tools: time limit of a call, in seconds.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Of tools: maximum concurrent calls in a process.")] = None,
    max_output: Annotated[int | None, typer.Option(help="Of tools: maximum number of characters of a result.")] = None,
    retries: Annotated[int | None, typer.Option(help="Of tools: further attempts; only with --idempotent.")] = None,
    idempotent: Annotated[bool | None, typer.Option(help="Of tools: calling twice equals calling once.")] = None,
    parallel: Annotated[bool | None, typer.Option(help="Of tools: may run in parallel within a turn.")] = None,
    base_url: Annotated[str, typer.Option(help="Of openapi:DOCUMENT: base URL of the service.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace the present entry of that name.")] = False,
    as_json: Json = False,
) -> None:
    """Register a function, a class of tools, a source of tools or an environment under a name.

    The target is imported; its tools and options are printed.
    """
    options = {"timeout": timeout, "concurrency": concurrency, "max_output": max_output, "retries": retries}
    options |= {"idempotent": idempotent, "parallel": parallel}
    settings = {option: value for option, value in options.items() if value is not None}
    with stdout_to_stderr(as_json):
        data = add_to_registry(_spell(target, base_url), name=name, kind=kind, options=settings, replace=replace)
    if as_json:
        emit(data)
        return
    show_schemas(data)
    say(f"{data['name']} is registered in {data['registry']}")


def add_to_registry(
    target: str, *, name: str = "", kind: Kind = "auto", options: dict[str, Any], replace: bool = False
) -> dict[str, Any]:
    """Describe a target and write its entry; returns both, see `describe` and `as_data`."""
    from forge_env.cli.describe_target import describe
    from forge_env.registry.contrib import tool_source
    from forge_env.registry.registry import find
    from forge_env.registry.registry_file import Entry, check_free, make_entry

    file = registry_file()
    if options and tool_source(target):
        raise UserError(f"{target!r} is a source of tools, and {', '.join(options)} is for functions: leave it out")
    if name:
        make_entry(name, target, kind="tools", options=options)  # checked before anything is imported
        check_free(name, None if replace else find(name))
    entry = Entry(name=name, kind="tools", target=target, options=options, folder=file.folder)
    data = describe(entry, kind, to_register=True)
    entry = make_entry(data["name"], target, kind=data["kind"], description=data["description"], options=options)
    check_free(entry.name, None if replace else find(entry.name))
    file.add(entry, replace=replace)
    return as_data(file.read()[entry.name]) | data


def unregister(name: Annotated[str, typer.Argument(help="A name of `forge-env list`.")], as_json: Json = False) -> None:
    """Remove a name from the project's file."""
    from forge_env.registry.registry import find

    file = registry_file()
    entry = find(name)
    if name not in file.read() and entry is not None:
        raise UserError(f"{name!r} is not in {file.path}; it comes from {entry.source}: it cannot be unregistered")
    previous = file.remove(name)
    if as_json:
        emit(as_data(previous))
        return
    say(f"{name} ({previous.target}) is no longer in {file.path}")


def registry_file() -> RegistryFile:
    from forge_env.registry.registry_file import project_file

    file = project_file()
    if file is None:
        raise UserError("the working directory has been removed: change to another one")
    if file.problem:
        raise UserError(file.problem)
    return file


def _spell(target: str, base_url: str) -> str:
    """Return a target as it is valid in every working directory."""
    from forge_env.registry.contrib import tool_source
    from forge_env.utils.targets import is_file, is_path, split_target

    if row := tool_source(target):
        return str(row.load().written(target, base_url))
    if base_url:
        raise UserError(f"--base-url {base_url} is for the service of an OpenAPI document, and {target!r} names none")
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


def list_names(
    kind: Annotated[Literal["all", "env", "tools"], typer.Option(help="Only environments, or only tools.")] = "all",
    as_json: Json = False,
) -> None:
    """List all names, and where each comes from."""
    from forge_env.registry.registry import entries

    matching = [entry for entry in entries() if kind in ("all", entry.kind)]
    if as_json:
        emit({"entries": [as_data(entry) for entry in matching]})
        return
    rows = [(e.name, e.kind, e.source, e.target, e.description) for e in matching]
    show_table(("name", "kind", "from", "target", "description"), rows)


def info(
    name: Annotated[str, typer.Argument(help="A name of `forge-env list`, or a target.")], as_json: Json = False
) -> None:
    """Show what a name stands for: its tools, its options, and the place of its definition."""
    from forge_env.cli.describe_target import describe
    from forge_env.registry.registry import resolve

    entry = resolve(name)
    with stdout_to_stderr(as_json):
        data = as_data(entry) | describe(entry, entry.kind if entry.name else "auto")
    if as_json:
        emit(data)
        return
    say(f"from: {entry.source}{f' ({entry.file})' if entry.file else ''}")
    say(f"target: {entry.target}")
    if data["file"]:
        say(f"defined in: {data['file']}, line {data['line']}")
    show_schemas(data)


def show_schemas(data: dict[str, Any]) -> None:
    """Print the description of a target, see `describe`, for people."""
    say(f"{data['name']} ({data['kind']}): {data['description']}")
    if data["options"]:
        rows = [(o["name"], o["type"], "required" if o["required"] else str(o["default"])) for o in data["options"]]
        show_table(("option", "type", "default"), rows)
    for tool in data["tools"]:
        say(f"tool {tool['name']}: {tool['description']}")
        show_json(tool["parameters"])
        say(", ".join(f"{option} {value}" for option, value in tool["options"].items() if value not in (None, [])))
    for text in data["notes"]:
        note(text)


def as_data(entry: Entry) -> dict[str, Any]:
    data = {field: getattr(entry, field) for field in ("name", "kind", "target", "description", "source")}
    return data | {"settings": dict(entry.options), "registry": str(entry.file) if entry.file else None}
