"""A Gymnasium environment as a forge environment: FrozenLake, played in words.

forge-env check gymnasium:FrozenLake-v1       any text environment, without writing anything
python contrib/gymnasium/examples/frozen_lake.py
"""

import argparse
import asyncio

import forge_env
from agents.scripted import ScriptedAgent
from contrib.gymnasium.text import from_gymnasium

ACTIONS = ("left", "down", "right", "up")
FrozenLake = from_gymnasium("FrozenLake-v1", action_names=ACTIONS, max_steps=20)

PATH = ("down", "down", "right", "down", "right", "right")


def script(messages):
    """Walk a path that avoids the holes of the 4x4 map."""
    turn = sum(message["role"] == "assistant" for message in messages)
    return {"role": "assistant", "content": f"I move {PATH[turn]}"}


async def main() -> None:
    async with forge_env.EnvFactory(FrozenLake, make_options={"is_slippery": False}) as factory:
        [task] = factory.tasks("train", count=1)
        episode = await forge_env.run_episode(
            factory,
            ScriptedAgent(script),
            task,
            seed=0,
            episode_id="example",
            limits=forge_env.EpisodeLimits(max_turns=20),
        )
        for message in episode.messages:
            print(f"[{message['role']}] {message['content']}")
        print("reward", episode.reward, "after", len(episode.turns), "moves")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    asyncio.run(main())
