"""What a user's code raises, SystemExit among it, is a fault of its own episode, with part, file and line."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from forge_env.cli.main import main
from forge_env.core.episode import Group
from forge_env.core.errors import EnvError, UserError
from forge_env.core.tools import reward, tool
from forge_env.core.types import Outcome, Task
from forge_env.core.user_code import describe, guard, location_of, type_and_text
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import GroupSpec, run_group
from forge_env.tool_env.tool_env import ToolEnv
from tests.helpers.scripts import calls, in_order, says

TASK = Task(prompt=({"role": "user", "content": "go"},), target="0")


class Own(BaseException):
    """As a library may have one that no handler shall swallow."""


class Breaks(ToolEnv):
    """Raises in one part of the episode with the seed 1."""

    def __init__(self, part: str = "", error: str = "") -> None:
        super().__init__()
        self.part, self.error = part, error
        self.breaks("constructor", 1)

    def breaks(self, part: str, seed: int | None) -> None:
        if self.part == part and seed == 1:
            raise {"exit": SystemExit(4), "ctrl-c": KeyboardInterrupt(), "cancelled": asyncio.CancelledError()}.get(
                self.error, Own("so")
            )

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.breaks("reset", seed)
        return await super().reset(seed=seed, options=options)

    @tool
    def plain(self) -> str:
        """Runs in a thread."""
        self.breaks("plain", self._seed)
        return "fine"

    @tool
    async def waits(self) -> str:
        """Is awaited."""
        await asyncio.sleep(0)
        self.breaks("waits", self._seed)
        return "fine"

    @tool(parallel=True)
    async def beside(self) -> str:
        """Runs beside its neighbours, in a task of its own."""
        self.breaks("beside", self._seed)
        return "fine"

    @reward
    async def right(self) -> float:
        self.breaks("right", self._seed)
        return 1.0

    @reward
    def brief(self) -> float:
        self.breaks("brief", self._seed)
        return 0.0

    def success(self, reward: float) -> bool:
        self.breaks("success", self._seed)
        return True

    def close(self) -> None:  # type: ignore[override]
        self.breaks("close", self._seed)


class Plain(Breaks):
    """The same with a plain reset, step and close, which run in threads."""

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:  # type: ignore[override]
        self.breaks("reset", seed)
        return Breaks.reset(self, seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.breaks("step", self._seed)
        return [], 1.0, True, False, {}


class Coroutines(Breaks):
    """The same with a step and a close that are awaited."""

    async def step(self, action: Any) -> Any:
        self.breaks("step", self._seed)
        return [], 1.0, True, False, {}

    async def close(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.breaks("close", self._seed)


AGENT = in_order(calls(("plain", {}), ("waits", {}), ("beside", {}), ("beside", {})), says("0"))


async def play(env_class: type[ToolEnv], **options: Any) -> Group:
    async with EnvFactory(env_class) as factory:
        return await run_group(factory, AGENT, GroupSpec(task=TASK, count=3, seed=0, group_id="g", env_options=options))


ERRORS = ["exit", "ctrl-c", "cancelled", "own"]
NAMES = {"exit": "SystemExit: 4", "ctrl-c": "KeyboardInterrupt", "cancelled": "CancelledError", "own": "Own: so"}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    ("env_class", "part", "named"),
    [
        (Breaks, "reset", "reset"),
        (Plain, "reset", "reset"),
        (Plain, "step", "step"),
        (Coroutines, "step", "step"),
        (Breaks, "plain", "tool plain"),
        (Breaks, "waits", "tool waits"),
        (Breaks, "beside", "tool beside"),
        (Breaks, "right", "reward right"),
        (Breaks, "brief", "reward brief"),
        (Breaks, "success", "success"),
    ],
)
async def test_what_ends_a_program_ends_one_episode(
    env_class: type[ToolEnv], part: str, named: str, error: str
) -> None:
    group = await play(env_class, part=part, error=error)
    assert [e.outcome for e in group.episodes] == [Outcome.SCORED, Outcome.ENV_FAULT, Outcome.SCORED]
    fault = group.episodes[1].error
    assert re.fullmatch(rf"{named} \(tests/forge_env/core/test_user_code.py:\d+\): {NAMES[error]}", fault), fault
    assert group.episodes[1].reward is None


@pytest.mark.parametrize("error", ERRORS)
async def test_a_constructor_that_ends_the_program_is_a_fault_and_a_close_is_noted(error: str) -> None:
    for episode in (await play(Breaks, part="constructor", error=error)).episodes:
        assert episode.outcome is Outcome.ENV_FAULT
        assert re.fullmatch(rf"Breaks\(\) \(.*test_user_code.py:\d+\): {NAMES[error]}", episode.error), episode.error
    for env_class in (Breaks, Coroutines):
        group = await play(env_class, part="close", error=error)
        assert [e.outcome for e in group.episodes] == [Outcome.SCORED] * 3
        noted = group.episodes[1].info["close_error"]
        assert re.fullmatch(rf"close \(.*test_user_code.py:\d+\): {NAMES[error]}", noted), noted


async def test_a_cancelled_episode_is_cancelled_and_no_fault() -> None:
    class Waits(ToolEnv):
        entered = asyncio.Event()

        async def reset(self, **_: Any) -> Any:
            self.entered.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(play(Waits))
    await Waits.entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_a_fault_names_the_users_line_and_not_a_librarys() -> None:
    def own() -> None:
        re.compile("(")

    with pytest.raises(EnvError) as raised, guard("reset"):
        own()
    line = own.__code__.co_firstlineno + 1
    assert str(raised.value).startswith(
        f"reset (tests/forge_env/core/test_user_code.py:{line}): {re.error.__name__}: missing ), unter"
    )
    assert isinstance(raised.value.__cause__, re.error)


async def test_what_only_forge_env_raised_has_no_place() -> None:
    class Takes(ToolEnv):
        def __init__(self, *, address: str) -> None: ...

    (episode, *_) = (await play(Takes)).episodes
    assert episode.error.startswith("Takes(): TypeError: ") and "address" in episode.error


def test_an_exception_whose_text_cannot_be_had_is_described() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe("step", Mute()) == "step: Mute: (its text cannot be read: RuntimeError)"
    assert location_of(Mute()) == ""


async def test_an_env_error_of_a_users_own_keeps_its_words_and_gets_its_place() -> None:
    class Refuses(ToolEnv):
        @tool
        async def plain(self) -> str:
            """Refuses."""
            raise EnvError("the shop is closed")

    (episode, *_) = (await play(Refuses)).episodes
    assert re.fullmatch(r"tool plain \(tests/.*test_user_code.py:\d+\): the shop is closed", episode.error)


async def test_a_users_mistake_in_an_episode_is_still_the_users() -> None:
    class Needs(ToolEnv):
        async def reset(self, **_: Any) -> Any:
            raise UserError("set SHOP_TOKEN")

    with pytest.raises(UserError, match="^set SHOP_TOKEN$"):
        await play(Needs)


@pytest.mark.parametrize(
    ("part", "result", "words"),
    [
        ("reset", "hello", "reset returned what cannot be read: TypeError: it is 'hello', and not (messages, info)"),
        ("reset", (["hello"], {}), "reset returned what cannot be read: TypeError: 'hello' is no message"),
        ("reset", ("hello", {}), "reset returned what cannot be read: TypeError: 'hello' is no message"),
        ("step", ([{"role": "user"}], 0.0, False, False, {}), "step returned what cannot be read: TypeError: {'role'"),
        ("step", None, "step returned what cannot be read: TypeError: it is None, and not (messages, reward, "),
        ("step", ([], 0.0, True, {}), "step returned what cannot be read: TypeError: it is ([], 0.0, True, {}), and"),
    ],
)
async def test_messages_that_are_none_are_a_fault_of_their_episode(part: str, result: Any, words: str) -> None:
    class Odd(ToolEnv):
        async def reset(self, **given: Any) -> Any:
            return result if part == "reset" else await super().reset(**given)

        async def step(self, action: Any) -> Any:
            return result

    (episode, *_) = (await play(Odd)).episodes
    assert (episode.outcome, episode.error[: len(words)]) == (Outcome.ENV_FAULT, words)


SHOP = '''\
import sys

import forge_env


class Shop(forge_env.ToolEnv):
    """Buy."""

    @classmethod
    def tasks(cls, split="train", *, count, seed=0):
        return [forge_env.Task(prompt=({"role": "user", "content": f"{split} {i}"},)) for i in range(count)]

    @forge_env.tool
    async def buy(self) -> str:
        """Buy."""
        _, number = self.task.prompt[0]["content"].split()
        if number in ("0", "2"):
            sys.exit("sold out")
        return "bought"

    @forge_env.reward
    def right(self) -> float:
        return 1.0


def play(messages):
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": "done"}
    call = {"id": "c", "type": "function", "function": {"name": "buy", "arguments": "{}"}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
'''


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


EVAL = ["eval", "--env", "shop.py:Shop", "--agent", "scripted:shop.py:play", "--tasks", "4", "--out", "out"]


def test_eval_goes_on_and_tells_where_it_was(shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(EVAL) == 0
    out, err = capfd.readouterr()
    assert "tool buy (shop.py:18): SystemExit: sold out" in out + err
    assert "Traceback" not in out + err


def test_groups_in_groups_have_a_text_however_deep_they_are() -> None:
    error: Exception = ValueError("seven")
    for _ in range(3000):
        error = ExceptionGroup("of", [error])
    assert type_and_text(error).startswith("ExceptionGroup: of (1 sub-exception): ExceptionGroup: of")
