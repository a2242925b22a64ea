"""The rollout loop: every way in which an episode can end, and what is never turned into a reward."""

from __future__ import annotations

import asyncio
import math
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.scripted import ScriptedAgent
from benchmarks.simulated_time import World
from benchmarks.simulated_time import run as simulated
from forge_env.core.env import Env
from forge_env.core.episode import Episode, Group, Turn
from forge_env.core.errors import InvariantError, PolicyError, SandboxError, TemplateError, UserError
from forge_env.core.protocols import ContextFull, Conversation, EndpointFull, NextTurn
from forge_env.core.types import Action, EpisodeLimits, Message, Outcome, Task, ToolSpec
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import GroupSpec, run_episode, run_group
from forge_env.utils.deadlines import queued
from forge_env.utils.threads import instant

TASK = Task(prompt=({"role": "user", "content": "go"},), target="3")
LIMITS = EpisodeLimits(max_turns=5)
Result = tuple[Sequence[Message], float, bool, bool, dict[str, Any]]


class Counter(Env):
    """Ends with reward 1 at the third turn; each turn before earns 0.25. Keeps count of what was closed."""

    truncation_reward = -1.0

    @instant  # a loop in simulated time waits for no thread
    def __init__(self, closed: list[Env] | None = None) -> None:
        self.closed = [] if closed is None else closed
        self.turns = 0

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.seed(seed)
        assert options is not None
        return options["task"].prompt, {}

    async def step(self, action: Action) -> Result:
        self.turns += 1
        done = self.turns == 3
        news: list[Message] = [{"role": "user", "content": f"after {self.turns}"}]
        return news, 1.0 if done else 0.25, done, False, {"rewards": {f"turn {self.turns}": 1.0}}

    async def close(self) -> None:
        self.closed.append(self)


def agent(answer: str | Callable[[list[Message]], str] = "hi") -> ScriptedAgent:
    script = answer if callable(answer) else lambda messages: answer

    async def say(messages: list[Message]) -> Message:  # a loop in simulated time serves one thread
        return {"role": "assistant", "content": script(messages)}

    return ScriptedAgent(say)


class Raises:
    """An agent whose policy breaks at its second turn."""

    def __init__(self, error: BaseException | Callable[[], Awaitable[None]], *, after: int = 1) -> None:
        self._error, self._after = error, after
        self._first = agent()

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        if len(conversation.turns) >= self._after:
            if isinstance(self._error, BaseException):
                raise self._error
            await self._error()
        return await self._first.act(conversation, tools)


class CutOff(ScriptedAgent):
    """An agent whose answers are cut off after so many tokens."""

    def __init__(self, tokens: int, **usage: int) -> None:
        super().__init__(lambda messages: {"role": "assistant", "content": "hi"})
        self._usage = {"completion_tokens": tokens, **usage}

    async def act(self, *args: Any) -> tuple[Turn, Action]:
        turn, action = await super().act(*args)
        return turn, replace(action, finish_reason="length", usage=self._usage)


class ShortContext(Raises):
    """An agent whose own context is full at its second turn."""

    def __init__(self) -> None:
        super().__init__(ContextFull())

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        conversation.max_tokens = 1024
        return await super().act(conversation, tools)


class Hangs:
    """An agent whose policy never answers, and is waited for no longer than it says."""

    answer_seconds = 0.05

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def play(env_class: type[Env], who: Any = None, *, limits: EpisodeLimits = LIMITS, **options: Any) -> Episode:
    async with EnvFactory(env_class) as factory:
        return await run_episode(
            factory, who or agent(), TASK, seed=7, episode_id="g/0", group_id="g", limits=limits, env_options=options
        )


async def play_group(env_class: type[Env], who: Any = None, *, count: int, seed: int = 0, **options: Any) -> Group:
    async with EnvFactory(env_class, **options) as factory:
        spec = GroupSpec(task=TASK, count=count, seed=seed, group_id="g")
        return await run_group(factory, who or agent(), spec, limits=LIMITS)


def step_that(result: Any) -> type[Env]:
    """An environment whose step returns `result`, or raises it."""

    class Env_(Counter):
        async def step(self, action: Action) -> Any:
            if isinstance(result, Exception):
                raise result
            return result

    return Env_


