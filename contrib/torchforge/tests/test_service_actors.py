"""TaskSource, RewardActor and ReplayBuffer as services, in processes of their own."""

from __future__ import annotations

import asyncio

import pytest

from forge_env.core.episode import Episode
from forge_env.core.errors import EnvError, UserError
from forge_env.rollout.factory import make

pytest.importorskip("monarch")

from contrib.torchforge.replay_buffer import ReplayBuffer
from contrib.torchforge.reward import RewardActor
from contrib.torchforge.task_source import TaskSource
from forge_env.runtime.launcher import Launcher
from tests.helpers.waiting import until


async def test_tasks_come_once_and_in_order_however_many_ask(launcher: Launcher) -> None:
    source = await TaskSource.options().as_service(env="math", count=6, seed=3)
    expected = make("math").tasks("train", count=6, seed=3)
    tasks = await asyncio.gather(*(source.route(TaskSource.task) for _ in range(4)))
    assert sorted(task.id for task in tasks) == sorted(task.id for task in expected[:4])
    prompt, target = await source.route(TaskSource.sample)
    assert target == expected[4].target
    assert prompt == "\n\n".join(str(message["content"]) for message in expected[4].prompt)
    await source.route(TaskSource.task)
    assert (await source.route(TaskSource.task)).id == expected[0].id  # and begins again


async def test_a_reward_is_called_with_what_it_names(launcher: Launcher) -> None:
    plain = await RewardActor.options(num_replicas=2).as_service(reward=lambda response, target: response == target)
    answers = await asyncio.gather(*(plain.route(RewardActor.evaluate_response, "2+2", str(n), "4") for n in range(6)))
    assert answers == [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]


async def test_a_reward_that_breaks_or_is_no_number_is_the_environments_fault(launcher: Launcher) -> None:
    async def slow(prompt: str) -> float:
        await asyncio.sleep(0)
        return {"nan": float("nan"), "ok": 0.5}[prompt]

    reward = await RewardActor.options().as_service(reward=slow)
    assert await reward.route(RewardActor.evaluate_response, "ok", "") == 0.5
    with pytest.raises(EnvError, match="slow returned nan; a reward is a finite number"):
        await reward.route(RewardActor.evaluate_response, "nan", "")
    with pytest.raises(EnvError, match="slow.*: KeyError: 'other'"):
        await reward.route(RewardActor.evaluate_response, "other", "")
    with pytest.raises(UserError, match="takes answer; a reward takes prompt, response and target"):
        await RewardActor.options().as_service(reward=lambda answer: 1.0, name="another")


def episode(number: int) -> Episode:
    return Episode(prompt_ids=(1, number), response_ids=(2,), logprobs=(-0.5,), reward=float(number))


async def test_a_buffer_gives_every_episode_out_once_and_never_overflows(launcher: Launcher) -> None:
    buffer = await ReplayBuffer.options().as_actor(batch_size=2, capacity=4)
    adding = [asyncio.create_task(buffer.call_one(ReplayBuffer.add, episode(number))) for number in range(6)]
    await until(lambda: sum(task.done() for task in adding) == 4, "four are in it")
    assert await buffer.call_one(ReplayBuffer.waiting) == 4
    assert sum(task.done() for task in adding) == 4, "two wait until there is room"
    batches = [await buffer.call_one(ReplayBuffer.sample) for _ in range(3)]
    await asyncio.gather(*adding)
    assert sorted(e.reward for batch in batches for e in batch) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert all(len(batch) == 2 for batch in batches) and await buffer.call_one(ReplayBuffer.waiting) == 0
    with pytest.raises(UserError, match="batch_size is 3 and capacity 2"):
        await ReplayBuffer.options().as_actor(batch_size=3, capacity=2, name="small")
