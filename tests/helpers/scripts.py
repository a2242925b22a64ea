"""Scripted agents whose turns a test writes down, one after another."""

from __future__ import annotations

from typing import Any

import forge_env
from agents.scripted import ScriptedAgent
from forge_env.core.types import Message, Task


def says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def calls(*called: tuple[str, dict[str, Any]]) -> Message:
    """A turn that calls tools, by name and arguments."""
    functions = [{"name": name, "arguments": arguments} for name, arguments in called]
    return {**says(""), "tool_calls": [{"type": "function", "function": function} for function in functions]}


def in_order(*turns: Message) -> ScriptedAgent:
    """An agent that takes these turns, then answers "" until the episode ends."""

    async def script(messages: list[Message]) -> Message:
        turn = sum(message["role"] == "assistant" for message in messages)
        return turns[turn] if turn < len(turns) else says("")

    return ScriptedAgent(script)


async def play(factory: forge_env.EnvFactory, task: Task, *turns: Message) -> forge_env.Episode:
    """Play turns in a task, one after another; without any, those of its expert."""
    agent = in_order(*turns) if turns else ScriptedAgent(factory.env_class.expert)  # type: ignore[attr-defined]
    limits = factory.episode_limits()
    return await forge_env.run_episode(factory, agent, task, seed=0, episode_id="episode", limits=limits)


def tool_results(episode: forge_env.Episode) -> list[str]:
    return [message["content"] for message in episode.messages if message["role"] == "tool"]
