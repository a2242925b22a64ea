"""Solutions that an expert plays by the conversation alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contrib.workspaces.env.solutions import note_solution, play_noted, play_solution
from envs.messages import call, say
from forge_env.core.errors import UserError
from forge_env.core.types import Message, Task
from tests.trainers.setup.test_run_tasks import plan_of


def asking(text: str, number: int) -> Task:
    return Task(prompt=({"role": "user", "content": text},), metadata={"number": number})


def test_the_next_message_of_a_solution_is_played() -> None:
    solution = [call("shell", command="true"), say("done")]
    task = asking("Do nothing at all.", 0)
    note_solution(task, solution)
    messages: list[Message] = [*task.prompt]
    for expected in (*solution, solution[-1]):
        assert play_noted(messages) == play_solution(solution, messages) == expected
        messages.append(expected)


def test_two_tasks_that_ask_the_same_share_a_solution_or_are_refused() -> None:
    for number in range(2):
        note_solution(asking("Count.", number), [say("1")])
    assert play_noted(asking("Count.", 0).prompt) == say("1")
    note_solution(asking("Count.", 1), [say("2")])
    with pytest.raises(UserError, match=r"2 tasks ask the same, 'Count.', and have different solutions"):
        play_noted(asking("Count.", 0).prompt)


def test_a_task_without_a_solution_is_refused() -> None:
    note_solution(asking("Nobody knows.", 0), [])
    for question in ("Nobody knows.", "Nobody has asked."):
        with pytest.raises(UserError, match="no solution to play"):
            play_noted(asking(question, 0).prompt)


def test_a_file_with_solutions_can_be_demonstrated(tmp_path: Path) -> None:
    rows = [{"instruction": f"Do {i}.", "verifier": "true"} for i in range(20)]
    path = tmp_path / "tasks.jsonl"
    options = ("--env", "workspace", "--dataset.path", str(path))
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UserError, match="has no solutions"):
        plan_of(*options)
    path.write_text("\n".join(json.dumps({**row, "solution": "true"}) for row in rows))
    assert plan_of(*options).problems == []
