"""The tasks of code_exec of level 4: the folder of the python tool has a file that the model must explore.

The task does not tell its separator, the order and names of its columns, and the spelling of its values. So the model
looks at the file first and then reads it; variables are kept from call to call. The answer is a function.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from envs.code_exec.story_tasks import Step
from envs.task_splits import SYMBOLS, draw_tasks
from forge_env.core.types import Task

Content = tuple[str, str, str, int, int]  # measure, place, operation, constant, number of the file


_MEASURES = {
    "total": ("the total amount", "sum(found)"),
    "largest": ("the largest amount", "max(found)"),
    "spread": ("the largest less the smallest amount", "max(found) - min(found)"),
    "last": ("the last amount in the file", "found[-1]"),
}
"""Name -> the text of a value of the amounts of one place, and its code, of the list `found`."""
_PLACES = ("Oslo", "Lima", "Kyoto", "Accra", "Quito", "Turin")
_PLACE_NAMES = ("city", "town", "place", "where")
_AMOUNT_NAMES = ("amount", "sum", "price", "euros")
_SEPARATORS = (",", ";", "|", "\t")
_QUESTION = re.compile(
    r"The orders are in the file (\w+\.txt)\. Write f\(x\): x (plus|minus|times) (.+) of the orders from (\w+), "
    r"plus (\d+)\."
)
_SYSTEM = "Only python has the file. Look at it first. Answer with code."


def tasks_with_files(split: str, *, count: int, seed: int) -> list[Task]:
    return draw_tasks(split, count=count, seed=seed, draw=_draw, pair=lambda c: (c[0], c[3]), make=_make_task)


def next_step(question: str, results: Sequence[str]) -> Step | None:
    """Return the expert's next step: look at the file, read its rows, calculate the value, answer."""
    match = _QUESTION.fullmatch(question)
    if match is None:
        return None
    name, operation, measure_text, place, constant = match.groups()
    if not results:
        return Step(code=f"print(open({name!r}).read()[:120])")
    if len(results) == 1:
        separator = next((s for s in _SEPARATORS if s in results[0]), ",")
        read = f"rows = [line.strip().split({separator!r}) for line in open({name!r})]"
        code = f"{read}\nprint({{name: i for i, name in enumerate(rows.pop(0))}})"
        return Step(code=code)
    if len(results) == 2:
        where, amount = _columns(results[0])
        values = f"[int(r[{amount}]) for r in rows if r[{where}].strip().lower() == {place.lower()!r}]"
        return Step(code=f"found = {values}\nprint({dict(_MEASURES.values())[measure_text]})")
    return Step(code=f"def f(x): return x {SYMBOLS[operation]} {results[-1]} + {constant}", is_answer=True)


def _columns(head: str) -> tuple[int, int]:
    names = re.split(r"[,;|\t]", head.partition("\n")[0].strip())
    where = next((i for i, name in enumerate(names) if name in _PLACE_NAMES), 0)
    return where, next((i for i, name in enumerate(names) if name in _AMOUNT_NAMES), 0)


def _draw(rng: random.Random) -> Content:
    operation = rng.choice(list(SYMBOLS))
    return rng.choice(list(_MEASURES)), rng.choice(_PLACES), operation, rng.randint(2, 99), rng.randint(100, 999)


def _make_task(content: Content) -> Task:
    measure, place, operation, constant, number = content
    rng = random.Random(repr(content))
    orders = [(rng.choice(_PLACES), rng.randint(100, 9999)) for _ in range(rng.randint(40, 80))]
    orders += [(place, rng.randint(100, 9999)) for _ in range(2)]  # so that there are orders of the place
    text, code = _MEASURES[measure]
    value: int = eval(code, {"found": [amount for other, amount in orders if other == place]})
    arguments = rng.sample(range(1000, 10_000), 3)
    results = [{"plus": x + value, "minus": x - value, "times": x * value}[operation] + constant for x in arguments]
    name = f"orders_{number}.txt"
    question = (
        f"The orders are in the file {name}. Write f(x): x {operation} {text} of the orders from {place}, "
        f"plus {constant}."
    )
    tests = [
        {"type": "call", "function": "f", "args": repr(x), "accepted": [repr(y)]}
        for x, y in zip(arguments, results, strict=True)
    ]
    return Task(
        prompt=({"role": "user", "content": question},),
        target={"tests": tests},
        metadata={
            "level": 4,
            "operation": measure,
            "constant": constant,
            "system": _SYSTEM,
            # It defines no name. It runs again when the state of a session is lost.
            "setup": f"with open({name!r}, 'w') as _file: _file.write({_file(rng, orders)!r})\ndel _file",
        },
        kind=measure,
    )


def _file(rng: random.Random, orders: Sequence[tuple[str, int]]) -> str:
    """Write the orders in a random format, which the model must discover."""
    separator = rng.choice(_SEPARATORS)
    columns = ["day", "number", rng.choice(_PLACE_NAMES), rng.choice(_AMOUNT_NAMES)]
    order = rng.sample(range(len(columns)), len(columns))
    rows = [columns]
    for number, (place, amount) in enumerate(orders):
        spelt = rng.choice((place, place.upper(), place.lower()))
        rows.append([str(rng.randint(1, 28)), str(number), spelt, str(amount)])
    return "".join(separator.join(row[i] for i in order) + "\n" for row in rows)
