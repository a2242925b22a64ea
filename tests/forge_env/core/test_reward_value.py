"""One tolerance for rewards that are sums of floats: thresholds, and differences that are none."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.scripted import ScriptedAgent
from forge_env.core.reward_value import are_same, reaches
from forge_env.core.tools import reward
from forge_env.core.types import Message, Task
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode
from forge_env.tool_env.tool_env import ToolEnv


async def say(messages: list[Message]) -> Message:
    return {"role": "assistant", "content": "4"}


def test_weights_that_sum_to_one_but_for_rounding_make_a_success() -> None:
    class Weighted(ToolEnv):
        rubric = ((lambda: 1.0, 0.7), (lambda: 1.0, 0.2), (lambda: 1.0, 0.1))

        @reward(weight=0.0)
        def nothing(self) -> float:
            return 1.0

    async def play() -> tuple[float | None, bool | None]:
        task = Task(prompt=({"role": "user", "content": "?"},))
        async with EnvFactory(Weighted) as factory:
            episode = await run_episode(factory, ScriptedAgent(say), task, seed=0, episode_id="e")
        return episode.reward, episode.success

    assert asyncio.run(play()) == (0.7 + 0.2 + 0.1, True)
    assert 0.7 + 0.2 + 0.1 < 1 and reaches(0.7 + 0.2 + 0.1, 1.0)
    assert not reaches(0.9999, 1.0)


@given(terms=st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.05, 1 / 3, 1 / 7]), min_size=1, max_size=30), data=st.data())
def test_a_sum_reaches_itself_in_any_order(terms: list[float], data: st.DataObject) -> None:
    total, other = sum(terms), sum(data.draw(st.permutations(terms)))
    assert reaches(other, total) and are_same([total, other])
    assert not reaches(total, total + 1e-6) and not are_same([total, total + 1e-6])


@pytest.mark.parametrize(
    ("rewards", "same"),
    [
        *(([0.3 - 0.1 - 0.1 - 0.1, 0.0], True), ([1e6, 1e6 + 1e-5], True), ([-0.7, -1.0 + 0.1 + 0.1 + 0.1], True)),
        *(([], True), ([5.0], True), ([0.0, 0.0], True)),
        *(([1e6, 1e6 + 1.0], False), ([0.0, 1e-6], False), ([1e-8, 2e-8], False), ([-1.0, 1.0], False)),
    ],
)
def test_rewards_are_the_same_if_they_differ_by_rounding_alone(rewards: list[float], same: bool) -> None:
    assert are_same(rewards) is same
