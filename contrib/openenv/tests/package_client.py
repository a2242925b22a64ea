"""Plays planned episodes with OpenEnv's own client, in whose interpreter it runs; JSON plans come on standard input."""

import json
import sys

from openenv.core.generic_client import GenericEnvClient


def play(url: str, plan: str) -> list:
    """Return the rewards of the reset and of the steps, up to the one that ends the episode."""
    with GenericEnvClient(base_url=url).sync() as client:
        result = client.reset(plan=plan)
        rewards = [result.reward]
        while not result.done:
            result = client.step({"message": "x"})
            rewards.append(result.reward)
    return rewards


print(json.dumps([play(sys.argv[1], plan) for plan in json.load(sys.stdin)]))
