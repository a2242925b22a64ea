"""Several environments in one run: the names, labels and weights that `env.name` states."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from forge_env.core.errors import UserError

JOINT = " + "
"""Between the environments of `env.name`, as in "math + code_exec:0.5"."""


class Named(NamedTuple):
    """An environment of a run."""

    name: str
    """A registered name, or a target."""
    weight: float = 1.0
    """Its share of the training is this part of the sum of all weights."""


def read_names(text: str) -> dict[str, Named]:
    """The environments that `env.name` names, by label.

    A label is the last part of a name, with a number if it is not the first of that name; "" is the only environment.

    >>> for label, part in read_names("math + pets.py:Cat:0.5 + math").items():
    ...     print(label, *named)
    math math 1.0
    Cat pets.py:Cat 0.5
    math_2 math 1.0
    """
    parts = [read_name(part) for part in text.split(JOINT)]
    if not math.fsum(part.weight for part in parts) > 0:
        raise UserError(f"--env is {text}: the weights sum to 0, and no environment is trained on: give one above 0")
    if len(parts) == 1:
        return {"": parts[0]} if parts[0].name else {}
    return dict(zip(labels(part.name for part in parts), parts, strict=True))


def labels(names: Iterable[str]) -> list[str]:
    made: list[str] = []
    for name in names:
        label = re.sub(r"[^A-Za-z0-9_-]", "_", re.split(r"[:/]", name)[-1]) or "env"
        count = next(n for n in range(1, len(made) + 2) if (label if n == 1 else f"{label}_{n}") not in made)
        made.append(label if count == 1 else f"{label}_{count}")
    return made


def read_name(text: str) -> Named:
    """An environment and its weight: a number behind the last colon is the weight, anything else is of the name."""
    name, colon, number = text.strip().rpartition(":")
    try:
        weight = float(number if colon else "none")
    except ValueError:
        return Named(text.strip())
    if not 0 <= weight < math.inf:
        raise UserError(
            f"--env {text.strip()}: the weight {number} is no share of the training; give a finite number, 0 or more"
        )
    return Named(name, weight)
