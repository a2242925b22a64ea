"""`forge-env list` and `forge-env info`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from forge_env.cli.output import Json, emit, note, say, show_json, show_table


def list_names(
    kind: Annotated[Literal["all", "env", "tools"], typer.Option(help="Only environments, or only tools.")] = "all",
    as_json: Json = False,
) -> None:
    """List every name, and where it comes from."""
    from forge_env.registry.registry import entries

    found = [entry for entry in entries() if kind in ("all", entry.kind)]
    if as_json:
        emit({"entries": [_as_data(entry) for entry in found]})
        return
    show_table(
        ("name", "kind", "from", "target", "description"),
        [(e.name, e.kind, e.source, e.target, e.description) for e in found],
    )


def info(
    name: Annotated[str, typer.Argument(help="A name that `forge-env list` shows, or a target.")],
    import_timeout: Annotated[float, typer.Option(help="Seconds that importing it may take.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Show what a name stands for: its schema, its options, where it is defined."""
    from forge_env.cli.child import examine_in_child
    from forge_env.registry.registry import find, resolve

    entry = resolve(name)
    kind = entry.kind if find(name) is not None else ""
    data = examine_in_child(entry, kind=kind, seconds=import_timeout)
    notes = data.pop("notes", [])
    data |= {"target": entry.target, "settings": dict(entry.options), "source": entry.source}
    data |= {"registry": str(entry.file) if entry.file else None, "notes": notes}
    if as_json:
        emit(data)
        return
    say(f"from: {entry.source}{f' ({entry.file})' if entry.file else ''}")
    say(f"target: {entry.target}")
    if data["file"]:
        say(f"defined in: {data['file']}, line {data['line']}")
    show_schemas(data)
    for remark in notes:
        note(remark)


def show_schemas(data: dict[str, Any]) -> None:
    """Print what `examine` says of a target, for people."""
    say(f"{data['name']} ({data['kind']}): {data['description']}")
    if data["options"]:
        rows = [(o["name"], o["type"], "required" if o["required"] else str(o["default"])) for o in data["options"]]
        show_table(("option", "type", "default"), rows)
    for tool in data["tools"]:
        say(f"tool {tool['name']}: {tool['description']}")
        show_json(tool["parameters"])
        say(", ".join(f"{option} {value}" for option, value in tool["options"].items() if value not in (None, [])))


def _as_data(entry: Any) -> dict[str, Any]:
    return {
        "name": entry.name,
        "kind": entry.kind,
        "target": entry.target,
        "settings": dict(entry.options),
        "description": entry.description,
        "source": entry.source,
        "registry": str(entry.file) if entry.file else None,
    }
