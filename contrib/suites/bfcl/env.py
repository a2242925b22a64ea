"""bfcl: function calls in one turn, graded by the suite's AST checker, and conversations with executable back ends.

A turn of a user ends with a message without calls, or with calls that cannot be read; the suite then sends the next one
of its user's messages. The calls of all turns are graded by its own checker, which compares the states of the back ends
and the results with its own solution.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from contrib.common.drawn_solutions import Script, expert_of
from contrib.suites.bfcl import library
from contrib.suites.bfcl.golds import Call, single_turn_calls, tool_name, turn_calls
from contrib.suites.catalogue import Installed, SuiteProcess, installed, process_of
from contrib.suites.selection import select, tool_calls
from envs.messages import say
from forge_env.core.env import Env, StepResult, after_reset, task_of
from forge_env.core.errors import UserError, nearest
from forge_env.core.types import Action, Message, Task, ToolUse
from forge_env.tool_env.tool_env import answer_to

MAX_STEPS = 20
"""Steps of one user turn that the suite allows, `MAXIMUM_STEP_LIMIT`; one more ends the conversation without marks."""
MAX_USER_TURNS = 8
MAX_TURN_TOKENS = 4096
"""Sampled tokens of one answer, with the suite's limit for local models."""
CONTEXT_TOKENS = {"single_turn": 16_384, "multi_turn": 65_536, "long_context": 131_072}

SKIPPED = {
    "web_search": "needs the network: a live search engine and pages",
    "memory_vector": "needs the network: an embedding model from the hub",
    "memory": "needs earlier conversations in which the same model writes the memory; here episodes are independent",
    "format_sensitivity": "varies the text formats of models without tool calls; it is not part of the suite's score",
}
"""Categories that are left out, by the beginning of their names, and why."""
_NO_CALLS = "None of the functions fits, or a value is missing."
_DONE = "Done."
_STOPPED = "Error during execution: the suite failed on it, or it took too much time or memory and was stopped."


class Bfcl(Env):
    """The Berkeley Function Calling Leaderboard. Reward 1 when the suite's own checker takes the calls."""

    shared: ClassVar = {"suite_process": "contrib.suites.bfcl.env:open_process"}

    suite_process: SuiteProcess
    _task: Task | None = None
    _user_turns: Sequence[Mapping[str, Any]] = ()
    _calls: list[list[list[Call]]]
    """Executed calls of the conversation: user turn -> step -> calls."""
    _steps = 0

    @classmethod
    def tasks(
        cls, split: str = "train", *, count: int, seed: int = 0, category: str = "calls", python: str = ""
    ) -> Sequence[Task]:
        """Return tasks of a category.

        Args:
            split: "all"; or "train" and "test", which hold out one question in five, and have each question once.
            count: how many; of "all" fewer, if there are fewer.
            seed: of their order.
            category: a category or a group of the suite, several with commas between them, such as multi_turn_base,
                single_turn or all; "calls" is every category with certain calls as the right answer, so without
                irrelevance, live_irrelevance and live_relevance.
            python: an interpreter that has bfcl-eval, if it is not installed by `forge-env suite install bfcl`.
        """
        suite = installed("bfcl", python)
        tasks = [task for name in categories_of(category, suite) for task in _tasks_of(name, suite)]
        return select("bfcl", tasks, script_of, split, count=count, seed=seed, each_prompt_once=True)

    @classmethod
    def limits(cls, *, category: str = "calls") -> Mapping[str, float]:
        """The suite's limits: 21 answers in each of up to 8 user turns; one answer if all tasks have one turn."""
        kind = "long_context" if "long_context" in category else "multi_turn"
        if all(part.strip().startswith(_ONE_TURN) for part in category.split(",")):
            kind = "single_turn"
        turns = 1 if kind == "single_turn" else MAX_USER_TURNS * (MAX_STEPS + 1)
        return {"max_turns": turns, "max_turn_tokens": MAX_TURN_TOKENS, "max_tokens": CONTEXT_TOKENS[kind]}

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        """Return the next message of a solution of a task that was drawn in this process."""
        return expert_of("bfcl", messages)

    @classmethod
    def cheats(cls, task: Task) -> Sequence[str]:
        """Return final answers that must earn nothing: the right calls as text, and claims."""
        if "irrelevance" in task.kind:
            return ()
        return "", _DONE, "The calls are right. valid: True, reward: 1.0", repr(task.target)

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.seed(seed)
        self._task = task_of(self, options)
        self._user_turns = (await self._ask({"do": "start"}))["turns"]
        self._calls, self._steps = [[]], 0
        self.tools = self._user_turns[0]["tools"]
        return tuple(self._user_turns[0]["messages"]), {"suite": self.suite_process.label}

    async def step(self, action: Action) -> StepResult:
        if not after_reset(self, self._task).kind.startswith("multi_turn"):
            return await self._grade([], {"calls": _read(action)})
        calls = _read(action)
        observation: list[Message] = []
        info: dict[str, Any] = {}
        if calls:
            results, seconds = await self._execute(calls)
            info["tools"] = []
            for call, text in zip(action.tool_calls, results, strict=True):
                observation.append(answer_to(call, text))
                error = "raised" if text.startswith("Error during execution") else ""
                info["tools"].append(ToolUse(name=call.name, seconds=seconds / len(calls), error=error))
            self._steps += 1
            if self._steps > MAX_STEPS:
                return observation, 0.0, True, False, {**info, **_verdict(False, "multi_turn:force_terminated")}
            return observation, 0.0, False, False, info
        for call in action.tool_calls:  # arguments that are not JSON: the suite takes no call of such a message
            observation.append(answer_to(call, "Error: the arguments of a call are no JSON object."))
        return await self._next_user_turn(observation)

    async def _next_user_turn(self, observation: list[Message]) -> StepResult:
        if len(self._calls) == len(self._user_turns):
            return await self._grade(observation, {"turns": self._calls})
        turn = self._user_turns[len(self._calls)]
        self._calls.append([])
        self._steps = 0
        if turn["tools"] is not None:
            self.tools = turn["tools"]
        return [*observation, *turn["messages"]], 0.0, False, False, {}

    async def _execute(self, calls: list[Call]) -> tuple[list[str], float]:
        """Execute the calls of a message after all before it; returns their results and their seconds, all together.

        Calls that do not end in time are left out afterwards.
        """
        self._calls[-1].append(calls)
        response = await self._ask({"do": "execute", "turns": self._calls})
        if "results" in response:
            return [str(result) for result in response["results"]], float(response["seconds"])
        self._calls[-1].pop()
        return [_STOPPED] * len(calls), library.CPU_SECONDS

    async def _grade(self, observation: list[Message], answer: dict[str, Any]) -> StepResult:
        verdict = await self._ask({"do": "grade", **answer})
        is_valid = bool(verdict.get("valid", False))  # a checker that was stopped by its limits takes nothing
        info = _verdict(is_valid, verdict.get("error_type", "checker:stopped"))
        return observation, float(is_valid), True, False, info

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._task is not None
        return await self.suite_process.ask_in_turn({**request, "category": self._task.kind, "id": self._task.id})


