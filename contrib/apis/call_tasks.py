"""Tasks for any functions: call one with these arguments, and answer with its result.

The target is what the tool returned for the arguments when the task was made. So the same call of a tool must always
give the same result.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contrib.apis.answers import same_answer
from contrib.apis.json_schema.sampling import LARGEST, draw_arguments
from contrib.common.loop_thread import LoopThread
from envs.messages import call, say
from envs.task_splits import bucket, check_split
from forge_env.core.errors import ForgeError, TooFewTasks, UserError
from forge_env.core.tools import Tool
from forge_env.core.types import Message, Task, ToolCall
from forge_env.tool_env.tool_env import Toolbox

SECONDS = 300.0  # limit for making all tasks
_PROMPT = "Call {name} with {arguments} and answer with what it returns."
_QUESTION = re.compile(r"Call (\S+) with (\{.*\}) and answer with what it returns\.", re.DOTALL)
_MAX_RESULT = 500  # characters of a result that a model is asked to repeat
_NUM_REPEATED = 3  # tasks of each tool that make the call twice, to compare the results
_MAX_FAILURES = 10  # of a tool; more if it has succeeded more often


def call_tasks(tools: Mapping[str, Tool], split: str, *, count: int, seed: int, level: int) -> list[Task]:
    """Return distinct tasks; the tools are called for each of them. One content in ten is of the split "test"."""
    check_split(split)
    if level not in LARGEST:
        raise UserError(f"tool_api has no level {level}; the levels are {', '.join(map(str, LARGEST))}")
    loop = LoopThread.lease()  # the tools may be coroutines, and the caller may be one
    try:
        return loop.run(_make_tasks(_Calls(tools=tools), split, count, seed, level), SECONDS + 60)
    finally:
        loop.release()


def call_in_question(question: str) -> tuple[str, dict[str, Any]] | None:
    """Read the tool and its arguments out of a question; None when it is none of these tasks."""
    match = _QUESTION.fullmatch(question.strip())
    return (match[1], json.loads(match[2])) if match else None


def call_expert(messages: Sequence[Message], name: str, arguments: Mapping[str, Any]) -> Message:
    results = [message["content"] for message in messages if message["role"] == "tool"]
    return say(results[-1]) if results else call(name, **arguments)


class _UnusableCall(Exception):
    """A call that makes no task; the text says why."""


@dataclass(kw_only=True)
class _Calls:
    """Calls tools as an episode does, and counts successes and failures."""

    tools: Mapping[str, Tool]
    num_made: dict[str, int] = field(default_factory=dict)
    num_failed: dict[str, int] = field(default_factory=dict)

    async def result(self, name: str, arguments: dict[str, Any]) -> str:
        result = await self._call(name, arguments)
        if not result.strip() or len(result) > _MAX_RESULT:
            raise _UnusableCall(f"it returns {len(result)} characters" if result.strip() else "it returns nothing")
        if self.num_made.get(name, 0) < _NUM_REPEATED and await self._call(name, arguments) != result:
            raise UserError(
                f"the tool {name} returns something else when it is called again with {_json(arguments)}, so no answer "
                "is the right one: give tasks of your own with data="
            )
        self.num_made[name] = self.num_made.get(name, 0) + 1
        return result

    def count_failure(self, name: str, reason: Exception) -> None:
        self.num_failed[name] = self.num_failed.get(name, 0) + 1
        if self.num_failed[name] > max(_MAX_FAILURES, self.num_made.get(name, 0)):
            raise UserError(
                f"no tasks can be made for the tool {name}: called with arguments made up from its schema, {reason}; "
                "give tasks of your own with data="
            )

    async def _call(self, name: str, arguments: dict[str, Any]) -> str:
        try:
            messages, uses = await Toolbox(self.tools).answer([ToolCall(id="", name=name, arguments=arguments)])
        except ForgeError as error:  # what the tool declares fatal
            raise _UnusableCall(str(error)) from error
        if uses[0].error:
            raise _UnusableCall(f"it says {messages[0]['content'][:200]!r}")
        return messages[0]["content"]


async def _make_tasks(calls: _Calls, split: str, count: int, seed: int, level: int) -> list[Task]:
    tasks: dict[str, Task] = {}
    try:
        async with asyncio.timeout(SECONDS):
            await _draw(calls, tasks, random.Random(f"{split}/{seed}"), split, count, level)
    except TimeoutError:
        raise UserError(
            f"{len(tasks)} of {count} tasks were made within {SECONDS:g} s, calling the tools: ask for fewer, or give "
            "tasks of your own with data="
        ) from None
    if len(tasks) < count:
        raise TooFewTasks(
            f"{count} distinct {split} tasks were asked for, {len(tasks)} were found: ask for fewer, or give tasks of "
            "your own with data=",
            len(tasks),
        )
    return list(tasks.values())


async def _draw(calls: _Calls, tasks: dict[str, Task], rng: random.Random, split: str, count: int, level: int) -> None:
    questions: set[str] = set()
    for _ in range(200 * count + 1000):
        if len(tasks) == count:
            return
        name = rng.choice(list(calls.tools))
        try:
            arguments = draw_arguments(calls.tools[name].parameters, rng, level=level)
            question = _PROMPT.format(name=name, arguments=_json(arguments))
            if question in questions or (bucket(question, 10) == 0) != (split == "test"):
                continue
            questions.add(question)
            tasks[question] = _task(question, await calls.result(name, arguments), name, arguments)
        except (_UnusableCall, ValueError) as reason:
            calls.count_failure(name, reason)


def _task(question: str, target: str, name: str, arguments: dict[str, Any]) -> Task:
    if same_answer(question, target):
        raise _UnusableCall("it returns the question")
    return Task(
        prompt=({"role": "user", "content": question},),
        target=target,
        metadata={"tool": name, "arguments": arguments},
        kind=name,
    )


def _json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)
