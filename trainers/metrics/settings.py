"""What a run measures: evaluations and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Ge, Interval

from forge_env.core.errors import UserError
from forge_env.core.types import HOTTEST
from forge_env.records.sinks import load_sink
from forge_env.registry.contrib import rows
from forge_env.utils.settings import MAY_CHANGE

SINKS = "--metrics.sinks"
TENSORBOARD, SYSTEM = "tensorboard", "system"
"""The sink and the observer that settings are about, where a folder of contrib has them."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The evaluations of a run: before, after, and in between; always the held-out tasks, with the same seeds.

    They have a sampling of their own, so that figures of runs with different training temperatures compare.
    """

    interval: Annotated[int, Ge(0), MAY_CHANGE] = 0
    """Optimizer steps between two evaluations; 0 is none between the first and the last."""
    n: Annotated[int, Ge(1)] = 1
    """Attempts at each task."""
    temperature: Annotated[float, Interval(ge=0, le=HOTTEST)] = 1.0
    """The sampling temperature of evaluations, which does not follow the temperature of training; 0 is greedy."""
    top_p: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """The share of the probability, the likeliest tokens first, that evaluations sample from; 1 is all."""
    greedy: bool = True
    """Each evaluation also measures a second figure: temperature 0, one attempt at each task. With temperature 0 there
    is none beside it."""
    sets: dict[str, Any] = field(default_factory=dict)
    """Further held-out sets of the same environment. Each has a figure of its own: `--evaluation.sets.NAME.split`,
    `.tasks`, and `.options.OPTION` for options of the environment that differ."""

    def check(self) -> None:
        """Raise UserError for sampling that makes no sense."""
        if self.temperature == 0 and self.n > 1:
            raise UserError(
                f"--evaluation.temperature is 0 and --evaluation.n is {self.n}: greedy attempts at a task are all the "
                "same, so set --evaluation.n to 1"
            )


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """Where metrics go, beside metrics.jsonl and the console; docs/metrics.md."""

    tensorboard: bool = field(default_factory=lambda: TENSORBOARD in rows("sinks"))
    """Whether TensorBoard's files are written."""
    sinks: list[str] = field(default_factory=list)
    """Further sinks, with commas between them: by name, such as NAME or NAME:MODE, or your own "module:Class"; see
    forge_env/records/sinks.py."""
    verbose: bool = False
    """Print the phases of the start, too, with the time that each took."""
    system_seconds: Annotated[float, Ge(0)] = field(
        default_factory=lambda: 10.0 if SYSTEM in rows("observers") else 0.0
    )
    """Seconds between two measurements of CPU, memory, disk and GPUs; 0 is none."""

    def check(self) -> None:
        """Raise UserError for a sink that cannot work, and for a part that is not installed."""
        if self.tensorboard and TENSORBOARD not in rows("sinks"):
            raise UserError(
                "--metrics.tensorboard is true, and no part for TensorBoard's files is installed: set it to false"
            )
        if self.system_seconds and SYSTEM not in rows("observers"):
            raise UserError(
                f"--metrics.system_seconds is {self.system_seconds:g}, and no part that measures the machine is "
                "installed: set it to 0"
            )
        for entry in self.sinks:
            load_sink(entry, SINKS)
