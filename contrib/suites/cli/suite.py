"""`forge-env suite install` and `forge-env suite list`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forge_env.cli.output import Json, emit, note, say, show_table
from forge_env.utils.targets import load

app = typer.Typer(rich_markup_mode=None)

_CATALOGUE = "contrib.suites.catalogue"  # a package above this one, and so named by its target


@app.command("install")
def install(name: Annotated[str, typer.Argument(help="Name of a suite: agentdojo, bfcl or humaneval.")]) -> int:
    """Make a Python environment for a suite in the user's cache, with the package that ships its tasks."""
    note(f"installing the suite {name}; this may take minutes")
    result = load(f"{_CATALOGUE}:install")(name)
    say(f"{result.label} is in {result.python}")
    return 0


@app.command("list")
def list_suites(as_json: Json = False) -> int:
    """Show each suite, its package, and the interpreter that has it."""
    rows: list[dict[str, Any]] = load(f"{_CATALOGUE}:overview")()
    if as_json:
        emit({"suites": rows})
        return 0
    show_table(("suite", "package", "installed in"), [(r["name"], r["package"], r["python"] or "-") for r in rows])
    return 0
