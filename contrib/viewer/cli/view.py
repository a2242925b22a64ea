"""`forge-env view`."""

from __future__ import annotations

import sys
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forge_env.cli.output import note, say
from forge_env.core.errors import UserError

if TYPE_CHECKING:
    from contrib.viewer.library import Library


def view(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folder of a run, a folder of runs, or a .jsonl file; two are compared task by task."),
    ],
    export: Annotated[Path | None, typer.Option(help="Write one HTML file that needs no server, and exit.")] = None,
    episodes: Annotated[int, typer.Option(help="Maximum number of episodes in the exported file.")] = 200,
    model: Annotated[str, typer.Option(help="Folder of the model that wrote the tokens, where the run has none.")] = "",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> int:
    """Show runs in a browser: curves, groups, episodes token by token, faults, timeline; or compare two."""
    from contrib.viewer.library import Library

    folder = Path(model).expanduser() if model else None
    if folder is not None and not (folder / "tokenizer.json").is_file():
        raise UserError(f"--model {folder} holds no tokenizer.json: give the folder of a model")
    if not 0 <= port <= 65535:
        raise UserError(f"--port {port} is no port: give one from 1 to 65535, or 0 for any free port")
    with Library(*runs, model=folder) as library:
        if export is None:
            if len(runs) == 2:
                library.check_comparable()
            return _serve(library, host, port, open_browser, is_comparison=len(runs) == 2)
        from contrib.viewer.export import export as write
        from contrib.viewer.export import unreadable_lines

        count, total = write(library, export, episodes=episodes)
        left_out = f", the most informative of {total:,}; --episodes sets how many" if count < total else ""
        say(f"{export}: {count:,} episodes{left_out}")
        if bad := unreadable_lines(library):
            note(f"lines that cannot be read as episodes: {bad:,}; the page lists them under Faults")
        return 0


def _serve(library: Library, host: str, port: int, open_browser: bool, *, is_comparison: bool) -> int:
    from contrib.viewer.server import ViewServer

    with ViewServer(library, host=host, port=port) as server:
        url = server.url + (library.comparison_address if is_comparison else "")
        say(f"{library.place}: {url}")
        note("the server runs until Ctrl-C; whoever has this address can read the runs")
        sys.stdout.flush()
        if open_browser:
            webbrowser.open(url)
        while True:
            time.sleep(0.5)  # without end it would lose a signal that comes just before it