def ends(reward: Any = 0.0, terminated: bool = True, truncated: bool = False, **info: Any) -> type[Env]:
    """An environment that ends at its first step."""
    return step_that(((), reward, terminated, truncated, info))


def reset_that(result: Any) -> type[Env]:
    class Env_(Counter):
        async def reset(self, **_: Any) -> Any:
            if isinstance(result, Exception):
                raise result
            return result

    return Env_


def constructor_that(error: Exception) -> type[Env]:
    class Env_(Counter):
        def __init__(self, closed: Any) -> None:
            raise error

    return Env_


class Slow(Counter):
    """A step of it does not end."""

    async def step(self, action: Action) -> Any:
        await asyncio.Event().wait()


class SlowReset(Counter):
    time_spent_by = "model"

    async def reset(self, **_: Any) -> Any:
        await asyncio.Event().wait()


class StallsAtTheSecondTurn(Counter):
    """Takes its time, which is its own or the model's."""

    @instant
    def __init__(self, by: Any, closed: list[Env] | None = None) -> None:
        super().__init__(closed)
        self.time_spent_by = by

    async def step(self, action: Action) -> Result:
        if self.turns:
            await asyncio.Event().wait()
        return await super().step(action)


# ---- the model's doing: there is a reward ----


async def test_an_episode_that_ends_is_scored_with_the_sum_of_its_steps() -> None:
    result = await play(Counter)
    assert result.outcome is Outcome.SCORED
    assert result.reward == 1.5
    assert [turn.reward for turn in result.turns] == [0.25, 0.25, 1.0]
    assert result.rewards == {"turn 1": 1.0, "turn 2": 1.0, "turn 3": 1.0}
    assert [m["content"] for m in result.messages] == ["go", "hi", "after 1", "hi", "after 2", "hi", "after 3"]
    assert (result.id, result.group_id, result.seed, result.env, result.task) == ("g/0", "g", 7, "Counter", TASK)


class FullOnce(Raises):
    """An agent that finds no room for an answer before its `at`-th turn, or before every turn from there on."""

    def __init__(self, at: int, *, times: float = 1) -> None:
        super().__init__(ContextFull("the prompt has 9 tokens"))
        self._at, self._times = at, times

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        if len(conversation.turns) >= self._at and self._times > 0:
            self._times -= 1
            raise self._error
        return await self._first.act(conversation, tools)


class GoesOn(Counter):
    """Takes a full context for no end, and knows what it was told."""

    def __init__(self, end: Any = ((), 0.0, False, False, {"shortened": True})) -> None:
        super().__init__()
        self.told: list[tuple[str, ...]] = []
        self._end = end

    def on_limit(self, *told: str) -> Any:
        self.told.append(told)
        if isinstance(self._end, Exception):
            raise self._end
        return self._end

    def final_info(self) -> dict[str, Any]:
        return {"told": self.told, "closed": len(self.closed)}


@pytest.mark.parametrize("at", [0, 1])
async def test_an_environment_may_go_on_or_end_at_a_prompt_that_leaves_no_room(at: int) -> None:
    result = await play(GoesOn, FullOnce(at), limits=EpisodeLimits(max_turns=3))
    assert (result.outcome, result.reward, len(result.turns)) == (Outcome.SCORED, 1.5, 3), "it is no turn"
    assert result.info["told"] == [["max_tokens", "the prompt has 9 tokens"]]
    assert result.info["shortened"] and result.info["full_contexts"] == [at]
    end = await play(GoesOn, FullOnce(at), end=((), 0.5, True, False, {"rewards": {"part": 0.5}}))
    assert (end.outcome, end.reward, end.ended_by) == (Outcome.SCORED, 0.5 + 0.25 * at, "environment")
    assert (len(end.turns), end.rewards["part"]) == (at, 0.5)
    assert Episode.from_json(end.to_json()) == end


async def test_an_environment_that_only_asks_what_has_no_room_comes_to_an_end() -> None:
    result = await play(GoesOn, FullOnce(1, times=math.inf))
    assert (result.outcome, result.ended_by, len(result.turns)) == (Outcome.TRUNCATED, "max_tokens", 1)


