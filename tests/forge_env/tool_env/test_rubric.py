"""Rubric: reward functions get what they name, and a score is finite or a fault."""

from __future__ import annotations

import asyncio
import functools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from agents.scripted import ScriptedAgent
from benchmarks.simulated_time import World
from benchmarks.simulated_time import run as simulated
from forge_env.core.env import Env
from forge_env.core.errors import EnvError, PolicyError, UserError
from forge_env.core.tools import reward
from forge_env.core.types import Action, EpisodeLimits, Message, Outcome, Task
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode
from forge_env.tool_env.rubric import RewardPart, load_reward, score
from forge_env.tool_env.tool_env import ToolEnv

TASK = Task(
    prompt=({"role": "system", "content": "S"}, {"role": "user", "content": "2 + 2?"}), target="4", metadata={"n": 1}
)


async def total(*parts: RewardPart, response: str = "4") -> tuple[float, dict[str, float]]:
    messages: list[Message] = [*TASK.prompt, {"role": "assistant", "content": response}]
    return await score(parts, TASK, messages, response)


class Exact:
    """A reward class with the call that reward classes have everywhere."""

    def __call__(self, prompt: str, response: str, target: str) -> float:
        return float(prompt == "2 + 2?" and response == target)


async def test_functions_get_what_they_name() -> None:
    async def whole(messages: list[Message], task: Task, answer: str) -> float:
        return float(len(messages) == 3 and task == TASK and answer == "4")

    def brief(response: str, *, limit: int = 3) -> bool:
        return len(response) <= limit

    parts = [RewardPart.of(Exact()), RewardPart.of(whole, weight=2.0), RewardPart.of(brief, weight=-0.5)]
    assert await total(*parts) == (2.5, {"Exact": 1.0, "whole": 1.0, "brief": 1.0})


def test_a_reward_is_loaded_as_a_function_or_a_class() -> None:
    parts = [load_reward(f"{__file__}:{name}") for name in ("Exact", "scaled")]
    assert [(part.name, part.names) for part in parts] == [("Exact", ("prompt", "response", "target")), ("scaled", ())]
    for name, why in (("TASK", "a reward is a function"), ("Scales", r"Scales\(\) raised TypeError")):
        with pytest.raises(UserError, match=why):
            load_reward(f"{__file__}:{name}")


def test_a_parameter_that_is_nothing_a_reward_gets_is_refused() -> None:
    with pytest.raises(UserError, match=r"'respnse'.*Did you mean response\?"):
        RewardPart.of(lambda respnse: 1.0)


@pytest.mark.parametrize(
    "value",
    [math.nan, -math.inf, None, "many", "0.5", 1e300, 10**400, 1j, [1.0], np.array([1.0]), np.float32("nan")],
)
async def test_a_reward_that_is_no_finite_number_is_a_fault(value: Any) -> None:
    with pytest.raises(EnvError, match="odd"):
        await total(RewardPart.of(lambda: value, name="odd"))


async def test_what_fails_underneath_a_reward_keeps_its_name() -> None:
    async def judge(response: str) -> float:
        raise PolicyError("the judge does not answer")

    with pytest.raises(PolicyError):
        await total(RewardPart.of(judge))


@pytest.mark.parametrize("value", [1, True, np.bool_(True), np.float32(1), np.int64(1), np.array(1.0), Fraction(1)])
async def test_numbers_of_every_kind_are_rewards(value: Any) -> None:
    reward, parts = await total(RewardPart.of(lambda: value, name="one"))
    assert (reward, parts) == (1.0, {"one": 1.0}) and type(reward) is type(parts["one"]) is float


async def test_weights_cannot_make_an_endless_sum() -> None:
    with pytest.raises(EnvError, match="the weighted sum of the rewards is"):
        await total(RewardPart.of(lambda: 1.0, name="one", weight=1e300))


