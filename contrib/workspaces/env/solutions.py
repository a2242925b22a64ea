"""Solutions of tasks that an expert cannot find by the conversation: `reset` notes them, `expert` plays them.

An expert is given the conversation only. It plays in the process of its environment, and `reset` has seen the task
there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from forge_env.core.errors import UserError
from forge_env.core.types import Message, Task

_MOST = 4096
"""Number of questions with a kept solution."""
_SOLUTIONS: OrderedDict[str, dict[str, Sequence[Message]]] = OrderedDict()
"""By the question, and by the task: several tasks may ask the same."""


def note_solution(task: Task, messages: Sequence[Message]) -> None:
    """Note the assistant messages that solve a task; none for a task without a solution."""
    question = _question(task.prompt)
    _SOLUTIONS.setdefault(question, {})[task.id] = list(messages)
    _SOLUTIONS.move_to_end(question)
    while len(_SOLUTIONS) > _MOST:
        _SOLUTIONS.popitem(last=False)


def play_noted(messages: Sequence[Message]) -> Message:
    """Return the next message of the solution that was noted for this conversation."""
    solutions = list(_SOLUTIONS.get(_question(messages), {}).values())
    if any(other != solutions[0] for other in solutions[1:]):
        raise UserError(
            f"{len(solutions)} tasks ask the same, {_question(messages)!r:.80}, and have different solutions: the "
            "conversation does not tell which one is asked for, so give each its own text"
        )
    return play_solution(solutions[0] if solutions else (), messages)


def play_solution(solution: Sequence[Message], messages: Sequence[Message]) -> Message:
    """Return the message of a solution that is next in a conversation."""
    if not solution:
        raise UserError("the task has no solution to play")
    num_turns = sum(message["role"] == "assistant" for message in messages)
    return solution[min(num_turns, len(solution) - 1)]


def _question(messages: Sequence[Message]) -> str:
    return next((message["content"] for message in messages if message["role"] == "user"), "")
