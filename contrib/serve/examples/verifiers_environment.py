"""An environment of forge_env in verifiers (API v1): a taskset and the Env that plays it, by our OpenEnv server.

    forge-env serve --env math --as openenv --split train --port 8800      # prints the token
    pip install 'verifiers[openenv]'
    export ENV_URL=http://127.0.0.1:8800/TOKEN PYTHONPATH=examples
    vf-eval verifiers_environment --model MODEL --env.player.client.base-url BASE_URL

It needs nothing of forge_env.
"""

import os
import sys

if "--help" in sys.argv:
    print(__doc__)
    sys.exit()

import verifiers.v1 as vf
from openenv import GenericEnvClient

__all__ = ["ForgeEnv", "ForgeTaskset"]


class ForgeData(vf.TaskData):
    index: int


class ForgeTask(vf.Task[ForgeData]):
    pass


class ForgeTaskset(vf.Taskset[ForgeTask]):
    def load(self):
        for index in range(200):
            yield ForgeTask(ForgeData(name=f"task {index}", index=index), self.config.task)


class ForgeEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class ForgeEnv(vf.Env[ForgeEnvConfig]):
    async def run(self, task, agents):
        async with GenericEnvClient(base_url=os.environ["ENV_URL"]) as client:
            result, reward = await client.reset(index=task.data.index), 0.0
            async with agents.player.interaction(task) as player:
                while not result.done:
                    text = "\n\n".join(message["content"] for message in result.observation["messages"])
                    turn = await player.turn(text)
                    if turn.terminated:
                        break
                    result = await client.step({"content": turn.last_reply})
                    reward += result.reward or 0.0
            player.trace.record_reward("forge_env", reward)