async def test_an_environment_is_told_what_has_ended_it_and_has_the_last_word() -> None:
    result = await play(GoesOn, limits=EpisodeLimits(max_turns=2))
    assert (result.outcome, result.ended_by) == (Outcome.TRUNCATED, "max_turns")
    assert result.info["told"] == [["max_turns"]]
    assert result.info["closed"] == 1, "it says it after its close"
    fault = await play(GoesOn, Raises(PolicyError("engine died")))
    assert (fault.outcome, fault.info["told"]) == (Outcome.INFRA_FAULT, [])


async def test_an_environment_that_breaks_as_it_is_told_of_its_end_keeps_what_it_did() -> None:
    class Breaks(GoesOn):
        def final_info(self) -> Any:
            raise SystemExit("no words")

    result = await play(Breaks, limits=EpisodeLimits(max_turns=2), end=KeyError("ending"))
    assert (result.outcome, result.reward) == (Outcome.TRUNCATED, 0.5 - 1.0)
    for name, text in (("on_limit", "KeyError: 'ending'"), ("final_info", "SystemExit: no words")):
        said = result.info[f"{name}_error"]
        assert said.startswith(f"{name} (tests/forge_env/rollout/test_rollout.py:") and said.endswith(text)
    full = await play(GoesOn, FullOnce(1), end=KeyError("ending"))
    assert full.outcome is Outcome.ENV_FAULT, "here its answer decides how the episode goes on"


@pytest.mark.parametrize(
    ("env", "limits", "options", "ending", "error"),
    [
        (StallsAtTheSecondTurn, {"episode_seconds": 0.05}, {"by": "model"}, ("TRUNCATED", -0.75, 2), ""),
        (StallsAtTheSecondTurn, {"step_seconds": 0.05}, {"by": "model"}, ("TRUNCATED", -0.75, 2), ""),
        (StallsAtTheSecondTurn, {"episode_seconds": 0.05}, {"by": "service"}, ("TIMEOUT", None, 2), "StallsAtThe"),
        (Slow, {"step_seconds": 0.05}, {}, ("ENV_FAULT", None, 1), "longer than 0.05 s"),
        # Nothing is the model's doing before its first turn.
        (SlowReset, {"episode_seconds": 0.05}, {}, ("TIMEOUT", None, 0), "0.05 s of episode_seconds"),
        (SlowReset, {"step_seconds": 0.05}, {}, ("ENV_FAULT", None, 0), ""),
    ],
)
def test_an_episode_out_of_time_has_a_reward_if_it_is_the_models_doing(
    env: type[Env], limits: Any, options: Any, ending: tuple[str, float | None, int], error: str
) -> None:
    """In simulated time: on a busy machine, the first turn may take as long as any limit."""
    result = simulated(World(), play(env, limits=EpisodeLimits(**limits), **options))
    assert (result.outcome.name, result.reward, len(result.turns)) == ending
    assert result.ended_by == ("" if ending[0] == "ENV_FAULT" else next(iter(limits)))
    assert error in result.error and bool(result.error) == (ending[1] is None)


async def test_what_the_model_said_is_kept_when_the_environment_breaks_on_it() -> None:
    result = await play(step_that(ValueError("odd")))
    assert [turn.message["content"] for turn in result.turns] == ["hi"]
    assert [message["content"] for message in result.messages] == ["go", "hi"]


async def test_time_that_an_environment_blocks_the_loop_for_counts() -> None:
    class Blocks(Counter):
        async def step(self, action: Action) -> Result:
            until = asyncio.get_running_loop().time() + 0.03
            while asyncio.get_running_loop().time() < until:
                pass
            return await super().step(action)

    result = await play(Blocks, limits=EpisodeLimits(episode_seconds=0.05))
    assert result.outcome is Outcome.TIMEOUT and len(result.turns) <= 2


def test_whose_time_it_is_is_one_of_two_words() -> None:
    with pytest.raises(UserError, match=r'Odd\.time_spent_by is \'agent\'; it is "model" or "service"'):

        class Odd(Env):
            time_spent_by = "agent"  # type: ignore[assignment]