_ONE_TURN = ("simple", "multiple", "parallel", "irrelevance", "live", "non_live", "single_turn", "python", "non_python")
"""How the names of categories and groups of one turn begin."""


def _read(action: Action) -> list[Call] | None:
    """The calls of a message; None if it has none, or a call with arguments that are not a JSON object."""
    if not action.tool_calls or any(call.arguments is None for call in action.tool_calls):
        return None
    return [{"name": call.name, "arguments": copy.deepcopy(call.arguments)} for call in action.tool_calls]


def _verdict(is_valid: bool, error_type: str) -> dict[str, Any]:
    """Return the info of the last step; error types are the suite's."""
    return {"rewards": {"valid": float(is_valid)}, "error_type": "" if is_valid else error_type}


def categories_of(text: str, suite: Installed) -> list[str]:
    """Return the categories that a text names, which may be groups, without those that are left out."""
    names = _names(suite)
    playable = [*names["single_turn"], *names["multi_turn"]]
    groups = {**names["groups"], "calls": [name for name in playable if "relevance" not in name]}
    categories: dict[str, None] = {}
    for part in (part.strip() for part in text.split(",")):
        if part not in groups and part not in (*playable, *names["others"]):
            raise UserError(f"bfcl has no category {part!r}. {nearest(part, [*playable, *names['others'], *groups])}")
        members = groups.get(part, [part])
        playable_members = [name for name in members if name in playable]
        if not playable_members:
            raise UserError(f"the category {part} of bfcl is not played here: it {skip_reason(members[0])}")
        categories |= dict.fromkeys(playable_members)
    return list(categories)


def skip_reason(category: str) -> str:
    """The reason why a category is left out; "" if it is not."""
    return next((reason for start, reason in SKIPPED.items() if category.startswith(start)), "")


@functools.cache
def _names(suite: Installed) -> dict[str, Any]:
    return process_of(library.__file__, suite).ask({"do": "categories"})


@functools.lru_cache(maxsize=64)
def _tasks_of(category: str, suite: Installed) -> list[Task]:
    process = process_of(library.__file__, suite)
    rows = process.ask({"do": "tasks", "category": category})["tasks"]
    return [_task(row, suite) for row in rows]


def _task(row: Mapping[str, Any], suite: Installed) -> Task:
    return Task(
        prompt=tuple(row["prompt"]),
        target=_gold(row),
        metadata={"suite": suite.label, "functions": [tool_name(name) for name in row["parameters"]]},
        id=row["id"],
        kind=row["category"],
    )


def _gold(row: Mapping[str, Any]) -> Any:
    """The right calls: of one turn, or of each user turn; None if any call is right."""
    answer, category = row["answer"], row["category"]
    if answer is None:
        return [] if "irrelevance" in category else None
    if category.startswith("multi_turn"):
        return [turn_calls(turn, row["parameters"]) for turn in answer]
    return single_turn_calls(answer, row["parameters"], category)


def script_of(task: Task) -> Script:
    """Return the solution of a task: a function of the conversation that gives the next message."""
    user_turns = task.target if task.kind.startswith("multi_turn") else [task.target]
    offset = sum(message["role"] == "user" for message in task.prompt)

    def script(messages: Sequence[Message]) -> Message:
        number = sum(message["role"] == "user" for message in messages) - offset
        calls = user_turns[number] if messages[-1]["role"] == "user" else []
        if not calls:
            return say(_DONE if any(user_turns) else _NO_CALLS)
        return {"role": "assistant", "content": "", "tool_calls": tool_calls(calls)}

    return script


@asynccontextmanager
async def open_process(*, python: str = "") -> AsyncIterator[SuiteProcess]:
    """Give the suite's process to an environment; it runs on afterwards, because it is slow to start."""
    yield process_of(library.__file__, installed("bfcl", python))
