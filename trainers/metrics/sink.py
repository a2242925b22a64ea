"""The one interface of everything that gets the metrics of a run.

JSON lines, TensorBoard, Weights & Biases and the console get each record at once. So does a sink of your own,
`--metrics.sinks my_module:MySink`:

    class MySink:
        def __init__(self, folder: Path, config: dict):    # of the run; the config as nested dictionaries
            ...

        def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
            ...

        def close(self) -> None:
            ...

It runs in a thread of its own, see trainers/metrics/background.py. A class may also have `go_back(records)`: it is
called with the records that stay when a run is resumed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from forge_env.core.errors import UserError
from forge_env.utils.targets import load


class Record(NamedTuple):
    """One measurement. Example: ``Record("train", 3, {"reward": 0.5, "loss": 0.01})``"""

    phase: str
    """"warmup", "train", "evaluation", or "system"."""
    step: int
    """Optimizer steps of the phase; for "system" seconds since the start of the run."""
    values: Mapping[str, float]


class Sink(Protocol):
    """Gets what a run measures."""

    def log(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """Take one record; see `Record`. Steps of a phase rise."""
        ...

    def close(self) -> None:
        """Write what is left. Nothing is logged afterwards."""
        ...


@runtime_checkable
class Reversible(Protocol):
    """A sink that can forget."""

    def go_back(self, records: Sequence[Record]) -> None:
        """Be as if exactly these records had been logged: the run goes on after the last of them."""
        ...


def load_sink(target: str) -> type[Sink]:
    """Return the class of a sink of the user's own."""
    option = f"--metrics.sinks {target}"
    sink_class: Any = load(target, option="--metrics.sinks")
    if not isinstance(sink_class, type):
        raise UserError(f"{option} is {sink_class!r}; it must be a class with the methods log and close")
    signatures: dict[str, tuple[Any, ...]] = {"log": ("phase", 1, {}), "close": ()}
    for name, arguments in signatures.items():
        method = getattr(sink_class, name, None)
        if not callable(method) or not _takes(method, None, *arguments):
            raise UserError(f"{option}: {sink_class.__name__} has no method {_SIGNATURES[name]}: a sink needs it")
    if not _takes(sink_class, Path(), {}):
        raise UserError(
            f"{option}: {sink_class.__name__} is made as {sink_class.__name__}(folder, config), and does not take that"
        )
    return sink_class


_SIGNATURES = {"log": "log(self, phase, step, values)", "close": "close(self)"}


def _takes(function: Any, *arguments: Any) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    return True
