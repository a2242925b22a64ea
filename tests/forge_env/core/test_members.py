"""Names of the contract: what would break a member is refused, what overrides one is not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import ScriptedAgent
from forge_env.cli.main import main
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


@pytest.mark.parametrize(("mark", "name"), [(tool, "step"), (reward, "task"), (tool, "expert"), (reward, "_limits")])
def test_no_tool_and_no_reward_is_named_like_a_member(mark: Callable[..., Any], name: str) -> None:
    def method(self: Any) -> float:
        """Do it."""
        return 1.0

    with pytest.raises(
        UserError, match=rf"^the {mark.__name__} {name} takes the place of \w+.{name}: call it {name}_ "
    ):
        type("Shop", (ToolEnv,), {name: mark(method)})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"step": property(lambda self: 1)}, "Shop.step is a property in the place of Env.step, a method"),
        ({"setup": 7}, "Shop.setup is 7 in the place of ToolEnv.setup, a method that every episode needs: give it"),
        ({"task": "sort"}, "Shop.task is 'sort' in the place of ToolEnv.task, the Task of the episode: give it"),
        ({"messages": lambda self: []}, "Shop.messages is a method in the place of ToolEnv.messages"),
        ({"tools": [one]}, "in the place of ToolEnv.tools, the list of the methods that are marked with @tool"),
        ({"tools": 7}, "in the place of Env.tools, a list of tools"),
        ({"rubric": one}, "in the place of ToolEnv.rubric, a list of reward functions"),
        ({"rubric": [(one, 1.0, 2)]}, "in the place of ToolEnv.rubric, a list of reward functions"),
        ({"np_random": 3}, "in the place of Env.np_random, the generator that seed"),
        ({"limits": 3}, "in the place of Env.limits, a mapping or a class method"),
        ({"tasks": [TASK]}, "in the place of Env.tasks, a class method, with @classmethod above it: give it"),
        ({"tasks": lambda self, split="train", *, count, seed=0: []}, r"Shop\.tasks .* write @classmethod above it$"),
        ({"limits": lambda self: {}}, r"Shop\.limits .* write @classmethod above it$"),
        ({"cheats": lambda self, task: []}, r"Shop\.cheats .* write @classmethod above it$"),
        ({"expert": lambda self, messages: {}}, r"Shop\.expert .* write @staticmethod above it$"),
        ({"made_of": "envs.math"}, "a list of modules"),
        ({"_toolbox": None}, "a part of ToolEnv itself"),
        ({"shared": 7}, "a mapping from attribute names"),
        ({"shared": {"task": "a:b"}}, "Shop.shared sets 'task', a name of ToolEnv"),
        ({"shared": {"close": "a:b"}}, "Shop.shared sets 'close', a name of Env"),
    ],
)
def test_what_is_refused_says_what_is_wanted(body: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as raised:
        type("Shop", (ToolEnv,), body)
    assert "\n" not in str(raised.value)


def shop(**body: Any) -> Any:
    return type("Shop", (ToolEnv,), body)


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


def test_a_class_that_is_mixed_in_is_looked_at_too() -> None:
    class Talks:
        messages = property(lambda self: [])

    with pytest.raises(UserError, match="Talks.messages is a property"):

        class Shop(Talks, ToolEnv):
            pass

    class Sells(ToolEnv, Talks):  # type: ignore[misc]
        pass

    assert Sells.messages is ToolEnv.messages


def test_an_environment_without_tools_has_task_and_messages_to_itself() -> None:
    class Plain(Env):
        task = "sort"
        messages = ()
        rubric = 3

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.setup = 7
            return [], {}

    Plain().reset()


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

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed=seed, options=options)

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

    with pytest.raises(EnvError, match=r"Shop sets self.seed to 7 in the place of Env.seed, a method .*another name"):
        EnvFactory(Shop).make()


def test_a_constructor_calls_the_one_of_its_parent() -> None:
    class Shop(Base):
        def __init__(self) -> None:
            self.sold = 0

    with pytest.raises(EnvError, match=r"Shop\.__init__ does not call super\(\).__init__\(\): write it"):
        EnvFactory(Shop).make()


def test_the_command_line_says_it_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shop.py"
    file.write_text(
        "from forge_env import ToolEnv, tool\n\n\nclass Shop(ToolEnv):\n    @tool\n    def step(self) -> int:\n"
        '        """Go on."""\n        return 1\n'
    )
    assert main(["info", f"{file}:Shop"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert "the tool step takes the place of Env.step: call it step_ or otherwise (Shop.step)" in err
    assert f"({file}, line 4)" in err


# ---- reset and setup ----


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


def plain_reset(self: Any, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
    messages, info = super(type(self), self).reset(seed=seed, options=options)
    assert self.task == TASK
    return messages, {**info, "is": "plain"}


def passing_reset(self: Any, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
    return super(type(self), self).reset(seed=seed, options=options)


async def async_reset(self: Any, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
    messages, info = await super(type(self), self).reset(seed=seed, options=options)
    assert self.task == TASK
    return messages, {**info, "is": "async"}


RESETS: dict[str, Callable[..., Any] | None] = {
    "none": None,
    "plain": plain_reset,
    "passing": passing_reset,
    "async": async_reset,
}


@pytest.mark.parametrize("base", [Base, SetUp, SetUpLater])
@pytest.mark.parametrize("kind", RESETS)
def test_every_kind_of_reset_goes_with_every_kind_of_setup(base: type[ToolEnv], kind: str) -> None:
    seen: dict[str, Any] = {}

    def close(self: Any) -> None:
        seen.update(vars(self))

    own_reset = RESETS[kind]
    shop = type("Shop", (base,), {"close": close} | ({"reset": own_reset} if own_reset is not None else {}))
    episode = play(shop)
    if base is SetUpLater and kind == "plain":
        assert episode.outcome is Outcome.ENV_FAULT
        assert "setup() of Shop has not run, since nothing awaits super().reset(...): write `async def" in episode.error
        return
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), episode.error
    contents = [message["content"] for message in episode.turns[0].observation]
    assert contents == ["Answer.", "3?", *(["Or 6."] if base is not Base else [])]
    assert seen["task"] == TASK and seen["_seed"] == 5
    if base is not Base:
        assert seen["doubled"] == 6 and seen["turns"] == 3
        assert (seen["thread"] == threading.get_ident()) == (base is SetUpLater), "a plain one runs in a thread"
    assert episode.info.get("is") == (kind if kind in ("plain", "async") else None)


def test_reset_can_be_called_without_a_loop() -> None:
    env = SetUp()
    messages, info = env.reset(seed=0, options={"task": TASK})
    assert [message["content"] for message in messages] == ["Answer.", "3?", "Or 6."] and info == {}


async def test_setup_runs_once_however_often_reset_is_awaited() -> None:
    class Counts(Base):
        runs = 0

        async def setup(self) -> None:
            self.runs += 1

    env = Counts()
    started = env.reset(seed=0, options={"task": TASK})
    assert await started == await started
    assert env.runs == 1
