"""One session of an OpenEnv client: what its requests do with an episode.

A step is an assistant message, `{"content": ..., "tool_calls": [...]}`, or one of OpenEnv's own actions, "call_tool"
and "list_tools". What a step returns is the "data" of OpenEnv's frame: observation, reward, done and metadata.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from agents.renderer.dialects import from_openai, to_openai
from contrib.serve.client_episode import ClientEpisode, EpisodeFault, EpisodeOver, Shown
from contrib.serve.desk import Desk
from contrib.serve.tool_face import action_of, text_of, tool_list
from forge_env.core.errors import UserError
from forge_env.core.types import Action, ToolSpec


class Refused(Exception):
    """A request that changes nothing."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class OpenEnvSession:
    def __init__(self, desk: Desk) -> None:
        self.id = secrets.token_hex(16)
        self.last_use = time.monotonic()
        self.has_socket = False
        self._desk = desk
        self._episode: ClientEpisode | None = None
        self._facts: dict[str, Any] = {}
        """Of the task, for the client."""
        self._tools: Sequence[ToolSpec] = ()
        """As the client knows them."""

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools of the episode; before it, the common ones."""
        return self._desk.tools if self._episode is None else self._tools

    async def reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Begin an episode."""
        try:
            choice = await self._desk.choose(data)
        except UserError as error:
            raise Refused("VALIDATION_ERROR", str(error)) from None
        await self.end("the client began another episode")
        self._episode = self._desk.begin(choice)
        self._facts = {"task": choice.task.id, "split": choice.split, "index": choice.index, "seed": choice.seed}
        self._tools = ()
        step = await self._episode.begin()
        return self._data(step, {"messages": list(step.messages)}, reward=None)

    async def step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        kind = data.get("type")
        if kind == "list_tools":
            return {"observation": {"tools": tool_list(self.tools)}, "reward": None, "done": False}
        if kind == "call_tool":
            return await self.call(data.get("tool_name"), data.get("arguments") or {})
        step = await self._answer(read_action(data))
        return self._data(step, {"messages": list(step.messages)}, reward=step.reward)

    async def call(self, name: Any, arguments: Any) -> dict[str, Any]:
        """Take the call of one tool as the action."""
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            raise Refused("VALIDATION_ERROR", "a call has tool_name, a text, and arguments, an object")
        try:
            action = action_of(name, arguments, self.tools)
        except ValueError as error:
            raise Refused("VALIDATION_ERROR", str(error)) from None
        step = await self._answer(action)
        text = text_of(step.messages) or ("The episode is over." if step.episode else "")
        content = [{"type": "text", "text": text}]
        result = {"content": content, "data": text, "is_error": step.is_error}
        return self._data(step, {"tool_name": name, "result": result, "error": None}, reward=step.reward)

    def state(self) -> dict[str, Any]:
        episode = self._episode
        steps = 0 if episode is None else episode.steps
        return {"episode_id": None if episode is None else episode.id, "step_count": steps, **self._facts}

    async def end(self, why: str) -> None:
        """End the episode as a fault, unless it is over."""
        if self._episode is not None:
            await self._episode.end(why)

    async def _answer(self, action: Action) -> Shown:
        if self._episode is None:
            raise Refused("EXECUTION_ERROR", "there is no episode yet: reset begins one")
        try:
            return await self._episode.answer(action)
        except EpisodeOver as over:
            raise Refused("EXECUTION_ERROR", f"{over}: reset begins another one") from None

    def _data(self, step: Shown, observation: dict[str, Any], *, reward: float | None) -> dict[str, Any]:
        tools = list(step.tools)
        if tools != self._tools:
            self._tools = observation["tool_specs"] = tools
        record = step.episode
        if record is None:
            metadata = dict(self._facts) if reward is None else {}
        else:
            reward = step.reward
            metadata = {
                "episode": record.id,
                "outcome": str(record.outcome),
                "success": record.success,
                "ended_by": record.ended_by,
                "rewards": dict(record.rewards),
                "reward": record.reward,
            }
        if metadata:
            observation["metadata"] = metadata
        return {"observation": observation, "reward": reward, "done": record is not None, "metadata": metadata}


def fault_code(fault: EpisodeFault) -> str:
    """Return OpenEnv's code of a fault: the environment has raised, or the server is at fault."""
    return "EXECUTION_ERROR" if fault.is_env else "SESSION_ERROR"


def read_action(data: Mapping[str, Any]) -> Action:
    content, calls = data.get("content"), data.get("tool_calls") or []
    unknown = sorted(data.keys() - {"content", "tool_calls", "metadata", "type"})
    if unknown:
        raise Refused("VALIDATION_ERROR", f"an action has content and tool_calls, and not {', '.join(unknown)[:80]}")
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise Refused("VALIDATION_ERROR", "tool_calls is a list of calls in OpenAI's form")
    if content is None and calls:
        content = ""
    if isinstance(content, (int, float)):  # of clients that read every text as JSON first
        content = json.dumps(content)
    if not isinstance(content, str):
        raise Refused("VALIDATION_ERROR", f"content is {content!r:.40}; it is the text of the message")
    if not calls:
        return Action(message={"role": "assistant", "content": content})
    tool_calls = from_openai({"tool_calls": calls})
    openai_calls = to_openai(tool_calls)
    return Action(message={"role": "assistant", "content": content, "tool_calls": openai_calls}, tool_calls=tool_calls)