@given(
    limit=st.floats(0.1, 10),
    turns=st.lists(st.tuples(st.floats(0, 20), st.floats(0, 3), st.floats(0, 20)), min_size=1, max_size=8),
)
def test_an_episode_never_has_more_of_its_environments_time_than_its_limit(
    limit: float, turns: list[tuple[float, float, float]]
) -> None:
    """Of any mix of generating, working and waiting in a queue, only the work counts."""
    worked = [0.0]

    class Works(Env):
        async def reset(self, **_: Any) -> Any:
            return TASK.prompt, {}

        async def step(self, action: Action) -> Result:
            _, seconds, queue = turns[int(action.text)]
            started = asyncio.get_running_loop().time()
            try:
                await asyncio.sleep(seconds)
            finally:
                worked[0] += asyncio.get_running_loop().time() - started
            async with queued():
                await asyncio.sleep(queue)
            return (), 0.0, int(action.text) == len(turns) - 1, False, {}

    async def generates(messages: list[Message]) -> Message:
        turn = len(messages) - 1
        await asyncio.sleep(turns[turn][0])
        return {"role": "assistant", "content": str(turn)}

    limits = EpisodeLimits(max_turns=8, step_seconds=100.0, episode_seconds=limit)
    result = simulated(World(), play(Works, ScriptedAgent(generates), limits=limits))
    total = sum(seconds for _, seconds, _ in turns)
    assert worked[0] <= limit + 1e-6
    if abs(total - limit) > 1e-6:
        assert result.outcome is (Outcome.TIMEOUT if total > limit else Outcome.SCORED)


class AsksForTokens(Counter):
    """Allows an answer 20 tokens."""

    async def reset(self, **options: Any) -> Any:
        observation, info = await super().reset(**options)
        return observation, {**info, "next": NextTurn(max_tokens=20)}

    async def step(self, action: Action) -> Any:
        return (), 0.0, True, False, {}


OVER = {"ended_by": "max_tokens"}
ENDINGS: dict[str, tuple[Any, dict[str, Any], str, float | None, str]] = {
    "out of turns": (Counter, {"limits": EpisodeLimits(max_turns=2)}, "TRUNCATED", 0.5 - 1.0, "max_turns"),
    "out of context": (Counter, {"who": Raises(ContextFull())}, "TRUNCATED", 0.25 - 1.0, "max_tokens"),
    "cut off": (ends(), {"who": CutOff(512)}, "TRUNCATED", -1.0, "max_turn_tokens"),
    "max_tokens of a row": (ends(), {"who": CutOff(20)}, "TRUNCATED", -1.0, "max_tokens"),
    "own context": (Counter, {"who": ShortContext()}, "TRUNCATED", -0.75, "context"),
    "full endpoint": (Counter, {"who": Raises(EndpointFull())}, "TRUNCATED", -0.75, "context"),
    "full endpoint, told": (
        *(GoesOn, {"who": Raises(EndpointFull()), "end": ((), 0.0, False, True, OVER)}, "TRUNCATED", -0.75, "context"),
    ),
    "context of an endpoint": (ends(), {"who": CutOff(20, prompt_tokens=80)}, "TRUNCATED", -1.0, "context"),
    "own context, told": (
        *(GoesOn, {"who": ShortContext(), "end": ((), 0.0, False, True, OVER)}, "TRUNCATED", -0.75, "context"),
    ),
    "tokens asked for": (AsksForTokens, {"who": CutOff(20, prompt_tokens=80)}, "TRUNCATED", -1.0, "environment"),
    "truncation": (ends(0.5, False, True), {}, "TRUNCATED", 0.5 - 1.0, "environment"),
    "truncation and end": (ends(0.5, True, True), {}, "TRUNCATED", 0.5 - 1.0, "environment"),
    "limit of its own": (ends(0.0, False, True, ended_by="step_seconds"), {}, "TRUNCATED", -1.0, "step_seconds"),
    "word of its own": (ends(ended_by=["a fall"]), {}, "SCORED", 0.0, "environment"),
    "the model's fault": (ends(-0.5, outcome="model_fault"), {}, "MODEL_FAULT", -0.5, "environment"),
    "fault underneath": (ends(outcome="infra_fault"), {}, "INFRA_FAULT", None, ""),
    "fault": (ends(0.0, False, True, outcome="env_fault"), {}, "ENV_FAULT", None, ""),
}


