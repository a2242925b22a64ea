"""Tasks out of nothing but functions: call one with these arguments, and answer with what it returns.

The right answer is what the tool itself returned for the arguments when the task was made, so the tools must be such
that the same call always gives the same result.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.task_splits import bucket
from envs.tool_api.answers import same_answer
from envs.tool_api.json_schema.sampling import LARGEST, draw_arguments
from forge_env.core.errors import ForgeError, UserError
from forge_env.core.tools import Tool
from forge_env.core.types import Message, Task, ToolCall
from forge_env.gymnasium.loop_thread import LoopThread
from forge_env.tool_env.toolbox import Toolbox

SECONDS = 300.0  # to make all tasks
_PROMPT = "Call {name} with {arguments} and answer with what it returns."
_ASKED = re.compile(r"Call (\S+) with (\{.*\}) and answer with what it returns\.", re.DOTALL)
_LONGEST = 500  # characters of a result that a model is asked to repeat
_CALLED_TWICE = 3  # tasks of each tool
_MOST_FAILURES = 10  # of a tool, or as often as it has worked


def call_tasks(tools: Mapping[str, Tool], split: str, *, count: int, seed: int, level: int) -> list[Task]:
    """Return distinct tasks, one in ten of all contents being "test"; the tools are called for each of them, here.

    Args:
        tools: those of functions, by name.
        level: how large the numbers and how long the texts are.

    Raises:
        UserError: for an unknown split or level, more tasks than there are, and a tool that fails, takes too long,
            or returns something else when it is called again.
    """
    if split not in ("train", "test"):
        raise UserError(f"there is no split {split!r}; the splits are train and test")
    if level not in LARGEST:
        raise UserError(f"tool_api has no level {level}; the levels are {', '.join(map(str, LARGEST))}")
    loop = LoopThread.lease()  # the tools may be coroutines, and the caller may be one
    try:
        return loop.run(_made(_Calls(tools=tools), split, count, seed, level), SECONDS + 60)
    finally:
        loop.release()


def asked_call(question: str) -> tuple[str, dict[str, Any]] | None:
    """Read the tool and its arguments out of a question; None when it is none of these tasks."""
    asked = _ASKED.fullmatch(question.strip())
    return (asked[1], json.loads(asked[2])) if asked else None


def call_expert(messages: Sequence[Message], name: str, arguments: Mapping[str, Any]) -> Message:
    """Make the call, then answer with what came back."""
    results = [message["content"] for message in messages if message["role"] == "tool"]
    if results:
        return {"role": "assistant", "content": results[-1]}
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


class _Unfit(Exception):
    """These arguments make no task; the text says why."""


@dataclass(kw_only=True)
class _Calls:
    """Calls tools as an episode does, and counts how that goes."""

    tools: Mapping[str, Tool]
    made: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)

    async def result(self, name: str, arguments: dict[str, Any]) -> str:
        """Return what the model would be told.

        Raises:
            _Unfit: when that is no answer to ask for.
            UserError: when it is something else the second time.
        """
        result = await self._called(name, arguments)
        if not result.strip() or len(result) > _LONGEST:
            raise _Unfit(f"it returns {len(result)} characters" if result.strip() else "it returns nothing")
        if self.made.get(name, 0) < _CALLED_TWICE and await self._called(name, arguments) != result:
            raise UserError(
                f"the tool {name} returns something else when it is called again with {_json(arguments)}, so no answer "
                "is the right one: give tasks of your own with data="
            )
        self.made[name] = self.made.get(name, 0) + 1
        return result

    def count_failure(self, name: str, reason: Exception) -> None:
        """Note arguments that make no task.

        Raises:
            UserError: when that happens too often.
        """
        self.failed[name] = self.failed.get(name, 0) + 1
        if self.failed[name] > max(_MOST_FAILURES, self.made.get(name, 0)):
            raise UserError(
                f"no tasks can be made for the tool {name}: called with arguments made up from its schema, {reason}; "
                "give tasks of your own with data="
            )

    async def _called(self, name: str, arguments: dict[str, Any]) -> str:
        try:
            messages, uses = await Toolbox(self.tools).answer([ToolCall(id="", name=name, arguments=arguments)])
        except ForgeError as error:  # what the tool declares fatal
            raise _Unfit(str(error)) from error
        if uses[0].error:
            raise _Unfit(f"it says {messages[0]['content'][:200]!r}")
        return messages[0]["content"]


async def _made(calls: _Calls, split: str, count: int, seed: int, level: int) -> list[Task]:
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
        raise UserError(
            f"{count} distinct {split} tasks were asked for, {len(tasks)} were found: ask for fewer, or give tasks of "
            "your own with data="
        )
    return list(tasks.values())


async def _draw(calls: _Calls, tasks: dict[str, Task], rng: random.Random, split: str, count: int, level: int) -> None:
    tried: set[str] = set()
    for _ in range(200 * count + 1000):
        if len(tasks) == count:
            return
        name = rng.choice(list(calls.tools))
        try:
            arguments = draw_arguments(calls.tools[name].parameters, rng, level=level)
            question = _PROMPT.format(name=name, arguments=_json(arguments))
            if question in tried or (bucket(question, 10) == 0) != (split == "test"):
                continue
            tried.add(question)
            tasks[question] = _task(question, await calls.result(name, arguments), name, arguments)
        except (_Unfit, ValueError) as reason:
            calls.count_failure(name, reason)


def _task(question: str, target: str, name: str, arguments: dict[str, Any]) -> Task:
    if same_answer(question, target):
        raise _Unfit("it returns the question")
    return Task(
        prompt=({"role": "user", "content": question},),
        target=target,
        metadata={"tool": name, "arguments": arguments},
    )


def _json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)
