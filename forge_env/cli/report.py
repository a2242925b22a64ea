"""`forge-env report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge_env.cli.output import Json, emit, say


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a training run, which may still be running.")],
    as_json: Json = False,
) -> None:
    """Write the report.html of a training run from the present content of its folder."""
    from forge_env.report.page import write_page

    path = write_page(run)
    if as_json:
        emit({"report": str(path)})
    else:
        say(f"wrote {path}")
