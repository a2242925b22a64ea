"""The tasks of bug_fix, by level.

| level | files | what the model is told |
|---|---|---|
| 0 | a module with one of six functions, its tests | file, line, and what the function must return |
| 1 | a module with three functions, its tests | file and function |
| 2 | a package of three modules and a report, their tests | a call that returns something wrong |
| 3 | a package of five modules and a report, their tests | that a test of the report fails |

Held-out tasks have names of modules that training does not have. Those of level 0 have numbers that their functions do
not have in training, too, so that a small model can learn what carries over; those of the other levels have new faults,
or new combinations of functions.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence

from contrib.workspaces.bug_fix.part import DRAW, PARTS
from contrib.workspaces.bug_fix.repository import Calls, Function, Layout, NoCallsError, Repository, chains
from envs.task_splits import bucket, draw_tasks
from forge_env.core.errors import UserError
from forge_env.core.types import Task

LEVELS = (0, 1, 2, 3)
HIDDEN_CALLS = 6
"""Hidden calls of the function with the fault: half of them show it."""
FIRST_PARTS = ("clip", "totals", "fill", "checksum", "pieces", "enumerate_words")
"""The functions of level 0, of many numbers each."""
_FUNCTIONS = {0: 1, 1: 3, 2: 3, 3: 5}
_IS_PACKAGE = {0: False, 1: False, 2: True, 3: True}
_WORDS = [
    "amber",
    "apple",
    "bridge",
    "candle",
    "copper",
    "desert",
    "dragon",
    "engine",
    "feather",
    "forest",
    "garden",
    "hammer",
    "island",
    "jacket",
    "kitchen",
    "ladder",
    "market",
    "needle",
    "orange",
    "pencil",
    "rabbit",
    "silver",
    "tunnel",
    "window",
]


def tasks_of_level(level: int, split: str, *, count: int, seed: int) -> Sequence[Task]:
    """Draw distinct tasks of a level; what the test split has does not occur in training."""
    if level not in LEVELS:
        raise UserError(f"bug_fix has no level {level!r}; the levels are 0, 1, 2 and 3")

    def pair(layout: Layout) -> tuple[str, int]:
        function = layout.functions[layout.faulty]
        return function.part, function.number if level == 0 else layout.fault

    def draw(rng: random.Random) -> Layout:
        while True:
            layout = _draw_layout(level, split, rng)
            if _is_shown(layout):
                return layout

    return draw_tasks(
        split,
        count=count,
        seed=seed,
        draw=draw,
        pair=pair,
        make=lambda layout: _make(level, layout, pair(layout)[1]),
        by_pair_only=level == 0,
    )


def _draw_layout(level: int, split: str, rng: random.Random) -> Layout:
    count = _FUNCTIONS[level]
    parts = FIRST_PARTS if level == 0 else list(PARTS)
    names = rng.choice(_all_chains(count)) if _IS_PACKAGE[level] else rng.sample(parts, count)
    functions = tuple(Function(name, rng.choice(PARTS[name].numbers)) for name in names)
    faulty = rng.randrange(count)
    fault = rng.randrange(len(PARTS[names[faulty]].faults))
    return Layout(_draw_name(split, rng), functions, faulty, fault, _IS_PACKAGE[level])


def _draw_name(split: str, rng: random.Random) -> str:
    """Of two words: a model that has few names to learn writes those, and does not copy the one that it is told."""
    while True:
        name = "_".join(rng.sample(_WORDS, 2))
        if (bucket(name, 10) == 0) == (split == "test"):
            return name


@functools.cache
def _all_chains(length: int) -> Sequence[tuple[str, ...]]:
    """As many that begin with numbers as with text or words: of five numbers there are many more chains."""
    rng = random.Random(length)
    by_start = [list(chains(kind, length)) for kind in DRAW]
    least = min(map(len, by_start))
    return [chain for chains_of_kind in by_start for chain in rng.sample(chains_of_kind, least)]


@functools.lru_cache(maxsize=4096)
def _calls(layout: Layout) -> Mapping[str, Calls]:
    rng = random.Random(repr(layout))
    half = HIDDEN_CALLS // 2 + 1  # one is for the tests that the model sees
    return Repository(layout).calls(rng, showing=half, hiding=half)


def _is_shown(layout: Layout) -> bool:
    try:
        _calls(layout)
    except NoCallsError:
        return False
    return True


def _make(level: int, layout: Layout, constant: int) -> Task:
    repository = Repository(layout)
    calls = _calls(layout)
    sources = repository.sources(is_faulty=True)
    hidden = [call for own in calls.values() for call in (*own.showing[1:], *own.hiding[1:])]
    return Task(
        prompt=({"role": "user", "content": _question(level, repository, calls)},),
        target={
            "sources": list(sources),
            "calls": [[call.module, call.function, call.argument, call.expected] for call in hidden],
        },
        metadata={
            "level": level,
            "files": {**sources, **repository.tests(calls, shows_in_report_only=level == 3)},
            "solution": {repository.fault_path: repository.sources(is_faulty=False)[repository.fault_path]},
            "operation": repository.fault_function,
            "constant": constant,
        },
        kind=PARTS[repository.fault_function].takes,
    )


def _question(level: int, repository: Repository, calls: Mapping[str, Calls]) -> str:
    path, function = repository.fault_path, repository.fault_function
    if level == 0:
        about = repository.fault_about
        return (
            f"Line {repository.fault_line} of {path} is wrong. {function} must {about[0].lower()}{about[1:]} Mend it."
        )
    if level == 1:
        return f"The function {function} in {path} does not do what it says. Mend it."
    if level == 2:
        call = calls["report"].showing[0]
        example = f"report({call.argument!r}) of {repository.layout.name}.report must return {call.expected!r}"
        return f"{example}, and returns something else. Mend the package {repository.layout.name}."
    return f"A test in tests/test_report.py fails. Mend the package {repository.layout.name}, not its tests."
