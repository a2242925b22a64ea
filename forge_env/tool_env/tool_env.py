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
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from forge_env.core import members
from forge_env.core.env import Env, StepResult, after_reset, task_of
from forge_env.core.errors import EnvError
from forge_env.core.own_copies import frozen, own_messages, own_task
from forge_env.core.tools import Tool, is_tool, make_tool
from forge_env.core.types import Action, EpisodeLimits, Message, Task, ToolSpec
from forge_env.tool_env.rubric import RewardFunction, RewardPart, numbered, score
from forge_env.tool_env.toolbox import Toolbox, answer_to
from forge_env.utils.deadlines import Deadline, queued
from forge_env.utils.gates import gate_of, still_running
from forge_env.utils.threads import awaitable, call_on, gated, instant


class ToolEnv(Env):
    """One instance is one episode, so its state is kept in attributes. `self.task` is the current task.

    A turn with tool calls is answered by one tool message for each call. A turn without tool calls is the final answer,
    which the reward methods and the rubric score. No output of the model makes it raise.
    """

    system_prompt: ClassVar[str] = ""
    rubric: ClassVar[Sequence[RewardFunction | tuple[RewardFunction, float]]] = ()
    """Further reward functions, or pairs (function, weight), with the arguments of `forge_env.tool_env.rubric`."""

    task: Task
    _messages_read: list[Message] | None = None
    """The conversation, once `messages` is read or set."""
    _messages_unread: list[Message] | None = None
    """The conversation until then, with `_makes_copies`: the record has the same messages, and few read them here."""

    _use_tools: bool = True
    _limits: EpisodeLimits = EpisodeLimits()
    _tools: ClassVar[Mapping[str, Tool]] = {}
    _specs: ClassVar[Sequence[ToolSpec]] = ()
    _rewards: ClassVar[Sequence[RewardPart]] = ()
    _rubric: ClassVar[Sequence[RewardPart]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        members.check_class(cls, members.TOOL_ENV, ToolEnv)
        methods = {name: getattr(cls, name) for name in dir(cls) if not name.startswith("__")}
        cls._tools = {n: make_tool(f, name=n, is_method=True) for n, f in methods.items() if is_tool(f)}
        cls._specs = frozen([tool.spec for tool in cls._tools.values()])
        rewards = {n: f for n, f in methods.items() if hasattr(f, "__forge_reward__")}
        cls._rewards = [RewardPart.of(f, name=n, weight=f.__forge_reward__, is_method=True) for n, f in rewards.items()]
        pairs = [part if isinstance(part, tuple) else (part, 1.0) for part in cls.rubric]
        cls._rubric = numbered([RewardPart.of(function, weight=weight) for function, weight in pairs], taken=rewards)

    @instant
    def __init__(self, *, use_tools: bool = True, extra_tools: Iterable[Tool] = ()) -> None:
        """Make an instance.

        Args:
            use_tools: if False, the tools are shown but refuse every call, to measure their benefit.
            extra_tools: further tools; one with the name of a method replaces it.
        """
        self._use_tools = use_tools
        self.set_tools({tool.name: tool for tool in extra_tools})

    @property
    def _makes_copies(self) -> bool:  # type: ignore[override]
        own, set_here = type(self), self.__dict__
        if "step" in set_here or "reset" in set_here:
            return False
        return own.step is ToolEnv.step and own.reset is ToolEnv.reset

    @property
    def messages(self) -> list[Message]:
        """The whole conversation, including the current turn."""
        if (unread := self._messages_unread) is not None:
            self.__dict__.setdefault("_messages_read", own_messages(unread))  # two tools may read them at once
            self._messages_unread = None
        if self._messages_read is None:
            raise AttributeError(f"{type(self).__name__} has no messages before reset, which starts an episode")
        return self._messages_read

    @messages.setter
    def messages(self, messages: list[Message]) -> None:
        self._messages_read, self._messages_unread = messages, None

    def _add(self, messages: list[Message]) -> None:
        """Add messages to those that were read."""
        after_reset(self, self._messages_read).extend(own_messages(messages) if self._makes_copies else messages)

    def set_tools(self, extra: Mapping[str, Tool], *, without: Collection[str] = ()) -> None:
        """Set the tools of this instance: its class's except `without`, and `extra`.

        For use in a constructor or in `reset`.
        """
        methods = {name: tool for name, tool in self._tools.items() if name not in without} if without else self._tools
        self._toolbox = Toolbox(extra, methods=methods, owner=self)
        self.tools: Sequence[ToolSpec] = self._toolbox.specs if extra or without else self._specs

    @awaitable
    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """Start an episode of `options["task"]`: set the seed, the task and the limits, then run `setup`.

        It returns the pair (messages, info), which can also be awaited: the `reset` of a subclass may be `async` and
        await `super().reset(...)`, or plain and just call it.
        """
        self.seed(seed)
        self.task = own_task(task_of(self, options))
        self._limits = (options or {}).get("limits", self._limits)
        system: tuple[Message, ...] = ({"role": "system", "content": self.system_prompt},) if self.system_prompt else ()
        messages = [*system, *own_messages(self.task.prompt)]
        if self._makes_copies:
            self.__dict__.pop("_messages_read", None)
            self._messages_unread = messages
        else:
            self.messages = messages
        return _ResetResult(self, has_setup=type(self).setup is not ToolEnv.setup)

    def _start(self) -> tuple[Message, ...]:
        """Return the first observation."""
        if self._messages_unread is not None:
            return tuple(self._messages_unread)
        return tuple(own_messages(self.messages) if self._makes_copies else self.messages)

    def setup(self) -> Any:
        """Prepare the episode of `self.task`; a plain or async hook, without a call of `super()`.

        It may change `self.messages`, which become the first observation.
        """

    @gated
    async def step(self, action: Action) -> StepResult:
        if self._messages_unread is None:
            self._add([action.message])
        else:
            self._messages_unread.append(action.message)
        if not action.tool_calls:
            total, parts = await self._score(action.text)
            return [], total, True, False, {"rewards": parts}
        if self._use_tools:
            answers, uses = await self._toolbox.answer(action.tool_calls)
        else:
            answers, uses = [answer_to(call, "Error: the tools are switched off.") for call in action.tool_calls], []
        if self._messages_unread is None:
            self._add(answers)
        else:
            self._messages_unread += answers
        return answers, 0.0, False, False, {"tools": uses}

    async def _score(self, response: str) -> tuple[float, dict[str, float]]:
        """Score the final answer within `scoring_seconds`; the deadlines of the step and the episode are paused."""
        deadline = Deadline(self._limits.scoring_seconds)
        try:
            async with queued():
                with deadline:
                    return await self._all_scores(response)
        except TimeoutError:
            if not deadline.expired:
                raise
            gate, limit = gate_of(self), f"{self._limits.scoring_seconds:g} s"
            held = f": {still_running(gate.running)}" if gate.is_held else ""
            raise EnvError(f"scoring took longer than {limit}{held}") from None

    async def _all_scores(self, response: str) -> tuple[float, dict[str, float]]:
        messages = (
            self.messages if self._messages_unread is None else self._messages_unread
        )  # `score` copies what it hands out
        reward, parts = await score(self._rewards, self.task, messages, response, owner=self)
        if not self._rubric:
            return reward, parts
        rubric_reward, rubric_parts = await score(self._rubric, self.task, messages, response)
        return reward + rubric_reward, {**parts, **rubric_parts}


class _ResetResult(Sequence[Any]):
    """The result of `ToolEnv.reset`: the pair (messages, info), and an awaitable of it.

    On the event loop `setup` runs at the `await`, so that a plain one can run in a thread. A plain `reset` runs in a
    thread already, so `setup` has then run before.
    """

    def __init__(self, env: ToolEnv, *, has_setup: bool) -> None:
        self._env = env
        self._is_pending = has_setup and (_is_on_loop() or inspect.iscoroutinefunction(env.setup))
        if has_setup and not self._is_pending:
            env.setup()

    def __await__(self) -> Generator[Any, None, tuple[tuple[Message, ...], dict[str, Any]]]:
        if self._is_pending:
            self._is_pending = False
            yield from call_on(self._env, self._env.setup).__await__()
        return self._env._start(), {}

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: Any) -> Any:
        if self._is_pending:
            raise EnvError(
                f"setup() of {type(self._env).__name__} has not run, since nothing awaits super().reset(...): write "
                "`async def reset` and `await super().reset(...)`"
            )
        return (self._env._start(), {})[index]


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def why_unscored(env_class: type[Env], tasks: Sequence[Task], rewards: Iterable[float | None]) -> str:
    """Why these rewards say nothing about an agent; "" if they do.

    Args:
        env_class: of the environment.
        tasks: that were played.
        rewards: of all episodes; None counts as 0.
    """
    if not issubclass(env_class, ToolEnv) or any(rewards):
        return ""
    if any(getattr(env_class, name) is not getattr(ToolEnv, name) for name in ("step", "_all_scores", "success")):
        return ""
    parts = [*env_class._rewards, *env_class._rubric]
    if not parts:
        return f"{env_class.__name__} has no reward: give it a method with @reward, or a rubric"
    readers = [part.name for part in parts if part.reads_target]
    if len(readers) == len(parts) and all(task.target is None for task in tasks):
        return f"no task has a target, and the reward {readers[0]} compares with it: give Task(..., target=...)"
    return ""
