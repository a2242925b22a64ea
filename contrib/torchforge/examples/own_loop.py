"""A loop of your own on the services alone: sample a task, answer it, score the answer, keep the episode.

Run it with `python contrib/torchforge/examples/own_loop.py`, or with a model: `... path/to/qwen3`.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from agents.generator.policy import PolicyActor
from agents.generator.settings import EngineSettings
from contrib.torchforge.replay_buffer import ReplayBuffer
from contrib.torchforge.reward import RewardActor
from contrib.torchforge.task_source import TaskSource
from forge_env import make
from forge_env.core.episode import Episode
from forge_env.core.types import EpisodeLimits, Sampling
from forge_env.runtime.launcher import Launcher
from trainers.model.make import make_model

BATCH = 8


def contains_the_answer(response, target):
    return float(str(target) in response)


async def one_rollout(dataloader, policy, reward, replay_buffer):
    prompt, target = await dataloader.route(TaskSource.sample)
    response = await policy.route(PolicyActor.generate, prompt, Sampling(max_tokens=32))
    reward_value = await reward.route(RewardActor.evaluate_response, prompt, response.text, target)
    await replay_buffer.route(
        ReplayBuffer.add,
        Episode(
            prompt_ids=response.prompt_ids,
            response_ids=response.token_ids,
            logprobs=response.logprobs,
            reward=reward_value,
        ),
    )


async def main(model):
    async with Launcher():
        dataloader, policy, reward, replay_buffer = await asyncio.gather(
            TaskSource.options().as_service(env="math"),
            PolicyActor.options(num_replicas=1).as_service(model=model, settings=EngineSettings(max_model_len=512)),
            RewardActor.options(num_replicas=2).as_service(reward=contains_the_answer),
            ReplayBuffer.options().as_actor(batch_size=BATCH),
        )
        rollouts = [one_rollout(dataloader, policy, reward, replay_buffer) for _ in range(BATCH)]
        await asyncio.gather(*rollouts)
        batch = await replay_buffer.call_one(ReplayBuffer.sample)
        tokens = sum(episode.num_sampled for episode in batch)
        print(f"{len(batch)} episodes, {tokens} sampled tokens, all trainable: {all(e.is_trainable for e in batch)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="folder of a model; without it a tiny one is made")
    model = parser.parse_args().model
    with tempfile.TemporaryDirectory() as folder:
        if model is None:
            asyncio.run(make_model(Path(folder), make("math"), seed=0, limits=EpisodeLimits()))
        asyncio.run(main(model or folder))
