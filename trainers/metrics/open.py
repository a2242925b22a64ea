"""The sinks that a config asks for, beside the run's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from forge_env.records.background import Background
from forge_env.records.background import open_sinks as open_named
from trainers.metrics.tensorboard import TensorBoard

OPTION = "--metrics.sinks"


def open_sinks(folder: Path, config: Mapping[str, Any], say: Callable[[str], None]) -> list[Background]:
    """Start them, each in a thread of its own.

    Args:
        folder: of the run.
        config: of the run, as nested dictionaries.
        say: gets a message when a sink is too slow, or is switched off because it raised.
    """
    settings = config["metrics"]
    own = [Background("TensorBoard", partial(TensorBoard, folder, config), say)] if settings["tensorboard"] else []
    return own + open_named(settings["sinks"], OPTION, folder, config, say)
