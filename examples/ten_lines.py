"""The smallest environment: one tool, one reward, tasks. Everything between the two marks is what you write."""

import argparse
import asyncio

import forge_env
from agents.scripted import ScriptedAgent
from forge_env import Task, ToolEnv, reward, tool

# ---- the environment ----


class Doubling(ToolEnv):
    @classmethod
    def tasks(cls, split="train", *, count, seed=0):
        start = 2 * seed + 1000 * (split == "test")
        return [
            Task(prompt=({"role": "user", "content": f"Double {n}."},), target=2 * n)
            for n in range(start, start + count)
        ]

    @tool
    def double(self, number: int) -> int:
        """Double a number."""
        return 2 * number

    @reward
    def correct(self, answer: str) -> float:
        return float(answer == str(self.task.target))


# ---- an agent that plays it ----


def script(messages):
    """Call the tool, then say what it gave back."""
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": messages[-1]["content"]}
    number = int(messages[-1]["content"].removeprefix("Double ").removesuffix("."))
    call = {"name": "double", "arguments": {"number": number}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}


async def main() -> None:
    async with forge_env.EnvFactory(Doubling) as factory:
        for task in factory.tasks("train", count=3):
            episode = await forge_env.run_episode(
                factory, ScriptedAgent(script), task, seed=0, episode_id=task.id, limits=forge_env.EpisodeLimits()
            )
            print(episode.messages[0]["content"], "->", episode.messages[-1]["content"], "reward", episode.reward)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    asyncio.run(main())
