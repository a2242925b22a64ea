"""`forge-env list` and `forge-env info`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from forge_env.cli.output import Json, emit, note, say, show_json, show_table, stdout_to_stderr

if TYPE_CHECKING:
    from forge_env.registry.registry_file import Entry


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
    show_table(
        ("name", "kind", "from", "target", "description"),
        [(e.name, e.kind, e.source, e.target, e.description) for e in matching],
    )


def info(
    name: Annotated[str, typer.Argument(help="A name of `forge-env list`, or a target.")],
    as_json: Json = False,
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
    return {
        "name": entry.name,
        "kind": entry.kind,
        "target": entry.target,
        "settings": dict(entry.options),
        "description": entry.description,
        "source": entry.source,
        "registry": str(entry.file) if entry.file else None,
    }
