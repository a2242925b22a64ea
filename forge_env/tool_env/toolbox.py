"""Toolbox: runs the tool calls of a turn, and turns their results and errors into observations."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from forge_env.core.errors import EnvError, ForgeError, InfraError, first_error
from forge_env.core.plain_value import result_text
from forge_env.core.tools import BadCall, Tool
from forge_env.core.types import Message, ToolCall, ToolFailure, ToolSpec, ToolUse
from forge_env.core.user_code import describe, fault
from forge_env.utils.deadlines import Deadline, queued
from forge_env.utils.gates import GRACE_SECONDS, Gate, gate_of, still_running
from forge_env.utils.threads import call_in

RETRY_SECONDS = 0.05  # pause before the second attempt; doubled for each further one, with jitter


class Toolbox:
    """The tools of one episode.

    Args:
        methods: tools that are methods of `owner`; a tool in `tools` replaces one of the same name.
        owner: the instance of `methods`. It is not kept, since a cycle would outlive the episode.
    """

    __slots__ = ("_gate", "_methods", "_tools")

    def __init__(self, tools: Mapping[str, Tool], *, methods: Mapping[str, Tool] = {}, owner: Any = None) -> None:
        self._tools = {**methods, **tools} if tools else methods
        self._methods = methods.keys() - tools.keys() if tools else methods.keys()
        self._gate = Gate() if owner is None else gate_of(owner)

    @property
    def specs(self) -> list[ToolSpec]:
        return [tool.spec for tool in self._tools.values()]

    async def answer(self, calls: Sequence[ToolCall], owner: Any = None) -> tuple[list[Message], list[ToolUse]]:
        """Answer the calls of one turn, in order. Adjacent calls of parallel tools run concurrently."""
        answers: list[tuple[str, ToolUse]] = []
        batches: Iterable[tuple[bool, Iterable[ToolCall]]] = [(False, calls)]
        if len(calls) > 1:
            batches = groupby(calls, self._is_parallel)
        for is_parallel, adjacent in batches:
            batch = list(adjacent)
            if is_parallel and len(batch) > 1:
                answers += await self._run_concurrently(batch, owner)
            else:
                answers += [await self._call(call, owner) for call in batch]
        messages = [answer_to(call, text) for call, (text, _) in zip(calls, answers, strict=True)]
        return messages, [use for _, use in answers]

    def _is_parallel(self, call: ToolCall) -> bool:
        return call.name in self._tools and self._tools[call.name].options.parallel

    async def _run_concurrently(self, calls: Sequence[ToolCall], owner: Any) -> list[tuple[str, ToolUse]]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._call(call, owner)) for call in calls]
        except* ForgeError as errors:
            raise first_error(errors) from None
        return [task.result() for task in tasks]

    async def _call(self, call: ToolCall, owner: Any) -> tuple[str, ToolUse]:
        tool = self._tools.get(call.name)
        if tool is None:
            names = ", ".join(self._tools) or "none"
            text = f"Error: there is no tool {call.name!r}. Tools: {names}. {call.error}".strip()
            return text, ToolUse(name=call.name, error="unknown_tool")
        start_time = time.perf_counter()
        try:
            arguments = tool.validate(call)
            semaphore = tool.semaphore()
            if semaphore is None:
                text, kind = await self._attempts(tool, arguments, owner)
            else:
                async with queued():
                    await semaphore.acquire()
                start_time = time.perf_counter()
                try:
                    text, kind = await self._attempts(tool, arguments, owner)
                finally:
                    self._gate.when_free(semaphore.release)
        except BadCall as refusal:
            return str(refusal), ToolUse(name=call.name, error="bad_arguments")
        except BaseException as error:
            if (env_error := fault(f"tool {tool.name}", error)) is None:
                raise
            raise env_error from error
        return text, ToolUse(name=call.name, seconds=time.perf_counter() - start_time, error=kind)

    async def _attempts(self, tool: Tool, arguments: dict[str, Any], owner: Any) -> tuple[str, str]:
        """Run a tool with its retries; returns the text for the model and the kind of error, if any."""
        instance = (owner,) if tool.name in self._methods else ()
        gate, seconds = self._gate, tool.options.timeout
        for attempt in range(tool.options.retries + 1):
            if gate.holders and not await gate.stop(seconds):
                return (
                    f"Error: {tool.name} was not called within {seconds:g} s: {still_running(gate.running)}.",
                    "timeout",
                )
            deadline = Deadline(seconds)
            try:
                with deadline:
                    result = await call_in(gate, tool.function, *instance, **arguments)
                if type(result) is str and len(result) <= tool.options.max_output:  # the usual case
                    return result, ""
                if isinstance(result, ToolFailure):
                    return _cut(str(result), tool.options.max_output), result.kind
                return _cut(result_text(result, f"the tool {tool.name}"), tool.options.max_output), ""
            except InfraError as error:
                error.tool = tool.name
                raise
            except ForgeError:
                raise
            except tool.options.fatal as error:
                raise EnvError(describe(f"tool {tool.name}", error)) from error
            except Exception as error:
                if deadline.has_expired:
                    if not await gate.stop(GRACE_SECONDS):
                        return f"Error: {tool.name} did not finish within {seconds:g} s; it may still run.", "timeout"
                    return f"Error: {tool.name} took longer than {seconds:g} s and was stopped.", "timeout"
                failure = error
            if attempt < tool.options.retries:
                async with queued():
                    await asyncio.sleep(RETRY_SECONDS * 2**attempt * random.uniform(0.5, 1.5))
        return _cut(f"Error: {type(failure).__name__}: {failure}", tool.options.max_output), "raised"


def answer_to(call: ToolCall, text: str) -> Message:
    return {"role": "tool", "content": text, "tool_call_id": call.id, "name": call.name}


def _cut(text: str, max_output: int) -> str:
    if len(text) <= max_output:
        return text
    return text[:max_output] + f"\n[{len(text) - max_output} more characters]"
