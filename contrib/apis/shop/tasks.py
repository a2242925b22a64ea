"""Tasks over the shop: a request in words, the shop it is made to, and the writes that fulfil it.

Scoring compares the final state of the database with the expected one, which comes from doing the task's writes on a
fresh copy of its shop by the same code that serves the model. Any way to that state is right; any
further change makes it wrong. The text of the agent does not count.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict

from contrib.apis.shop.content import Focus, Shop, make_shop
from contrib.apis.shop.database import State, memory_database, read_state
from contrib.apis.shop.operations import perform
from contrib.apis.shop.task_kinds import KINDS, Content, facts, words
from envs.task_splits import draw_tasks
from forge_env.core.errors import UserError
from forge_env.core.types import Task

LEVELS = (1, 2, 3)


def shop_tasks(split: str = "train", *, count: int, seed: int = 0, levels: Sequence[int] = LEVELS) -> list[Task]:
    """Return distinct tasks of some levels.

    Level 1 asks for one change, with one look-up at most. Level 2 needs two look-ups or more before it. Level 3
    compares what was looked up, such as prices or dates; in part of its tasks the right thing is to change nothing.
    `target` is the list of writes that fulfil the task, as [operation, arguments]; `metadata` holds the level
    and how to make the shop.
    """
    if not levels or set(levels) - set(LEVELS):
        raise UserError(f"the levels {list(levels)} of shop tasks are not there; choose from {list(LEVELS)}")
    kinds = [name for name, kind in KINDS.items() if kind.level in levels]
    return draw_tasks(
        split,
        count=count,
        seed=seed,
        draw=lambda rng: _draw(rng, rng.choice(kinds)),
        pair=lambda content: (content.kind, content.subject),
        make=_make_task,
    )


def shop_of(task: Task) -> Shop:
    return make_shop(task.metadata["shop"]["seed"], Focus(**task.metadata["shop"]["focus"]))


def expected_state(task: Task) -> State:
    with memory_database(shop_of(task)) as db:
        for name, arguments in task.target:
            perform(db, name, arguments)
        return read_state(db)


def score(state: State, task: Task) -> float:
    """Return the reward of a final state: 1 when all of it is as expected, else 0."""
    return float(state == expected_state(task))


def _draw(rng: random.Random, name: str) -> Content:
    kind = KINDS[name]
    return Content(name, rng.choice(kind.subject), rng.choice(kind.products), rng.choice(kind.numbers))


def _make_task(content: Content) -> Task:
    kind, seed = KINDS[content.kind], "/".join(map(str, content))
    focus = kind.focus(content, random.Random(f"focus/{seed}"))
    writes = kind.writes(facts(content, focus, make_shop(seed, focus)))
    return Task(
        prompt=({"role": "user", "content": kind.text.format(**words(content))},),
        target=[[name, arguments] for name, arguments in writes],
        # The metadata keeps the kind, too, because the id of a task is a hash of its metadata.
        metadata={"level": kind.level, "kind": content.kind, "shop": {"seed": seed, "focus": asdict(focus)}},
        kind=content.kind,
    )
