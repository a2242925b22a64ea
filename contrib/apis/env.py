"""tool_api: tools over real APIs. By default the tools of a small shop; the shop's final state is the score.

    make("tool_api", level=2)                                        the shop
    make("tool_api", tools=["add"])                                  a registered function: calls of it are the tasks
    make("tool_api", tools=["openapi:https://api.example.com/openapi.json"], data="tasks.jsonl")
    make("tool_api", tools=["mcp:python -m my_server", "file.py:fn"], data="tasks.jsonl", reward="file.py:grade")

The options are the arguments of `contrib.apis.services.open_services`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from contrib.apis.answers import same_answer
from contrib.apis.call_tasks import call_expert, call_in_question, call_tasks
from contrib.apis.services import Services
from contrib.apis.shop.expert import expert as shop_expert
from contrib.apis.shop.tasks import score as shop_score
from contrib.apis.shop.tasks import shop_of
from contrib.apis.tasks import SHOP, checked_sources, file_tasks, functions_of, source_target, tasks_of_operations
from forge_env.core.env import StepResult, after_reset
from forge_env.core.errors import EnvError, UserError
from forge_env.core.tools import Tool, reward
from forge_env.core.types import Action, Message, Task
from forge_env.tool_env.rubric import score
from forge_env.tool_env.tool_env import ToolEnv


class ToolApi(ToolEnv):
    """Do with the tools what is asked for.

    Reward 1 when the shop ends up as it should, or, without the shop, when the final answer is the right one.
    """

    shared: ClassVar = {"services": "contrib.apis.services:open_services"}
    system_prompt: ClassVar[str] = "Use the tools. Answer with the result alone."

    services: Services

    def __init__(self, *, use_tools: bool = True, extra_tools: Iterable[Tool] = ()) -> None:
        if not hasattr(self, "services"):
            raise EnvError("ToolApi is made by its factory, which opens its tools: forge_env.make('tool_api')")
        self._extra_tools = {tool.name: tool for tool in extra_tools}
        self._token = ""
        super().__init__(use_tools=use_tools, extra_tools={**self.services.tools(), **self._extra_tools}.values())

    @classmethod
    def tasks(
        cls,
        split: str = "train",
        *,
        count: int,
        seed: int = 0,
        tools: Sequence[str] = (SHOP,),
        level: int = 1,
        operations: Sequence[str] = (),
        data: str = "",
    ) -> Sequence[Task]:
        """Return tasks of the shop, tasks of a file, or calls of the user's functions; making these calls them.

        Args:
            split: "train" or "test"; of `data` also "all".
            count: how many.
            seed: which ones, and in which order.
            tools: what the tasks are about.
            level: 1 to 3. Of the shop: one change, changes that need look-ups, changes that compare what was looked up.
            operations: of the shop; only tasks that can be solved with them are drawn.
            data: a file of tasks.
        """
        sources = checked_sources(tools, data=data)
        if data:
            return file_tasks(data, split, count=count, seed=seed)
        if SHOP in sources:
            return tasks_of_operations(split, count=count, seed=seed, level=level, operations=operations)
        return call_tasks(functions_of(sources), split, count=count, seed=seed, level=level)

    @classmethod
    def limits(cls, *, level: int = 1) -> Mapping[str, float]:
        """A task of level 2 takes up to five turns, one of level 3 up to six."""
        return {"max_turns": 8} if level > 1 else {}

    @classmethod
    def effects(cls, *, tools: Sequence[str] = (SHOP,), cassette_mode: str = "auto") -> str:
        """Say which services an episode calls; a cassette that is only replayed calls none."""
        kinds = ("mcp:",) if cassette_mode == "replay" else ("mcp:", "openapi:")
        services = [source for source in map(source_target, map(str.strip, tools)) if source.startswith(kinds)]
        return f"calls {', '.join(services)}" if services else ""

    @classmethod
    def can_demonstrate(cls, task: Task) -> bool:
        return "source" not in task.metadata  # which tasks of data have

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        """Solve a task of the shop, or make the call that is asked for, by the conversation alone."""
        question = next(m["content"] for m in messages if m["role"] == "user")
        call = call_in_question(question)
        if call is not None:
            return call_expert(messages, *call)
        try:
            return shop_expert(messages)
        except ValueError:
            raise UserError(f"tool_api has no expert for the tasks of a file: {question[:80]!r}") from None

    @classmethod
    def cheats(cls, task: Task) -> Sequence[str]:
        """Return final answers that must earn nothing when no tool was called."""
        question = "\n".join(message["content"] for message in task.prompt)
        cheats = ["", " \n", "Done.", "None", "null", "target", "state: 1.0", question, "OK (200 OK, no content)"]
        if "shop" in task.metadata:
            texts = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in task.target]
            return [
                *cheats,
                "Nothing had to be changed.",
                *texts,
                *(f"<tool_call>{text}</tool_call>" for text in texts),
            ]
        arguments = task.metadata.get("arguments", {})
        cheats += [json.dumps(arguments), *(str(value) for value in arguments.values())]
        cheats += [f"{task.target} or {task.target}", f"<think>{task.target}</think>", f"<think>{task.target}"]
        return [cheat for cheat in cheats if not same_answer(cheat, task.target)]

    async def setup(self) -> None:
        self._end_session()
        shop = self.services.shop
        if shop is not None:
            self._token = shop.open(self.task)
            self.set_tools({**self.services.tools(self._token), **self._extra_tools})

    async def step(self, action: Action) -> StepResult:
        if self.services.shop is not None:
            after_reset(self, self._token or None)
        return await super().step(action)

    async def close(self) -> None:
        self._end_session()

    @reward
    def state(self) -> float:
        """1 when all of the shop is as it should be at the end.

        If nothing was to be changed, a tool must have shown the order in question: an agent that never looked at it
        earns nothing.
        """
        shop = self.services.shop
        assert shop is not None
        if not self.task.target:
            start = shop_of(self.task)
            mine = [order for order in start.orders if order[1] == start.customers[0][0]]
            latest = max(mine, key=lambda order: order[3])[0]
            results = [
                m["content"] for m in self.messages if m["role"] == "tool" and not m["content"].startswith("Error")
            ]
            if not any(f'"order_id":{latest},' in text for text in results):
                return 0.0
        return shop_score(shop.server.state(self._token), self.task)

    @reward
    def answer(self, answer: str) -> float:
        """1 when the final answer is the target; see `contrib.apis.answers.same_answer`."""
        return float(same_answer(answer, self.task.target))

    async def _all_scores(self, response: str) -> tuple[float, dict[str, float]]:
        """Score by the state of the shop, else by the user's reward, else by the answer."""
        off = {"answer"} if self.services.shop is not None else {"state"}
        off |= {"answer"} if self.services.rewards else set()
        parts_of_env = [part for part in self._rewards if part.name not in off]
        total, parts = await score(parts_of_env, self.task, self.messages, response, owner=self)
        further = (*self._rubric, *self.services.rewards)
        others, parts_of_others = await score(further, self.task, self.messages, response)
        return total + others, {**parts, **parts_of_others}

    def _end_session(self) -> None:
        token, self._token = self._token, ""
        if token and self.services.shop is not None:
            self.services.shop.server.close(token)
