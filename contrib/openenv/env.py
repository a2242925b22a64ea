"""openenv:URL_OR_IMAGE: environments that speak the OpenEnv protocol, as they are.

    make("openenv:http://127.0.0.1:8000")
    make("openenv:echo-env:latest")

An episode is a session of its own at the server. Its observations are messages; an action is a call of one of its MCP
tools, a call of one tool with the schema of its actions, or plain text. Reward and end come with each observation.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from contrib.common.adapters import json_object, refuse_calls
from contrib.openenv.container import is_image
from contrib.openenv.description import HttpApi, base_url, headers_of
from contrib.openenv.messages import action_data, info_of, messages_of, success_of, tools_of
from contrib.openenv.observations import call_text, observation_text
from contrib.openenv.server import Opened, Server, target_of
from contrib.openenv.session import BadAction, Observed
from contrib.openenv.tasks import SOURCES, seed_tasks, server_tasks
from envs.task_splits import check_split
from forge_env.core.env import Env, StepResult, after_reset
from forge_env.core.errors import EnvError, UserError
from forge_env.core.reward_value import reaches, reward_value
from forge_env.core.tools import Tool
from forge_env.core.types import Action, Message, Task, ToolFailure
from forge_env.tool_env.tool_env import Toolbox


class OpenEnv(Env):
    """Base of the classes of `resolve`: one session at a server an episode."""

    made_of: ClassVar[Sequence[str]] = ("contrib.openenv",)
    source: ClassVar[str]
    """The URL of a server, or the name of an image."""

    server: Server

    def __init__(self, *, reset: str = "", success_reward: float = 1.0, null_reward: str = "fault") -> None:
        """Make an instance.

        Args:
            reset: further parameters of the environment's reset, a JSON object.
            success_reward: the least reward of a success.
            null_reward: what an episode is that ends with the reward null, as which servers send NaN too: "fault" or
                "zero".
        """
        if null_reward not in ("fault", "zero"):
            raise UserError(f"the option null_reward is {null_reward!r}; it is fault or zero")
        self._null_reward = null_reward
        self._reset_parameters = json_object(reset, "reset", '{"level": 2}')
        self._success_reward = success_reward
        self._connection: Opened | None = None
        self._verdict: bool | None = None

    @classmethod
    def tasks(
        cls, split: str = "train", *, count: int, seed: int = 0, tasks: str = "auto", token_env: str = ""
    ) -> Sequence[Task]:
        """Return `count` tasks: of the server's own list, or seeds.

        Args:
            split: "train" or "test".
            count: how many.
            seed: which ones, and in which order.
            tasks: "server" for the tasks that the server lists, "seeds" for a seed each, "auto" for the server's if it
                lists any.
            token_env: the environment variable with the token that the server asks for, if it does.
        """
        check_split(split)
        if tasks not in SOURCES:
            raise UserError(f"the option tasks is {tasks!r}; it is {', '.join(SOURCES[:-1])} or {SOURCES[-1]}")
        if is_image(cls.source):
            if tasks == "server":
                raise UserError("the tasks of an image are seeds: start it, and name its URL, for those that it lists")
            return seed_tasks(cls.source, split, count=count, seed=seed)
        with HttpApi(base_url(cls.source), headers_of(token_env)) as api:
            name = api.describe().name
            splits = api.splits() if tasks != "seeds" else []
            if splits:
                return server_tasks(api, splits, split, count=count, seed=seed)
        if tasks == "server":
            raise UserError(
                f"the server at {cls.source} lists no tasks: leave the option tasks out, and they are seeds"
            )
        return seed_tasks(name, split, count=count, seed=seed)

    @classmethod
    def effects(cls) -> str:
        """Say that an episode calls the server."""
        return f"calls openenv:{cls.source}"

    def success(self, reward: float) -> bool:
        return reaches(reward, self._success_reward) if self._verdict is None else self._verdict

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        await self.close()
        self.seed(seed)
        self._verdict = None
        task: Task | None = (options or {}).get("task")
        metadata = task.metadata if task is not None else {}
        start = metadata.get("seed", seed)
        parameters = {name: metadata[name] for name in ("split", "index") if name in metadata}
        parameters |= {**self._reset_parameters, **({} if start is None else {"seed": start})}
        connection = self._connection = await self.server.open(parameters)
        self._is_over = connection.first.done
        self._reset_reward = self._reward(connection.first)
        if self._is_over:
            raise EnvError(f"the episode at {connection.url} was over at its reset")
        description = connection.description
        info = {"openenv": {"url": connection.url, "name": description.name, "version": description.version}}
        if connection.actions.are_messages:
            self.tools = tools_of(connection.first, ())
            return messages_of(connection.first, connection.url), info | info_of(connection.first)
        self._toolbox = Toolbox(
            {name: self._stepping(tool, connection) for name, tool in connection.actions.tools.items()}
        )
        self.tools = self._toolbox.specs
        return _with_task(task, observation_text(connection.first.observation)), info

    async def step(self, action: Action) -> StepResult:
        """Take an action. The first step adds the reward of the reset to its own."""
        after_reset(self, None if self._is_over else self._connection)
        messages, reward, terminated, truncated, info = await self._take(action)
        reward, self._reset_reward = reward + self._reset_reward, 0.0
        return messages, reward, terminated, truncated, info

    async def _take(self, action: Action) -> StepResult:
        assert self._connection is not None
        if self._connection.actions.are_messages:
            return await self._send(action)
        if field := self._connection.actions.text_field:
            return await self._write(field, action)
        if not action.tool_calls:  # the model has said its last word
            self._is_over = True
            return (), 0.0, True, False, {}
        self._reward_of_calls, self._info = 0.0, dict[str, Any]()
        messages, uses = await self._toolbox.answer(action.tool_calls)
        return messages, self._reward_of_calls, self._is_over, False, {**self._info, "tools": uses}

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self.server.release(connection.session)

    async def _observe(self, action: Mapping[str, Any]) -> Observed:
        assert self._connection is not None
        result = await self._connection.session.step(action)
        self._is_over = result.done
        return result

    async def _send(self, action: Action) -> StepResult:
        assert self._connection is not None
        try:
            result = await self._observe(action_data(action))
        except BadAction as refused:
            raise EnvError(f"the server at {self.source} refused a message: {refused}") from None
        self.tools = tools_of(result, self.tools)
        self._verdict = success_of(result)
        messages = messages_of(result, self._connection.url)
        return messages, self._reward(result), result.done, False, info_of(result)

    async def _write(self, field: str, action: Action) -> StepResult:
        if action.tool_calls:
            return refuse_calls(action.tool_calls, "action"), 0.0, False, False, {}
        try:
            result = await self._observe({field: action.text})
        except BadAction as refused:
            return (Message(role="user", content=f"Error: {refused}"),), 0.0, False, False, {}
        message = Message(role="user", content=observation_text(result.observation))
        return (message,), self._reward(result), result.done, False, _info(result)

    def _stepping(self, tool: Tool, connection: Opened) -> Tool:
        """Return a tool that takes its action as a step of this episode."""

        async def step(**arguments: Any) -> str:
            if self._is_over:
                return ToolFailure("Error: the episode is over.", kind="episode_over")
            try:
                result = await self._observe(tool.function(**arguments))
            except BadAction as refused:
                return ToolFailure(f"Error: {refused}", kind="bad_arguments")
            self._reward_of_calls += self._reward(result)
            self._info |= _info(result)
            return (
                call_text(result.observation, connection.url)
                if connection.actions.are_of_mcp
                else observation_text(result.observation)
            )

        return replace(tool, function=step)

    def _reward(self, result: Observed) -> float:
        if result.reward is None and result.done and self._null_reward == "fault":
            raise EnvError(
                f"the environment at {self.source} ended the episode with the reward null, as which a server sends NaN "
                "too: mend it, or set the option null_reward to zero if null is its zero"
            )
        reward = 0.0 if result.reward is None else result.reward
        return reward_value(reward, f"the environment at {self.source} gave the reward")


def _info(result: Observed) -> dict[str, Any]:
    return {"openenv_metadata": dict(result.metadata)} if result.metadata else {}


def _with_task(task: Task | None, text: str) -> tuple[Message, ...]:
    """Return the prompt of a task with the first observation in its last message."""
    prompt = tuple(task.prompt) if task is not None else ()
    if prompt and prompt[-1]["role"] == "user":
        text = f"{prompt[-1]['content']}\n\n{text}".strip()
        prompt = prompt[:-1]
    return (*prompt, Message(role="user", content=text))


@functools.cache
def resolve(rest: str) -> type[OpenEnv]:
    """Return the environment of "openenv:REST"; REST is the URL of a server, or the name of a docker image."""
    if not is_image(rest):
        base_url(rest)
    words = [word.capitalize() for word in re.split(r"[^A-Za-z0-9]+", rest) if word]
    attributes = {
        "source": rest,
        "shared": {"server": target_of(rest)},
        "__doc__": f"The OpenEnv environment {rest}.",
        "__module__": __name__,
    }
    return type("OpenEnv" + "".join(words), (OpenEnv,), attributes)
