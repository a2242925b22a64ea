"""Routes of rows in the layout of a micro-batch: the experts that the engine chose for each token.

The trainer computes a token with these experts (routing replay, arXiv 2510.11370). Where the engine has none of a token
the number is -1, and the trainer's router chooses itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from forge_env.core.errors import InvariantError

if TYPE_CHECKING:
    from forge_env.core.episode import Row


def routes_shape(rows: Iterable[Row]) -> tuple[int, int] | None:
    """Layers with experts, and active experts of each, in the routes of all rows; None if there are none."""
    shapes = {(routes.layers, routes.active) for row in rows for routes in row.routes}
    if len(shapes) > 1:
        counts = " and ".join(f"{active} experts in {layers} layers" for layers, active in sorted(shapes))
        raise InvariantError(f"the rows of a step have routes of several models: {counts}")
    return shapes.pop() if shapes else None


def highest_expert(rows: Iterable[Row]) -> int:
    """The highest number of an expert in the routes of rows; -1 if there are none."""
    return max((int(routes.experts.max()) for row in rows for routes in row.routes if routes.data), default=-1)


def write_routes(row: Row, place: np.ndarray) -> int:
    """Write the experts of a row's first tokens into `place`; returns how many of these tokens have none.

    Args:
        row: with routes or without.
        place: (tokens, layers, active) int16, filled with -1.
    """
    for routes in reversed(row.routes):  # where two have a token, the first counts
        end = min(routes.start + routes.tokens, len(place))
        if routes.start < end:
            place[routes.start : end] = routes.experts[: end - routes.start]
    return int(np.count_nonzero(place[:, 0, 0] < 0))
