"""Rows with routes."""

from __future__ import annotations

import dataclasses

import numpy as np

from forge_env.core.episode import Row
from forge_env.core.routes import Routes


def distinct(rng: np.random.Generator, shape: tuple[int, ...], experts: int, active: int) -> np.ndarray:
    """Random experts that differ within each place: (*shape, active) uint8."""
    return rng.permuted(np.broadcast_to(np.arange(experts), (*shape, experts)), axis=-1)[..., :active].astype(np.uint8)


def random_routes(row: Row, rng: np.random.Generator, *, layers: int, experts: int, active: int) -> Row:
    """The row with random routes, as two turns have them: of its first part, and of the rest with a hole between."""
    count = len(row.token_ids) - 1
    cut = int(rng.integers(0, count + 1))
    start = min(cut + int(rng.integers(0, 3)), count)
    parts = [Routes.of(0, distinct(rng, (cut, layers), experts, active))] if cut else []
    parts += [Routes.of(start, distinct(rng, (count - start, layers), experts, active))] if start < count else []
    return dataclasses.replace(row, routes=tuple(parts))
