"""`forge-env report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge_env.cli.output import Json, emit, note, say
from forge_env.core.errors import UserError

_OTHERS = {
    "plan.json": "an evaluation that has not ended: the same command goes on with it",
    "set.json": "a set of evaluations: name the folder of one of them",
}
"""Files of folders without a state, and what these hold."""


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a training run, which may still be running.")],
    text: Annotated[
        bool, typer.Option("--text", help="Print the state of the run, or the tables of an evaluation's folder.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the report.html of a training run from the present content of its folder, or print its state."""
    from forge_env.evaluation.folder import RESULT

    if text and (run / RESULT).is_file():
        _show_evaluation(run, as_json=as_json)
        return
    if text:
        from contrib.viewer.report.text import run_text

        for name, what in _OTHERS.items():
            if (run / name).is_file():
                raise UserError(f"{run} holds {what}")
        state = run_text(run)
        emit({"text": state}) if as_json else say(state)
        return
    from contrib.viewer.export import write_page

    path = write_page(run)
    emit({"report": str(path)}) if as_json else say(f"wrote {path}")


def _show_evaluation(folder: Path, *, as_json: bool) -> None:
    from forge_env.cli.eval_output import show_result
    from forge_env.evaluation.api import notes
    from forge_env.evaluation.folder import RESULT
    from forge_env.records.run_files import read_object

    result = read_object(folder / RESULT)
    if as_json:
        emit(result)
        return
    try:
        show_result(result | {"out": str(folder), "episodes_run": 0, "episodes_read": result["episodes"]})
        for text in notes(result, folder):
            note(text)
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{folder / RESULT} is not of an evaluation: {type(error).__name__} {error}") from None
