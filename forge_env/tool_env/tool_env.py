"""ToolEnv: an environment with `@tool` methods as its tools and `@reward` methods that score the final answer.

Example::

    class Adder(ToolEnv):
        @tool
        def add(self, a: int, b: int) -> int:
            \"\"\"Add two numbers.\"\"\"
            return a + b

        @reward
        def correct(self, answer: str) -> float:
            return float(answer.strip() == self.task.target)
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar

from forge_env.core.env import Env, StepResult, after_reset, check_class, task_of
from forge_env.core.errors import EnvError, ForgeError, InfraError, UserError, first_error
from forge_env.core.plain_value import own_copy, result_text
from forge_env.core.tools import BadCall, Tool, is_tool, make_tool
from forge_env.core.types import Action, EpisodeLimits, Message, Task, ToolCall, ToolFailure, ToolSpec, ToolUse
from forge_env.core.user_code import describe, fault
from forge_env.tool_env.rubric import RewardFunction, RewardPart, group_methods, methods_with, score, with_numbers
from forge_env.utils.deadlines import Deadline, queued
from forge_env.utils.gates import GRACE_SECONDS, Gate, gate_of, still_running
from forge_env.utils.threads import behind_gate, call_in, call_on, instant

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


class ToolEnv(Env):
    """One instance is one episode, so its state is kept in attributes. `self.task` is the current task.

    A turn with tool calls is answered by one tool message for each call. A turn without tool calls is the final answer,
    which the reward methods and the rubric score. No output of the model makes it raise.
    """

    system_prompt: ClassVar[str] = ""
    rubric: ClassVar[Sequence[RewardFunction | tuple[RewardFunction, float]]] = ()
    """Further reward functions, or pairs (function, weight), with the arguments of `forge_env.tool_env.rubric`."""

    tools: Sequence[ToolSpec]
    task: Task
    messages: list[Message]
    """The whole conversation, including the current turn."""

    _use_tools: bool = True
    _limits: EpisodeLimits = EpisodeLimits()
    _tools: ClassVar[Mapping[str, Tool]] = {}
    _specs: ClassVar[Sequence[ToolSpec]] = ()
    _rewards: ClassVar[Sequence[RewardPart]] = ()
    _rubric: ClassVar[Sequence[RewardPart]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_class(cls, ToolEnv)
        own: Any = cls.__dict__.get("reset")
        is_plain = inspect.isfunction(own) and not inspect.iscoroutinefunction(own)
        if is_plain and "__class__" in own.__code__.co_freevars:  # it uses super()
            raise UserError(
                f"{cls.__name__}.reset calls super().reset, which is async: write `async def reset` and "
                "`await super().reset(...)`"
            )
        methods = {name: getattr(cls, name) for name in dir(cls) if not name.startswith("__")}
        cls._tools = {n: make_tool(f, name=n, is_method=True) for n, f in methods.items() if is_tool(f)}
        cls._specs = [tool.spec for tool in cls._tools.values()]
        rewards = methods_with("__forge_reward__", cls)
        cls._rewards = [RewardPart.of(f, name=n, weight=f.__forge_reward__, is_method=True) for n, f in rewards.items()]
        pairs = [part if isinstance(part, tuple) and len(part) == 2 else (part, 1.0) for part in cls.rubric]
        cls._rubric = with_numbers(
            [RewardPart.of(function, weight=weight) for function, weight in pairs], other_names=rewards
        )

    @instant
    def __init__(self, *, use_tools: bool = True, extra_tools: Iterable[Tool | Callable[..., Any]] = ()) -> None:
        """Make an instance.

        Args:
            use_tools: if False, the tools are shown but refuse every call, to measure their benefit.
            extra_tools: further tools or functions; one with the name of a method replaces it.
        """
        self._use_tools = use_tools
        tools = [tool if isinstance(tool, Tool) else make_tool(tool) for tool in extra_tools]
        self.set_tools({tool.name: tool for tool in tools})

    def set_tools(self, extra: Mapping[str, Tool], *, without: Collection[str] = ()) -> None:
        """Set the tools of this instance: its class's except `without`, and `extra`.

        For use in a constructor or in `reset`.
        """
        methods = {name: tool for name, tool in self._tools.items() if name not in without} if without else self._tools
        self._toolbox = Toolbox(extra, methods=methods, owner=self)
        self.tools = self._toolbox.specs if extra or without else self._specs

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Sequence[Message], dict[str, Any]]:
        """Start an episode of `options["task"]`: set the seed, the task and the limits, then run `setup`.

        A subclass with an `async def reset` of its own awaits `super().reset(...)`.
        """
        self.seed(seed)
        self.task = task_of(self, options)
        self._limits = (options or {}).get("limits", self._limits)
        system: tuple[Message, ...] = ({"role": "system", "content": self.system_prompt},) if self.system_prompt else ()
        self.messages = [*system, *own_copy(self.task.prompt)]
        if type(self).setup is not ToolEnv.setup:
            await call_on(self, self.setup)
        return tuple(self.messages), {}

    def setup(self) -> Any:
        """Prepare the episode of `self.task`; a plain or async hook, without a call of `super()`.

        It may change `self.messages`, which become the first observation.
        """

    @behind_gate
    async def step(self, action: Action) -> StepResult:
        messages = after_reset(self, vars(self).get("messages"))
        messages.append(action.message)
        if not action.tool_calls:
            total, parts = await self._score(action.text)
            return [], total, True, False, {"rewards": parts}
        if self._use_tools:
            answers, uses = await self._toolbox.answer(action.tool_calls, self)
        else:
            answers, uses = [answer_to(call, "Error: the tools are switched off.") for call in action.tool_calls], []
        self.messages += answers
        return answers, 0.0, False, False, {"tools": uses}

    async def _score(self, response: str) -> tuple[float, dict[str, float]]:
        """Score the final answer within `scoring_seconds`; the deadlines of the step and the episode are paused."""
        deadline = Deadline(self._limits.scoring_seconds)
        try:
            async with queued():
                with deadline:
                    return await self._all_scores(response)
        except TimeoutError:
            if not deadline.has_expired:
                raise
            gate, limit = gate_of(self), f"{self._limits.scoring_seconds:g} s"
            cause = f": {still_running(gate.running)}" if gate.is_held else ""
            raise EnvError(f"scoring took longer than {limit}{cause}") from None

    async def _all_scores(self, response: str) -> tuple[float, dict[str, float]]:
        reward, parts = await score(self._rewards, self.task, self.messages, response, owner=self)
        if not self._rubric:
            return reward, parts
        rubric_reward, rubric_parts = await score(self._rubric, self.task, self.messages, response)
        return reward + rubric_reward, {**parts, **rubric_parts}


def why_unscored(env_class: type[Env], tasks: Sequence[Task], rewards: Iterable[float | None]) -> str:
    """Why these rewards say nothing about an agent; "" if they do.

    Args:
        rewards: of all episodes; None counts as 0.
    """
    if not issubclass(env_class, ToolEnv) or any(rewards):
        return ""
    if any(getattr(env_class, name) is not getattr(ToolEnv, name) for name in ("step", "_all_scores", "success")):
        return ""
    if group_methods(env_class):
        return ""
    parts = [*env_class._rewards, *env_class._rubric]
    if not parts:
        return f"{env_class.__name__} has no reward: give it a method with @reward, or a rubric"
    readers = [part.name for part in parts if part.reads_target]
    if len(readers) == len(parts) and all(task.target is None for task in tasks):
        return f"no task has a target, and the reward {readers[0]} compares with it: give Task(..., target=...)"
    return ""