@pytest.mark.parametrize("case", ENDINGS)
async def test_an_episode_has_an_outcome_and_says_what_ended_it(case: str) -> None:
    env, options, outcome, reward, ended_by = ENDINGS[case]
    closed: list[Env] = []
    result = await play(env, **options | ({} if env is GoesOn else {"closed": closed}))
    assert (result.outcome.name, result.reward, result.ended_by) == (outcome, reward, ended_by)
    is_known = result.ended_by == "context" and not case.startswith("full")  # an endpoint does not say its length
    assert ("context_tokens" in result.info) == is_known
    assert Episode.from_json(result.to_json()) == result
    assert env is GoesOn or len(closed) == 1


FAULTS: dict[str, tuple[type[Env], Any, str, str]] = {
    "constructor raises": (constructor_that(ValueError("no board")), None, "ENV_FAULT", "ValueError: no board"),
    "reset raises": (reset_that(ValueError("odd")), None, "ENV_FAULT", "ValueError: odd"),
    "step raises": (step_that(KeyError("odd")), None, "ENV_FAULT", "KeyError: 'odd'"),
    "reward is NaN": (ends(math.nan), None, "ENV_FAULT", "nan"),
    "reward is infinite": (ends(math.inf), None, "ENV_FAULT", "inf"),
    "no five-tuple": (step_that(((), 1.0, True)), None, "ENV_FAULT", ""),
    "reward is None": (ends(None), None, "ENV_FAULT", ""),
    "reward is a text": (ends("1.0"), None, "ENV_FAULT", ""),
    "info is None": (step_that(((), 1.0, True, False, None)), None, "ENV_FAULT", ""),
    "no such outcome": (ends(1.0, outcome="fine"), None, "ENV_FAULT", ""),
    "reset without info": (reset_that(TASK.prompt), None, "ENV_FAULT", ""),
    "sandbox fails in the constructor": (constructor_that(SandboxError("gone")), None, "INFRA_FAULT", "gone"),
    "sandbox fails in reset": (reset_that(SandboxError("gone")), None, "INFRA_FAULT", "SandboxError: gone"),
    "sandbox fails in step": (step_that(SandboxError("gone")), None, "INFRA_FAULT", "SandboxError: gone"),
    "policy fails": (Counter, Raises(PolicyError("engine died")), "INFRA_FAULT", "PolicyError: engine died"),
    "policy hangs": (Counter, Hangs(), "INFRA_FAULT", "PolicyError: Hangs did not answer within 0.05 s"),
}


@pytest.mark.parametrize("case", FAULTS)
async def test_a_fault_has_no_reward(case: str) -> None:
    env_class, who, outcome, words = FAULTS[case]
    closed: list[Env] = []
    result = await play(env_class, who, closed=closed)
    assert (result.outcome.name, result.reward) == (outcome, None)
    assert words in result.error and len(closed) == (0 if "constructor" in case else 1)


# ---- agents that break: a fault of that episode alone ----


async def cancelled() -> None:
    """Wait for a task that somebody else has cancelled."""
    task = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await task


async def broken_tasks() -> None:
    async def fail() -> None:
        raise ConnectionError("refused")

    async with asyncio.TaskGroup() as running:
        running.create_task(fail())


AGENT_ERRORS = {
    "an exception": (ConnectionError("refused"), "ConnectionError: refused"),
    "a time-out of its own": (TimeoutError("the connection timed out"), "TimeoutError: the connection timed out"),
    "the end of the process": (SystemExit(3), "SystemExit: 3"),
    "Ctrl-C that nobody pressed": (KeyboardInterrupt(), "KeyboardInterrupt"),
    "a task that fails": (broken_tasks, "ConnectionError: refused"),
    "a task that was cancelled": (cancelled, "CancelledError"),
}


