"""Draws tasks of a suite: the whole suite, or a part that is held out by content."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from contrib.common.drawn_solutions import Script, prompt_key, remember
from envs.task_splits import bucket, check_split
from forge_env.core.errors import TooFewTasks
from forge_env.core.types import Task

TEST_SHARE = 5
"""One question in five is "test", chosen by a hash of the prompt."""
SPLITS = ("all", "train", "test")
UNSOUND = "unsound"
"""Key in the metadata of a task that its suite scores wrongly, with the reason; it is in "all" only."""


def select(
    name: str,
    tasks: Iterable[Task],
    script_of: Callable[[Task], Script],
    split: str,
    *,
    count: int,
    seed: int,
    each_prompt_once: bool = False,
) -> list[Task]:
    """Return `count` tasks of a split, shuffled by the seed; of "all", which is the whole suite, fewer if it has fewer.

    "train" and "test" have no unsound task. The expert of the suite knows the drawn tasks.

    Args:
        script_of: returns the solution of a task that has a target.
        each_prompt_once: of tasks with the same prompt, "train" and "test" have one: the expert could not tell which.
    """
    check_split(split, SPLITS, name=name)
    selection = [task for task in tasks if split == "all" or _is_in(task, split)]
    random.Random(f"{split}/{seed}").shuffle(selection)
    if split != "all" and each_prompt_once:
        selection = list({prompt_key(task.prompt): task for task in reversed(selection)}.values())[::-1]
    if split != "all" and len(selection) < count:
        raise TooFewTasks(
            f"{count} {split} tasks of {name} were asked for, there are {len(selection)}: ask for fewer, or take the "
            "whole suite, which is the split all",
            len(selection),
        )
    for task in selection[:count]:
        if task.target is not None:
            remember(name, task, script_of(task))
    return selection[:count]


def tool_calls(calls: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return calls, each with its "name" and "arguments", in the form of a message."""
    return [
        {"id": f"call_{i}", "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
        for i, call in enumerate(calls)
    ]


def _is_in(task: Task, split: str) -> bool:
    return UNSOUND not in task.metadata and (bucket(prompt_key(task.prompt), TEST_SHARE) == 0) == (split == "test")
