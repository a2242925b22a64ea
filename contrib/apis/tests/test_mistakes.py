"""Where failed episodes leave the expert's path: the turn, the call, and its arguments that differ."""

from __future__ import annotations

import copy
from collections.abc import Callable

from agents.scripted import ScriptedAgent
from benchmarks.gpu.mistakes import mistakes
from contrib.apis.shop.expert import expert
from envs.messages import call
from forge_env.core.types import EpisodeLimits, Message
from forge_env.registry.registry import env_class
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import GroupSpec, run_group


def number_of_calls(messages: list[Message]) -> int:
    return sum(message["role"] == "tool" for message in messages)


def of_another_product(messages: list[Message]) -> Message:
    """Plays the expert, but for the article number of the order."""
    answer = copy.deepcopy(expert(messages))
    for called in answer.get("tool_calls") or ():
        if "items" in called["function"]["arguments"]:
            called["function"]["arguments"]["items"][0]["sku"] = "X000"
    return answer


def of_another_tool(messages: list[Message]) -> Message:
    return call("get_shop") if number_of_calls(messages) == 1 else expert(messages)


def too_early(messages: list[Message]) -> Message:
    return {"role": "assistant", "content": "Done."}


async def test_a_failed_episode_counts_at_its_first_turn_that_the_expert_does_otherwise() -> None:
    cases: list[tuple[Callable[[list[Message]], Message], dict[str, dict[str, int]]]] = [
        (expert, {}),
        (of_another_product, {"buy": {"turn 3, create_order: items": 1}}),
        (of_another_tool, {"buy": {"turn 2, search_products": 1}}),
        (too_early, {"buy": {"turn 1, find_customer": 1}}),
    ]
    async with EnvFactory(env_class("tool_api"), name="tool_api", level=2) as factory:
        task = next(task for task in factory.tasks("train", count=20) if task.kind == "buy")
        for script, counts in cases:
            spec = GroupSpec(task=task, count=1, seed=0, group_id="one")
            group = await run_group(factory, ScriptedAgent(script), spec, limits=EpisodeLimits(max_turns=6))
            assert mistakes("tool_api", list(group.episodes)) == counts