@pytest.mark.parametrize("value", [math.nan, "0.5"])
async def test_a_step_and_a_reward_method_refuse_the_same(value: Any) -> None:
    class OfStep(Env):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return TASK.prompt, {}

        def step(self, action: Any) -> Any:
            return (), value, True, False, {}

    class OfPart(OfStep):
        def step(self, action: Any) -> Any:
            return (), 1.0, True, False, {"rewards": {"odd": value}}

    class OfMethod(ToolEnv):
        @reward
        def odd(self, answer: str) -> Any:
            return value

    for env in (OfStep, OfPart, OfMethod):
        episode = await play(env, "4")
        assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None), env
        assert "a reward is a finite number" in episode.error


async def test_a_reward_method_that_raises_is_a_fault() -> None:
    class Raises(ToolEnv):
        @reward
        def odd(self, answer: str) -> float:
            raise ValueError("broken")

    episode = await play(Raises, "4")
    assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None) and "ValueError: broken" in episode.error


class Scored(ToolEnv):
    """An own reward method beside ready-made ones."""

    rubric = (Exact(), (lambda response: len(response), 0.1))

    @reward(weight=2.0)
    def polite(self, answer: str) -> float:
        return float("please" in answer)


async def play(env: type[Env], answer: str, limits: EpisodeLimits = EpisodeLimits()) -> Any:  # noqa: B008
    async def say(messages: list[Message]) -> Message:  # a loop in simulated time serves one thread
        return {"role": "assistant", "content": answer}

    async with EnvFactory(env) as factory:
        return await run_episode(factory, ScriptedAgent(say), TASK, seed=0, episode_id="e", limits=limits)


async def test_reward_methods_and_the_rubric_add_up() -> None:
    episode = await play(Scored, "4")
    assert episode.reward == pytest.approx(1.1)
    assert episode.rewards == {"polite": 0.0, "Exact": 1.0, "<lambda>": 1.0}
    assert (await play(Scored, "please")).reward == pytest.approx(2.6)


async def test_a_score_out_of_time_is_a_fault_and_no_zero() -> None:
    class Slow(ToolEnv):
        @reward
        async def never(self, answer: str) -> float:
            await asyncio.Event().wait()
            return 0.0

    episode = await play(Slow, "4", EpisodeLimits(scoring_seconds=0.05))
    assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None)
    assert "scoring took longer than 0.05 s" in episode.error


def test_scoring_counts_neither_in_the_step_nor_in_the_episode() -> None:
    class Thorough(ToolEnv):
        @reward
        async def slow(self, answer: str) -> float:
            await asyncio.sleep(0.2)
            return 1.0

    limits = EpisodeLimits(step_seconds=0.1, episode_seconds=0.1, scoring_seconds=20.0)
    episode = simulated(World(), play(Thorough, "4", limits))
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0)


class Scales:
    """Two functions of one name, which are methods of two objects."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self) -> float:
        return self.value

    def scaled(self) -> float:
        return self.value


def scaled(*, scale: float = 1.0) -> float:
    return 0.5 * scale


def test_parts_of_one_name_are_numbered_so_that_the_breakdown_sums_to_the_reward() -> None:
    class Many(ToolEnv):
        rubric = (
            functools.partial(scaled, scale=2.0),
            Scales(0.25),
            (Scales(0.125), 4.0),
            (lambda answer: 0.5, 1.0),
            (lambda answer: 0.0625, 1.0),
            Scales(2.0).scaled,
            (Scales(3.0).scaled, 0.5),
            functools.partial(functools.partial(scaled), scale=3.0),
        )

        @reward(weight=2.0)
        def scaled_2(self) -> float:
            return 7.0

    async def play() -> tuple[float, dict[str, float]]:
        env = Many()
        await env.reset(options={"task": TASK})
        _, total, _, _, info = await env.step(Action(message={"role": "assistant", "content": "4"}))
        return total, info["rewards"]

    total, values = asyncio.run(play())
    weights = {part.name: part.weight for part in (*Many._rewards, *Many._rubric)}
    assert values == {
        "scaled_2": 7.0,
        "scaled": 1.0,
        "Scales": 0.25,
        "Scales_2": 0.125,
        "<lambda>": 0.5,
        "<lambda>_2": 0.0625,
        "scaled_3": 2.0,
        "scaled_4": 3.0,
        "scaled_5": 1.5,
    }
    assert total == sum(weights[name] * value for name, value in values.items())