@pytest.mark.parametrize("case", AGENT_ERRORS)
async def test_an_agent_that_raises_is_a_fault_with_its_place(case: str) -> None:
    error, words = AGENT_ERRORS[case]
    closed: list[Env] = []
    result = await play(Counter, Raises(error), closed=closed)
    assert (result.outcome, result.reward, len(result.turns), len(closed)) == (Outcome.INFRA_FAULT, None, 1, 1)
    assert result.error.startswith("PolicyError: agent (") and result.error.endswith(words)


@pytest.mark.parametrize("wrap", [lambda error: error, lambda error: ExceptionGroup("of tasks", [error])])
async def test_a_users_mistake_ends_the_run_in_one_sentence(wrap: Callable[[Exception], Exception]) -> None:
    """It is the same for every episode: a key that is refused, a model that is unknown."""
    with pytest.raises(UserError, match="refused the API key"):
        await play(Counter, Raises(wrap(UserError("it refused the API key"))))


@pytest.mark.parametrize("answer", [None, (1, 2), {"role": "assistant", "content": "hi"}])
async def test_an_agent_that_returns_something_else_is_a_fault(answer: Any) -> None:
    class Odd:
        async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> Any:
            return answer

    result = await play(Counter, Odd())
    assert (result.outcome, result.reward) == (Outcome.INFRA_FAULT, None)
    assert "Odd.act returned" in result.error and "must return a Turn and an Action" in result.error


async def test_an_agent_may_be_a_plain_function() -> None:
    """It runs in a thread."""
    threads = []

    class Plain:
        def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
            threads.append(threading.current_thread())
            message: Message = {"role": "assistant", "content": "hi"}
            return Turn(kind="text", observation=conversation.observation, message=message), Action(message=message)

    result = await play(Counter, Plain())
    assert (result.outcome, result.reward) == (Outcome.SCORED, 1.5)
    assert threading.main_thread() not in threads


async def test_a_bug_of_ours_raises_and_still_closes() -> None:
    closed: list[Env] = []
    with pytest.raises(InvariantError, match="a bug"):
        await play(Counter, Raises(InvariantError("a bug")), closed=closed)
    assert len(closed) == 1


# ---- closing ----


async def test_an_episode_that_is_cancelled_closes_its_environment() -> None:
    closed: list[Env] = []
    running = asyncio.create_task(play(Counter, Hangs(), closed=closed))
    for _ in range(20):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(closed) == 1


async def test_a_close_that_raises_or_hangs_is_no_crash() -> None:
    class Sticky(Counter):
        async def close(self) -> None:
            raise OSError("still busy")

    class Stuck(Counter):
        async def close(self) -> None:
            await asyncio.Event().wait()

    limits = EpisodeLimits(step_seconds=0.05, episode_seconds=0.2)
    for env in (Sticky, Stuck):
        assert isinstance(await asyncio.wait_for(play(env, limits=limits), 60.0), Episode)


# ---- groups ----


async def test_a_group_that_raises_leaves_nothing_running() -> None:
    closed: list[Env] = []

    class FirstRaises(Hangs):
        async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
            if conversation.seed == 0:
                raise InvariantError("a bug")
            return await super().act(conversation, tools)

    with pytest.raises(BaseException, match="a bug"):
        await play_group(Counter, FirstRaises(), count=3, closed=closed)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    assert not left


class Dice(Env):
    """Rolls its own dice at every step, and gives way to others in between."""

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seed(seed)
        await asyncio.sleep(0)
        return [{"role": "user", "content": str(self.np_random.integers(10**9))}], {}

    async def step(self, action: Action) -> Result:
        for _ in range(int(self.np_random.integers(4))):
            await asyncio.sleep(0)
        roll = int(self.np_random.integers(10**9))
        return [{"role": "user", "content": str(roll)}], roll / 10**9, roll % 4 == 0, False, {}


