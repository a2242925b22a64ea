"""The tasks of an OpenEnv environment: those that its server lists, or seeds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from contrib.common.adapters import draw_seeds
from contrib.openenv.description import HttpApi, Split
from envs.task_splits import bucket
from forge_env.core.errors import TooFewTasks, UserError
from forge_env.core.plain_value import kind_problem, messages_problem
from forge_env.core.types import Message, Task

SOURCES = ("auto", "seeds", "server")
TEST_SHARE = 5
"""One task in five is held out, where the server lists one split only."""
_PROMPTS, _TARGETS = ("prompt", "question", "instruction", "goal", "task"), ("answer", "target", "solution")
_KINDS = {"train": ("train",), "test": ("test", "validation")}


def seed_tasks(name: str, split: str, *, count: int, seed: int) -> list[Task]:
    """One task for each seed; seeds of "train" are even, seeds of "test" odd."""
    seeds = draw_seeds(split, count=count, seed=seed)
    return [Task(prompt=_message(f"{name}, episode {number}."), metadata={"seed": number}) for number in seeds]


def server_tasks(api: HttpApi, splits: Sequence[Split], split: str, *, count: int, seed: int) -> list[Task]:
    its_split = next((s for s in splits if s.name == split), None) or next(
        (s for kind in _KINDS[split] for s in splits if s.kind == kind), None
    )
    is_only = len(splits) == 1
    if is_only:
        its_split = splits[0]
    if its_split is None:
        names = ", ".join(s.name for s in splits)
        raise UserError(f"the server at {api.url} lists the splits {names}, and none of them is for {split}")
    indices = [
        i for i in range(api.num_tasks(its_split)) if not is_only or (bucket(i, TEST_SHARE) == 0) == (split == "test")
    ]
    if len(indices) < count:
        text = f"{count} {split} tasks were asked for, and the server at {api.url} lists {len(indices)}"
        raise TooFewTasks(text, len(indices))
    choice = random.Random(f"{split}/{seed}").sample(indices, count)
    return [_task(its_split, index, spec) for index, spec in zip(choice, api.tasks(its_split, choice), strict=True)]


def _task(split: Split, index: int, spec: Any) -> Task:
    fields = spec if isinstance(spec, dict) else {}
    metadata = {"split": split.name, "index": index, "spec": spec}
    if not messages_problem(fields.get("prompt")):  # the whole conversation, which the first observation repeats
        prompt, kind, id_ = tuple(fields["prompt"]), fields.get("kind", ""), str(fields.get("id", ""))
        return Task(prompt=prompt, metadata=metadata, id=id_, kind="" if kind_problem(kind) else kind)
    text = spec if isinstance(spec, str) else next((fields[n] for n in _PROMPTS if isinstance(fields.get(n), str)), "")
    target = next((fields[n] for n in _TARGETS if isinstance(fields.get(n), (str, int, float))), None)
    prompt = _message(text or f"{split.env}, task {index} of the split {split.name}.")
    return Task(prompt=prompt, target=target, metadata=metadata)


def _message(text: str) -> tuple[Message, ...]:
    return (Message(role="user", content=text),)
