"""Environments that the tests of servers serve."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from contrib.common.usage import Usage, record_usage
from contrib.external.sampled import ProgramTurn
from forge_env.core.env import Env, StepResult
from forge_env.core.errors import SandboxError
from forge_env.core.protocols import RowBegan
from forge_env.core.tools import reward, tool
from forge_env.core.types import Action, Message, Outcome, Task
from forge_env.tool_env.tool_env import ToolEnv
from forge_env.utils.deadlines import queued


class Counter(ToolEnv):
    """Counts, draws numbers, and breaks when it is told to. Its own success, final info and limits."""

    system_prompt = "Count."
    closed: list[int] = []  # noqa: RUF012  of all instances, for the tests

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0, level: int = 1) -> Sequence[Task]:
        if split not in ("train", "test"):
            from forge_env.core.errors import UserError

            raise UserError(f"there is no split {split!r}; the splits are train and test")
        return [
            Task(
                prompt=({"role": "user", "content": f"Count to {i + level}. \ud800"},),
                target=i + level,
                metadata={"i": [i, None, 0.5]},
                kind="odd" if i % 2 else "even",
            )
            for i in range(count)
        ]

    @classmethod
    def limits(cls) -> Mapping[str, float]:
        return {"max_turns": 12, "step_seconds": 7}

    def setup(self) -> None:
        self.count = 0

    @tool
    def up(self) -> int:
        """Count one up."""
        self.count += 1
        return self.count

    @tool
    async def draw(self) -> str:
        """Draw a number."""
        record_usage("user", Usage(prompt_tokens=3, completion_tokens=2, requests=1))
        return str(self.np_random.integers(1_000_000))

    @tool
    def broken(self) -> str:
        """Raise a fault of the machinery."""
        raise SandboxError("the sandbox is gone")

    @tool
    async def slow(self, seconds: float) -> str:
        """Sleep."""
        await asyncio.sleep(seconds)
        return "slept"

    @reward
    def right(self, answer: str) -> float:
        return 0.5 if answer == "0" else float(answer == str(self.task.target))

    def success(self, reward: float) -> bool:
        return reward == 0.5

    def final_info(self) -> Mapping[str, Any]:
        return {"count": getattr(self, "count", None), "refused_requests": {"none": 1}}

    async def close(self) -> None:
        self.closed.append(id(self))


class Held(Counter):
    """Its tasks of the split train are there when `go` is set."""

    asked, go = threading.Event(), threading.Event()

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0, level: int = 1) -> Sequence[Task]:
        if split == "train":
            cls.asked.set()
            assert cls.go.wait(60)
        return super().tasks(split, count=count, seed=seed, level=level)


class Odd(Env):
    """Everything that a step may return, by the words of the action."""

    time_spent_by = "model"
    truncation_reward = -0.25

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        return [Task(prompt=({"role": "user", "content": f"Say {i}."},)) for i in range(count)]

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.seed(seed)
        self.turns = 0
        return (options or {})["task"].prompt, {"started": (1, {2: b"x"}), "seed": seed}

    async def step(self, action: Action) -> StepResult:
        self.turns += 1
        messages: list[Message] = [{"role": "user", "content": f"{self.turns}: {self.np_random.random()}"}]
        match action.text:
            case "raise":
                raise KeyError("price")
            case "exit":
                raise SystemExit(3)
            case "nan":
                return messages, float("nan"), False, False, {}
            case "shape":
                return [{"role": "user"}], 0.0, False, False, {}  # type: ignore[typeddict-item]
            case "no json":
                return [{"role": "user", "content": b"x"}], 0.0, False, False, {}  # type: ignore[typeddict-item]
            case "outcome":
                return messages, 1.0, True, False, {"outcome": Outcome.MODEL_FAULT, "why": "said so"}
            case "truncated":
                return messages, 0.125, False, True, {"ended_by": "max_turns"}
            case "done":
                return [], 1.0, True, False, {"rewards": {"a": 0.75, "b": 0.25}}
            case "context":
                began = RowBegan("other", "it asked")
                next_turn = ProgramTurn(context=1, max_tokens=5, stop=("x",), began=began)
                return messages, 0.1, False, False, {"next": next_turn}
            case "tools":
                function: Any = {"name": f"tool{self.turns}", "description": "", "parameters": {"type": "object"}}
                self.tools = [{"type": "function", "function": function}]
                self.time_spent_by = "service"
            case "queue":
                async with queued():
                    await asyncio.sleep(0.3)
            case "sleep":
                await asyncio.sleep(30)
            case "block":
                time.sleep(0.3)
        return messages, 0.1, False, False, {"turn": self.turns}

    async def on_limit(self, limit: str, reason: str = "") -> StepResult | None:
        self.limited = limit
        return None

    def final_info(self) -> Mapping[str, Any]:
        return {"limited": getattr(self, "limited", ""), "set": (3,)}
