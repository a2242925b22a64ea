"""ToolEnv: an environment whose `@tool` methods are its tools and whose `@reward` methods score the final answer.

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
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from forge_env.env import Env, StepResult, invoke
from forge_env.errors import EnvError, InfraError
from forge_env.tools import BadCall, Tool, make_tool
from forge_env.types import Action, Message, Task, ToolCall, ToolSpec


class ToolEnv(Env):
    """One instance is one episode, so its state is just attributes. `self.task` is the task at hand.

    A turn with tool calls is answered by one tool message per call; a turn without any is the final answer, which the
    reward methods score. Nothing that the model writes makes it raise.
    """

    system_prompt: ClassVar[str] = ""
    task: Task

    _tools: ClassVar[Mapping[str, Tool]] = {}
    _rewards: ClassVar[Mapping[str, float]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        methods = {name: getattr(cls, name) for name in dir(cls) if not name.startswith("__")}
        cls._tools = {n: make_tool(n, f) for n, f in methods.items() if hasattr(f, "__forge_tool__")}
        cls._rewards = {n: f.__forge_reward__ for n, f in methods.items() if hasattr(f, "__forge_reward__")}

    def __init__(self, *, use_tools: bool = True) -> None:
        """`use_tools=False` shows the tools and switches them off, to measure what they are worth."""
        self.tools: Sequence[ToolSpec] = [t.spec for t in self._tools.values()]
        self._use_tools = use_tools

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.seed(seed)
        if options is None or "task" not in options:
            raise EnvError(f"{type(self).__name__}.reset needs options={{'task': Task(...)}}")
        self.task = options["task"]
        system: tuple[Message, ...] = ({"role": "system", "content": self.system_prompt},) if self.system_prompt else ()
        return (*system, *self.task.prompt), {}

    async def step(self, action: Action) -> StepResult:
        if action.tool_calls:
            return await self._answer_calls(action.tool_calls), 0.0, False, False, {}
        parts = {name: await self._reward(name, action.text) for name in self._rewards}
        score = sum(self._rewards[name] * value for name, value in parts.items())
        return [], score, True, False, {"rewards": parts}

    async def _answer_calls(self, calls: Sequence[ToolCall]) -> list[Message]:
        return [
            {"role": "tool", "content": await self._call(call), "tool_call_id": call.id, "name": call.name}
            for call in calls
        ]

    async def _call(self, call: ToolCall) -> str:
        if not self._use_tools:
            return "Error: the tools are switched off."
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return f"Error: there is no tool {call.name!r}. Tools: {known}. {call.error}".strip()
        try:
            arguments = tool.validate(call)
        except BadCall as error:
            return str(error)
        try:
            result = await asyncio.wait_for(invoke(getattr(self, call.name), **arguments), tool.timeout)
        except TimeoutError:
            return f"Error: {call.name} took longer than {tool.timeout:g} s."
        except InfraError:
            raise
        except Exception as error:
            return f"Error: {type(error).__name__}: {error}"
        text = str(result)
        if len(text) > tool.max_output:
            text = text[: tool.max_output] + f"\n[{len(text) - tool.max_output} more characters]"
        return text

    async def _reward(self, name: str, answer: str) -> float:
        value = float(await invoke(getattr(self, name), answer))
        if not math.isfinite(value):
            raise EnvError(f"{type(self).__name__}.{name} returned {value}; a reward is a finite number")
        return value
