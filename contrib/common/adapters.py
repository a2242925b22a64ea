"""What adapters of environments of others share: options in JSON, seeds as tasks, and answers to calls."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from contrib.common.json_text import read
from envs.task_splits import check_split
from forge_env.core.errors import UserError
from forge_env.core.types import Message, ToolCall
from forge_env.tool_env.tool_env import answer_to


def json_object(value: str | Mapping[str, Any], option: str, example: str) -> dict[str, Any]:
    """Return the object that an option is, or that its text holds; "" is an empty one."""
    if not isinstance(value, str):
        return dict(value)
    try:
        data = read(value or "{}")
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise UserError(f"the option {option} is {value!r:.80}; write it as a JSON object, for example {example}")
    return data


def draw_seeds(split: str, *, count: int, seed: int, pairs: int = 2**30) -> list[int]:
    """Draw `count` distinct seeds below 2 * `pairs`; even ones for "train", odd ones for "test"."""
    check_split(split)
    rng = random.Random(f"{split}/{seed}")
    seeds: dict[int, None] = {}
    while len(seeds) < count:
        seeds[2 * rng.randrange(pairs) + (split == "test")] = None
    return list(seeds)


def refuse_calls(calls: Sequence[ToolCall], form: str) -> list[Message]:
    """Answer calls where there are no tools; `form` is what the model writes instead."""
    return [answer_to(call, f"Error: there are no tools; write your {form} as text.") for call in calls]
