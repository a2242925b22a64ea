"""Drawing tasks of a suite, and the solutions that its expert knows."""

from __future__ import annotations

from typing import Any

import pytest

from contrib.common.drawn_solutions import Script, expert_of
from contrib.suites.selection import UNSOUND, select
from forge_env import EnvError, Task, UserError


def task(number: int, prompt: int | None = None, **metadata: Any) -> Task:
    text = f"Question {number if prompt is None else prompt}?"
    return Task(prompt=({"role": "user", "content": text},), target=number, metadata=metadata, id=f"t{number}")


def script_of(task: Task) -> Script:
    return lambda messages: {"role": "assistant", "content": str(task.target)}


_UNSOUND: dict[str, Any] = {UNSOUND: "it pays for nothing"}
TASKS = [*(task(n) for n in range(100)), task(100, prompt=1), task(101, **_UNSOUND)]


def draw(split: str, count: int = 10, seed: int = 0) -> list[Task]:
    return select("small", TASKS, script_of, split, count=count, seed=seed, each_prompt_once=True)


def test_all_is_the_whole_suite_and_the_others_are_disjoint_and_sound() -> None:
    assert len(draw("all", 1000)) == 102
    train, test = ({t.prompt[0]["content"] for t in draw(split, size)} for split, size in (("train", 70), ("test", 10)))
    assert train & test == set()
    assert "Question 101?" not in train | test
    drawn = []
    for size in range(1, 101):
        try:
            drawn = draw("train", size)
        except UserError as error:
            assert f"{size} train tasks of small were asked for, there are {len(drawn)}" in str(error)
            break
    assert len({t.prompt[0]["content"] for t in drawn}) == len(drawn), "each question once"
    assert sum(t.id in ("t1", "t100") for t in [*drawn, *draw("test", 10)]) <= 1


def test_the_seed_decides_the_order() -> None:
    assert draw("all") == draw("all") != draw("all", seed=1)
    with pytest.raises(UserError, match="no split 'dev' of small. Available: all, test, train"):
        draw("dev")


def test_the_expert_knows_the_drawn_tasks_by_the_beginning_of_their_conversation() -> None:
    drawn = draw("all")[0]
    messages = [{"role": "system", "content": "Be brief."}, *drawn.prompt, {"role": "assistant", "content": "Hm."}]
    assert expert_of("small", messages)["content"] == str(drawn.target)  # type: ignore[arg-type]
    with pytest.raises(EnvError, match="no solution of this task of other is known"):
        expert_of("other", messages)  # type: ignore[arg-type]
