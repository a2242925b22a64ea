"""Plays the environment "planned" of a server with the client of the SDK that is installed: `python FILE URL`.

Prints the rewards of each task's outputs.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def environment_at(url: str) -> Any:
    """The environment, and the client, which closes with its last reference."""
    try:
        from openreward import OpenReward
    except ImportError:
        from ors.client import ORS

        client = ORS(base_url=url)
        return client.environments.get("planned"), client
    client = OpenReward(api_key="none")
    return client.environments.get("planned", base_url=url), client


def play(environment: Any, task: Any) -> list[Any]:
    rewards, is_finished = [], False
    with environment.session(task=task) as session:
        while not is_finished:
            output = session.call_tool("pull", {})
            rewards.append(output.reward)
            is_finished = output.finished
    return rewards


if __name__ == "__main__":
    environment, client = environment_at(sys.argv[1])
    print(json.dumps([play(environment, task) for task in environment.list_tasks("train")]))
