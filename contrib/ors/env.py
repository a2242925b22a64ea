"""ors:URL: an environment of a server of the Open Reward Standard; each tool of it is a tool here.

An episode is a session of the server. Its reward is the sum of the rewards in its tools' outputs, and it ends with the
output that says so.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from contrib.apis.http.credentials import secret_from_env
from contrib.common.json_text import is_set
from contrib.ors.access import API_KEY_ENV, access_of, checked_url
from contrib.ors.content import messages_of, text_of
from contrib.ors.discovery import Discovery
from contrib.ors.session import Session
from forge_env.core.env import Env, StepResult, after_reset
from forge_env.core.errors import EnvError, ServiceError, UserError
from forge_env.core.reward_value import reward_value
from forge_env.core.tools import Tool, ToolOptions
from forge_env.core.types import Action, Message, Task, ToolFailure
from forge_env.tool_env.tool_env import Toolbox

START_SECONDS = 300.0
CALL_SECONDS = 120.0
MAX_OUTPUT = 32_768
"""Characters of the output of a tool that the model reads."""
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


class Ors(Env):
    """Base of the classes of `resolve`.

    A turn without a call of a tool goes to the environment's terminal tool if it has one; otherwise it ends the
    episode, which keeps what it has earned.
    """

    url: ClassVar[str]

    def __init__(
        self,
        *,
        api_key_env: str = API_KEY_ENV,
        secrets: Sequence[str] = (),
        start_seconds: float = START_SECONDS,
        call_seconds: float = CALL_SECONDS,
        ping_seconds: float = 10.0,
        null_reward: str = "fault",
        group_scores: str = "refuse",
    ) -> None:
        """Make an instance.

        Args:
            api_key_env: the environment variable with the API key; the default may be unset.
            secrets: names of environment variables; the environment gets their values under the same names.
            start_seconds: how long the environment may set itself up.
            call_seconds: time limit of one call of a tool.
            ping_seconds: pause between two pings, which keep the session alive.
            null_reward: what an episode is that finishes with an output without a reward, as which servers send NaN
                too: "fault" or "zero".
            group_scores: "ignore" to play an environment that also compares the episodes of a group, without that.
        """
        if null_reward not in ("fault", "zero"):
            raise UserError(f"the option null_reward is {null_reward!r}; it is fault or zero")
        self._null_reward, self._group_scores = null_reward, group_scores
        for name, value in (("start", start_seconds), ("call", call_seconds), ("ping", ping_seconds)):
            if not 0 < value <= 86_400:
                raise UserError(f"{name}_seconds is {value!r}; it is a number of seconds above 0, up to a day")
        self._access = access_of(self.url, api_key_env=api_key_env, secrets=secrets)
        self._secrets = {name: secret_from_env(name) for name in secrets}
        self._seconds = {"start_seconds": start_seconds, "call_seconds": call_seconds, "ping_seconds": ping_seconds}
        self._session: Session | None = None
        self._terminal: Mapping[str, Any] | None = None
        self._toolbox = Toolbox({})
        self._reward_of_calls, self._is_finished = 0.0, False
        self._metadata: list[Any] = []

    @classmethod
    def tasks(
        cls,
        split: str = "train",
        *,
        count: int,
        seed: int = 0,
        environment: str = "",
        api_key_env: str = API_KEY_ENV,
        secrets: Sequence[str] = (),
        group_scores: str = "refuse",
    ) -> Sequence[Task]:
        """Return `count` tasks of the split of that name, or else of the first split of that type.

        Args:
            split: a name, or a type: train, validation or test.
            count: how many.
            seed: which ones, and in which order.
            environment: its name, for a server that has more than one.
            api_key_env: as in the constructor.
            secrets: as in the constructor.
            group_scores: as in the constructor.
        """
        with Discovery(access_of(cls.url, api_key_env=api_key_env, secrets=secrets)) as server:
            name = server.environment(environment)
            cls._check_groups(server.tools(name), name, group_scores)
            its_split = server.split(name, split)
            pairs = server.draw(name, its_split, count=count, seed=seed)
        return [cls._task(name, its_split, index, task_spec) for index, task_spec in pairs]

    @classmethod
    def _check_groups(cls, answer: Any, name: str, group_scores: str) -> None:
        """Refuse an environment that also scores the episodes of a group together, beside the rewards of its tools."""
        if group_scores not in ("refuse", "ignore"):
            raise UserError(f"the option group_scores is {group_scores!r}; it is refuse or ignore")
        if group_scores == "refuse" and isinstance(answer, Mapping) and is_set(answer.get("supports_score_group")):
            raise UserError(
                f"the environment {name} of {cls.url} also scores the episodes of a group by comparing them "
                "(supports_score_group), which is not done here: --option group_scores=ignore plays it by the rewards "
                "of its tools alone"
            )

    @classmethod
    def limits(cls, *, start_seconds: float = START_SECONDS, call_seconds: float = CALL_SECONDS) -> Mapping[str, float]:
        """The time of the start and of a call; 50 turns, as the standard sets no limit."""
        return {"max_turns": 50, "step_seconds": max(start_seconds, call_seconds) + 30.0, "episode_seconds": 3600.0}

    @classmethod
    def effects(cls) -> str:
        return f"calls {cls.url}"

    @classmethod
    def _task(cls, environment: str, split: str, index: int, task_spec: dict[str, Any]) -> Task:
        prompt: Message = {"role": "user", "content": f"{environment}, {split} task {index}."}
        metadata = {"environment": environment, "split": split, "index": index, "task_spec": task_spec}
        return Task(prompt=(prompt,), metadata=metadata)

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.seed(seed)
        await self.close()
        task: Task | None = (options or {}).get("task")
        if task is None or "task_spec" not in task.metadata:
            raise EnvError(f"{type(self).__name__}.reset needs options={{'task': ...}} with a task of its own")
        name = task.metadata["environment"]
        self._reward_of_calls, self._is_finished, self._metadata = 0.0, False, []
        session = self._session = Session(self._access, name, **self._seconds)
        await session.open(task.metadata["task_spec"], self._secrets)
        answer = await session.optional(f"/{name}/task_tools")  # with this task's own
        if answer is None:
            answer = await session.request("GET", f"/{name}/tools")
        self._check_groups(answer, name, self._group_scores)
        self._read_tools(answer)
        messages = await self._prompt(session, name, answer)
        version = await session.optional("/version")
        facts = {"environment": name, "split": task.metadata["split"], "index": task.metadata["index"]}
        facts |= {"server_version": version.get("version", "")} if isinstance(version, dict) else {}
        return tuple(messages), {"ors": facts}

    async def step(self, action: Action) -> StepResult:
        after_reset(self, self._session)
        self._reward_of_calls = 0.0
        if action.tool_calls:
            answers, uses = await self._toolbox.answer(action.tool_calls)
            return answers, self._reward_of_calls, self._is_finished, False, {"tools": uses, **self._facts()}
        if self._terminal is None:
            return (), 0.0, True, False, self._facts(ended_by_text=True)
        argument = self._terminal.get("arg")
        text = await self.call(self._terminal["name"], {argument: action.text} if argument else {})
        return (Message(role="user", content=text),), self._reward_of_calls, self._is_finished, False, self._facts()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _facts(self, **facts: Any) -> dict[str, Any]:
        facts |= {"metadata": list(self._metadata)} if self._metadata else {}
        return {"ors_result": facts} if facts else {}

    def _read_tools(self, answer: Any) -> None:
        try:
            tools = {spec["name"]: self._tool(spec) for spec in answer["tools"]}
            terminal = answer.get("terminal_tool")
            self._terminal = {"name": terminal["name"], "arg": terminal.get("arg")} if terminal else None
        except (TypeError, KeyError, AttributeError):
            raise ServiceError(f"{self.url} lists its tools as {str(answer)[:100]!r}") from None
        self._toolbox = Toolbox(tools)
        self.tools = self._toolbox.specs

    def _tool(self, spec: Mapping[str, Any]) -> Tool:
        # Its limit is longer than a call may take, so that a slow server is a fault and not a result.
        options = ToolOptions(timeout=2 * self._seconds["call_seconds"] + 60, max_output=MAX_OUTPUT)
        name = str(spec["name"])

        async def run(**arguments: Any) -> str:
            return await self.call(name, arguments)

        return Tool(
            name=name,
            description=str(spec.get("description") or name),
            parameters=dict(spec.get("input_schema") or _NO_ARGUMENTS),
            arguments=lambda arguments: arguments,  # the server checks them
            function=run,
            options=options,
        )

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool; return the text for the model, and keep the reward and whether the episode has finished."""
        assert self._session is not None
        if self._is_finished:
            return ToolFailure(f"Error: {tool} was not run: the episode has finished.", kind="episode_finished")
        try:
            json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
        except ValueError as error:  # a lone surrogate, which a server of this SDK takes for the end of its stream
            return ToolFailure(f"Error: the arguments are no JSON in UTF-8: {error}", kind="bad_arguments")
        result = await self._session.call(tool, arguments)
        if result.output is None:
            return ToolFailure(f"Error: {result.error}", kind=result.kind)
        where = f"the output of {tool} at {self.url}"
        text = text_of(result.output.get("blocks"), where)
        reward = result.output.get("reward")
        self._is_finished = is_set(result.output.get("finished"))
        if reward is None and self._is_finished and self._null_reward == "fault":
            raise EnvError(
                f"{where} finished the episode with the reward null, as which a server sends NaN too: mend it, or set "
                "the option null_reward to zero if null is its zero"
            )
        self._reward_of_calls += 0.0 if reward is None else reward_value(reward, f"{where} holds the reward")
        if result.output.get("metadata"):
            self._metadata.append(result.output["metadata"])
        return text

    async def _prompt(self, session: Session, name: str, answer: Mapping[str, Any]) -> list[Message]:
        """Return the first messages: a conversation where the server has them, else the blocks of the prompt."""
        where = f"the prompt of {name} at {self.url}"
        if answer.get("message_block_types"):
            conversation = await session.optional(f"/{name}/messages")
            if conversation is not None:
                return messages_of(conversation, where)
        blocks = await session.request("GET", f"/{name}/prompt")
        return [{"role": "user", "content": text_of(blocks, where)}]


@functools.cache
def resolve(rest: str) -> type[Env]:
    """Return the environment of "ors:REST"; REST is the address of a server, which is asked when tasks are drawn."""
    url = checked_url(rest)
    attributes = {"url": url, "__doc__": f"An environment of the ORS server {url}.", "__module__": __name__}
    return type(f"Ors{re.sub(r'[^A-Za-z0-9]', '', url)}", (Ors,), attributes)