async def test_a_seed_gives_one_episode_alone_and_among_64() -> None:
    def script(messages: list[Message]) -> str:
        return messages[-1]["content"][::-1]

    def without_times(result: Episode) -> Episode:
        return replace(result, turns=tuple(replace(turn, policy_seconds=0.0, env_seconds=0.0) for turn in result.turns))

    crowd = await play_group(Dice, agent(script), count=64, seed=5)
    async with EnvFactory(Dice) as factory:
        for i in (0, 20, 63):
            alone = await run_episode(
                factory, agent(script), TASK, seed=5 + i, episode_id=f"g/{i}", group_id="g", limits=LIMITS
            )
            assert without_times(alone) == without_times(crowd.episodes[i])
    assert len({e.messages[0]["content"] for e in crowd.episodes}) == 64
    assert [(e.seed, e.id) for e in crowd.episodes] == [(5 + i, f"g/{i}") for i in range(64)]
    assert {e.group_id for e in crowd.episodes} == {crowd.id} == {"g"}


# ---- plain methods ----


class Meets(Env):
    """A blocking environment: its `part` returns when some instances are in it at once, or never."""

    barrier: threading.Barrier | None = None
    part: str

    def __init__(self) -> None:
        self.meet("constructor")

    def meet(self, part: str) -> None:
        if part == self.part and self.barrier is not None:
            self.barrier.wait(60.0)
        while part == self.part and self.barrier is None:
            time.sleep(0.001)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return TASK.prompt, {}

    def step(self, action: Action) -> Result:
        self.meet("step")
        return (), 1.0, True, False, {}

    def success(self, reward: float) -> bool:
        self.meet("success")
        return True

    def final_info(self) -> Mapping[str, Any]:
        self.meet("final_info")
        return {"met": True}


@pytest.mark.parametrize(("part", "parties"), [("constructor", 4), ("step", 40), ("success", 4), ("final_info", 4)])
async def test_blocking_environments_do_not_stall_each_other(part: str, parties: int) -> None:
    group = await play_group(
        type("Met", (Meets,), {"part": part, "barrier": threading.Barrier(parties)}), count=parties
    )
    assert group.rewards == (1.0,) * parties
    assert all(episode.success and episode.info["met"] for episode in group.episodes)


@pytest.mark.parametrize("part", ["constructor", "step", "success", "final_info"])
async def test_the_limit_of_a_step_ends_all_parts(part: str) -> None:
    result = await play(type("Endless", (Meets,), {"part": part}), limits=EpisodeLimits(step_seconds=0.1))
    message = f"{'Endless()' if part == 'constructor' else part} took longer than 0.1 s"
    if part == "final_info":
        assert (result.outcome, result.info["final_info_error"]) == (Outcome.SCORED, message)
    else:
        assert (result.outcome, result.error, result.reward) == (Outcome.ENV_FAULT, message, None)


async def test_the_verdict_and_the_final_info_may_be_coroutines() -> None:
    class Verdict(Counter):
        async def success(self, reward: float) -> bool:  # type: ignore[override]
            return reward == 1.5

        async def final_info(self) -> Mapping[str, Any]:  # type: ignore[override]
            return {"facts": (1, 2)}

    result = await play(Verdict)
    assert result.success and result.info["facts"] == [1, 2]


async def test_what_an_environment_says_besides_is_kept_for_the_record() -> None:
    class Talkative(Env):
        async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return [{"role": "user", "content": "?"}], {"place": "here", "pair": (1, 2)}

        async def step(self, action: Action) -> Any:
            return [], 1.0, True, False, {"rewards": {"part": 1.0, 0: 0.5}, "tests": {"passed": 1}, "thing": object()}

    episode = await play(Talkative)
    assert dict(episode.info) | {"thing": ""} == {"place": "here", "pair": [1, 2], "tests": {"passed": 1}, "thing": ""}
    assert episode.info["thing"].startswith("<object object")
    assert episode.rewards == {"part": 1.0, "0": 0.5}
    assert Episode.from_json(episode.to_json()) == episode


# ---- several conversations in one episode ----


class Interleaved(Env):
    """Asks in three conversations, in an order of its own; the last answer ends it."""

    ORDER = (0, 1, 0, 2, 1, 0)

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.turns = 0
        return self._asked()

    async def step(self, action: Action) -> Result:
        self.turns += 1
        if self.turns == len(self.ORDER):
            return (), 1.0, True, False, {}
        observation, info = self._asked()
        return observation, 0.0, False, False, info

    def _asked(self) -> tuple[Sequence[Message], dict[str, Any]]:
        number = self.ORDER[self.turns]
        content = f"turn {self.turns} of {number}"
        return ({"role": "user", "content": content},), {"next": NextTurn(context=number, max_tokens=9), "seen": number}


