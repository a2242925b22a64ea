"""`forge-env export-model`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge_env.cli.output import Json, emit, say, stdout_to_stderr
from forge_env.utils.targets import load

EXPORT = "agents.model_folder:export_model"
"""The function that writes the model: forge_env does not import agents."""
_RUN = "Folder of a training run, also one that is stopped or running: RUN, RUN@best or RUN@40; or of a checkpoint."
_STEP = "Optimizer steps, best or last; the same as @STEP after RUN."


def export_model(
    run: Annotated[str, typer.Argument(help=_RUN)],
    out: Annotated[Path, typer.Option(help="New folder of the model.")],
    step: Annotated[str, typer.Option(help=_STEP)] = "",
    as_json: Json = False,
) -> int:
    """Write trained weights as a Hugging Face folder; nothing is left of an export that does not end.

    transformers and vLLM load the folder. The command export writes recorded episodes.
    """
    with stdout_to_stderr(as_json):
        weights = load(EXPORT)(f"{run}@{step}" if step else run, out)
    if as_json:
        emit({"run": str(weights.run), "step": weights.step, "out": str(out)})
    else:
        of_step = "" if weights.step is None else f" after step {weights.step}"
        say(f"the model of {weights.run}{of_step} is in {out}")
    return 0
