"""Splits tasks by content, so that held-out tasks are new in substance; for generated tasks and for rows of files."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from forge_env.core.errors import TooFewTasks, UserError, nearest
from forge_env.core.types import Task
from forge_env.data.rows import field_of

C = TypeVar("C", bound=Hashable)

SYMBOLS = {"plus": "+", "minus": "-", "times": "*"}


def bucket(content: object, buckets: int) -> int:
    """Return a number below `buckets` for a content, the same in every process and run."""
    value = hashlib.blake2b(repr(content).encode(), digest_size=8).digest()
    return int.from_bytes(value, "little") % buckets


def is_held_out_pair(operation: str, constant: Hashable) -> bool:
    """Whether a pair of operation and constant, or constants, is held out from training: one in ten."""
    return bucket((operation, constant), 10) == 0


def check_split(split: str, splits: Sequence[str] = ("train", "test"), *, name: str = "") -> None:
    """Refuse a split that an environment, or what has the `name`, does not have."""
    if split not in splits:
        raise UserError(f"there is no split {split!r}{f' of {name}' if name else ''}. {nearest(split, splits)}")


def draw_tasks(
    split: str,
    *,
    count: int,
    seed: int,
    draw: Callable[[random.Random], C],
    pair: Callable[[C], tuple[str, Hashable]],
    make: Callable[[C], Task],
    by_pair_only: bool = False,
) -> list[Task]:
    """Draw `count` distinct tasks of a split.

    A content is held out when its pair of operation and constant is, or by its own hash. Half of the "test" tasks have
    pairs that are not in training, the other half new combinations of known parts.

    Args:
        by_pair_only: hold out nothing by its own hash, so that all "test" tasks have pairs that are not in training.
    """
    check_split(split)
    rng = random.Random(f"{split}/{seed}")
    contents: dict[C, None] = {}
    unseen_pairs = 0
    for _ in range(200 * count + 1000):
        if len(contents) == count:
            break
        content = draw(rng)
        new_pair = is_held_out_pair(*pair(content))
        held_out = new_pair or (not by_pair_only and bucket(content, 10) == 0)
        if content in contents or held_out != (split == "test"):
            continue
        if split == "test" and not by_pair_only and new_pair and unseen_pairs >= (count + 1) // 2:
            continue
        unseen_pairs += new_pair
        contents[content] = None
    if len(contents) < count:
        text = f"{count} distinct {split} tasks were asked for, {len(contents)} were found: ask for fewer"
        raise TooFewTasks(text, len(contents))
    return [make(content) for content in contents]


def kind_of_row(row: Mapping[str, Any], column: str = "") -> str:
    """Return the `Task.kind` of a row: its value in `column`, as a text; by default in "kind", if there is that column.

    Args:
        column: name of the column, or of a field as `field_of` has it; "" is "kind", which a row may lack.
    """
    kind = field_of(row, column, what="kind") if column else row.get("kind")
    return "" if kind is None else str(kind).strip()