class Watches:
    """Says how many messages it was shown, and keeps the ids and seeds that it was given."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, int | None, int | None]] = []
        self._agent = agent(lambda messages: f"{len(messages)} messages, first {messages[0]['content']!r}")

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        assert conversation.next_turn is not None
        self.shown.append((conversation.request_id, conversation.seed, conversation.next_turn.max_tokens))
        return await self._agent.act(conversation, tools)


async def test_conversations_are_apart_and_each_is_whole_in_the_record() -> None:
    who = Watches()
    result = await play(Interleaved, who, limits=EpisodeLimits(max_turns=9))
    assert (result.outcome, result.reward) == (Outcome.SCORED, 1.0)
    turns = ((1, "3 of 2"), (1, "1 of 1"), (3, "1 of 1"), (1, "0 of 0"), (3, "0 of 0"), (5, "0 of 0"))
    expected = [f"{count} messages, first 'turn {turn}'" for count, turn in turns]
    assert [turn.message["content"] for turn in result.turns] == expected, "one after another, the one at hand last"
    assert [request_id for request_id, _, _ in who.shown] == [
        "g/0", "g/0/context1", "g/0", "g/0/context2", "g/0/context1", "g/0",
    ]  # fmt: skip
    assert len({seed for _, seed, _ in who.shown}) == 3
    # The siblings have the seeds 7, 8, 9, ...: no conversation draws what a sibling draws.
    assert all(seed == 7 or seed is None or seed > 7 + 10**6 for _, seed, _ in who.shown)
    assert {most for *_, most in who.shown} == {9}
    assert result.info == {"seen": 0}, "what is asked is no part of the record"
    began = [(row.turn, row.kind) for row in result.lineage]
    assert began == [(0, "environment"), (1, "environment"), (3, "")]
    short = await play(Interleaved, Watches(), limits=EpisodeLimits(max_turns=3))
    assert (short.outcome, len(short.turns)) == (Outcome.TRUNCATED, 3)
    assert [m["content"] for m in short.tail] == ["turn 3 of 2"]


async def test_what_was_asked_holds_for_one_turn() -> None:
    class Once(Counter):
        async def reset(self, **kwargs: Any) -> Any:
            observation, _ = await super().reset(**kwargs)
            return observation, {"next": NextTurn(max_tokens=3)}

    seen: list[NextTurn | None] = []

    class Notes(Watches):
        async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
            seen.append(conversation.next_turn)
            return await self._agent.act(conversation, tools)

    assert (await play(Once, Notes())).outcome is Outcome.SCORED
    assert seen == [NextTurn(max_tokens=3), None, None]


async def test_messages_from_outside_that_no_template_takes_are_a_fault_and_our_own_a_mistake() -> None:
    error = TemplateError("no place for it")
    with pytest.raises(TemplateError):
        await play(Counter, Raises(error))
    result = await play(Interleaved, Raises(error, after=0))
    assert (result.outcome, result.reward, result.error) == (Outcome.ENV_FAULT, None, "no place for it")


@pytest.mark.parametrize(
    ("said", "outcome", "words"),
    [
        (lambda reward: reward > 100, Outcome.SCORED, ""),
        (lambda reward: np.True_, Outcome.SCORED, ""),
        (lambda reward: 1 / 0, Outcome.ENV_FAULT, "success (FILE): ZeroDivisionError: division by zero"),
        (lambda reward: "yes", Outcome.ENV_FAULT, "success: TypeError: it returned 'yes', and not True or False"),
    ],
)
async def test_the_environment_says_what_a_success_is(said: Any, outcome: Outcome, words: str) -> None:
    class Judging(Counter):
        def success(self, reward: float) -> bool:
            return said(reward)

    result = await play(Judging)
    assert (result.outcome, re.sub(r"\(.*test_rollout.py:\d+\)", "(FILE)", result.error)) == (outcome, words)
    assert result.success is (None if words else bool(said(result.reward)))
    assert (await play(Counter)).success is ((await play(Counter)).reward >= 1.0)
