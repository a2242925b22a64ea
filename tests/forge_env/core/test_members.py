"""Names of the contract: what would break a member is refused, what overrides one is not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agents.scripted import ScriptedAgent
from forge_env.core.env import Env
from forge_env.core.episode import Episode
from forge_env.core.errors import EnvError, UserError
from forge_env.core.tools import reward, tool
from forge_env.core.types import Action, EpisodeLimits, Outcome, Task
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode
from forge_env.tool_env.tool_env import ToolEnv

TASK = Task(prompt=({"role": "user", "content": "3?"},), target=3)


class Base(ToolEnv):
    system_prompt = "Answer."

    @reward
    def right(self, answer: str) -> float:
        return float(answer == str(self.task.target))


def one() -> int:
    """Say one."""
    return 1


@asynccontextmanager
async def opened() -> AsyncIterator[str]:
    yield "word"


def shop(**body: Any) -> Any:
    return type("Shop", (ToolEnv,), body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"step": tool(lambda self: 1)}, "Shop.step is a tool, and Env reserves this name for a method: call it step_"),
        ({"task": reward(lambda self: 1.0)}, "Shop.task is a reward, and ToolEnv reserves this name for itself"),
        ({"expert": tool(lambda self: 1)}, "Shop.expert is a tool"),
        ({"_limits": reward(lambda self: 1.0)}, "Shop._limits is a reward"),
        ({"step": property(lambda self: 1)}, "reserves this name for a method"),
        ({"setup": 7}, "Shop.setup is 7, and ToolEnv reserves this name for a method: call it setup_ or otherwise"),
        ({"messages": property(lambda self: [])}, "Shop.messages is <property"),
        ({"tools": [one]}, r"Shop.tools is \[.*, and ToolEnv reserves this name for itself"),
        ({"rubric": one}, "Shop.rubric is a method of an instance, and ToolEnv reserves this name for a list"),
        ({"rubric": [(one, 1.0, 2)]}, r"it is a list of functions or of pairs \(function, weight\)"),
        ({"limits": 3}, "reserves this name for a class method, with @classmethod or @staticmethod above it"),
        ({"tasks": lambda self, split="train", *, count, seed=0: []}, "Shop.tasks is a method of an instance, and Env"),
        ({"expert": lambda self, messages: {}}, "with @classmethod or @staticmethod above it"),
        ({"made_of": "envs.math"}, "Shop.made_of is 'envs.math', and Env reserves this name for a list"),
    ],
)
def test_what_breaks_a_member_is_refused(body: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as raised:
        shop(**body)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        (lambda: tool("plus"), r"@tool is given 'plus', which is no method: .* as in @tool\(timeout=5\)"),
        (lambda: tool(staticmethod(one)), "@tool is given <staticmethod"),
        (lambda: tool(property(one)), "@tool is given <property"),
        (lambda: tool(timeout="5"), "a tool's timeout is '5'; it is a number"),
        (lambda: tool(concurrency="2"), "a tool's concurrency is '2'; it is a number"),
        (lambda: reward(0.5), r"@reward is given 0.5, which is no method: .* as in @reward\(weight=0.5\)"),
        (lambda: reward(weight="0.5"), "a reward's weight is '0.5'; it is a number"),
        (lambda: shop(add=tool(lambda n: n)), "the tool add has no parameter self"),
        (lambda: shop(add=staticmethod(tool(lambda n: n))), "the tool add has no parameter self"),
        (lambda: shop(add=classmethod(tool(lambda cls, n: n))), "the tool add has no parameter self"),
        (lambda: shop(good=reward(lambda answer: 1.0)), "the reward good has no parameter self"),
    ],
)
def test_a_mark_at_the_wrong_place_says_where_it_belongs(mark: Callable[[], Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as raised:
        mark()
    assert "\n" not in str(raised.value)


def test_what_overrides_a_member_is_not_refused() -> None:
    class Shop(Base):
        rubric = [one, (one, 0.5)]  # noqa: RUF012
        shared = {"word": f"{__name__}:opened"}  # noqa: RUF012
        limits = {"max_turns": 3}  # noqa: RUF012
        truncation_reward = -1
        made_of = ("json",)
        time_spent_by = "model"
        task = None
        expert = staticmethod(lambda messages: {"role": "assistant", "content": "3"})

        @property
        def system_prompt(self) -> str:
            return "hm"

        @staticmethod
        def tasks(split: str = "train", *, count: int, seed: int = 0) -> Any:
            return [TASK] * count

        async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return await super().reset(seed=seed, options=options)

        def step(self, action: Action) -> Any:
            return super().step(action)

        def close(self) -> None:
            pass

        def seed(self, seed: int | None) -> None:
            super().seed(seed)

        def success(self, reward: float) -> bool:
            return reward > 2

    class Later(Shop):
        def setup(self, level: int = 1) -> None:
            self.truncation_reward = 0.5
            self.time_spent_by = "service"
            self.success = lambda reward: True

    assert play(Later).success


def test_a_constructor_is_looked_at_too() -> None:
    class Shop(Base):
        def __init__(self) -> None:
            super().__init__()
            self.seed: Any = 7

    with pytest.raises(EnvError, match=r"sets self.seed to 7, and Env.seed is a method: call it seed_ or otherwise"):
        EnvFactory(Shop).make()


def test_a_constructor_calls_the_one_of_its_parent() -> None:
    class Shop(Base):
        def __init__(self) -> None:
            self.sold = 0

    with pytest.raises(EnvError, match=r"Shop\.__init__ does not call super\(\).__init__\(\): write it"):
        EnvFactory(Shop).make()


def play(env: type[Env], answer: str = "3") -> Episode:
    async def run() -> Episode:
        agent = ScriptedAgent(lambda messages: {"role": "assistant", "content": answer})
        async with EnvFactory(env) as factory:
            return await run_episode(factory, agent, TASK, seed=5, episode_id="e", limits=EpisodeLimits(max_turns=3))

    return asyncio.run(run())


class SetUp(Base):
    def setup(self) -> None:
        self.thread = threading.get_ident()
        self.doubled = 2 * self.task.target
        self.messages.append({"role": "user", "content": f"Or {self.doubled + self.np_random.integers(1)}."})
        self.turns = self._limits.max_turns


class SetUpLater(Base):
    async def setup(self) -> None:
        await asyncio.sleep(0)
        SetUp.setup(self)  # type: ignore[arg-type]


async def async_reset(self: Any, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
    messages, info = await super(type(self), self).reset(seed=seed, options=options)
    assert self.task == TASK
    return messages, {**info, "is": "async"}


@pytest.mark.parametrize("base", [Base, SetUp, SetUpLater])
@pytest.mark.parametrize("own_reset", [None, async_reset])
def test_every_kind_of_reset_goes_with_every_kind_of_setup(base: type[ToolEnv], own_reset: Any) -> None:
    seen: dict[str, Any] = {}

    def close(self: Any) -> None:
        seen.update(vars(self))

    shop = type("Shop", (base,), {"close": close} | ({"reset": own_reset} if own_reset is not None else {}))
    episode = play(shop)
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), episode.error
    contents = [message["content"] for message in episode.turns[0].observation]
    assert contents == ["Answer.", "3?", *(["Or 6."] if base is not Base else [])]
    assert seen["task"] == TASK and seen["_seed"] == 5
    if base is not Base:
        assert seen["doubled"] == 6 and seen["turns"] == 3
        assert (seen["thread"] == threading.get_ident()) == (base is SetUpLater), "a plain one runs in a thread"
    assert episode.info.get("is") == ("async" if own_reset else None)


def test_a_plain_reset_that_calls_the_async_one_is_refused() -> None:
    with pytest.raises(UserError, match=r"^Shop.reset calls super\(\).reset, which is async: write `async def reset`"):

        class Shop(Base):
            def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # type: ignore[override]
                return super().reset(seed=seed, options=options)
