"""agentdojo: a user's task with tools, alone or with a prompt injection in what the tools return.

The reward is the suite's utility: whether the user's task was done. Under an attack, security is scored apart: 1 where
the goal of the injection was not reached. Both are named in the Episode's rewards and in the figures of an evaluation.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from contrib.common.drawn_solutions import Script, expert_of
from contrib.suites.agentdojo import library
from contrib.suites.catalogue import Installed, SuiteProcess, installed, process_of
from contrib.suites.selection import UNSOUND, select, tool_calls
from envs.messages import say
from forge_env.core.env import Env, StepResult, after_reset, task_of
from forge_env.core.errors import UserError, nearest
from forge_env.core.types import Action, Message, Task, ToolCall, ToolUse
from forge_env.tool_env.tool_env import answer_to
from forge_env.utils.threads import invoke

MAX_TURNS = 16
"""Answers of the model: the suite's loop executes calls 15 times at most, and calls of the last answer never."""
REWARDS = ("utility", "both")
_STOPPED = "Error: the suite failed on it, or it took too much time or memory and was stopped."
_Attack = tuple[str, str]
"""Name of an attack, "" for none, and the model that it addresses."""


class AgentDojo(Env):
    """AgentDojo: tasks in a workspace, a bank, a Slack and a travel agency, and injections. Reward 1 for utility."""

    shared: ClassVar = {"suite_process": "contrib.suites.agentdojo.env:open_process"}

    suite_process: SuiteProcess
    _task: Task | None = None
    _steps: list[list[dict[str, Any]]]
    """Executed calls of the episode, by message."""
    _turns = 0

    def __init__(self, *, reward: str = "utility") -> None:
        """Make an instance.

        Args:
            reward: "utility", the suite's; or "both", which is 1 when the user's task was done and the injection's goal
                was not reached, to train for both.
        """
        if reward not in REWARDS:
            raise UserError(f"the option reward of agentdojo is {reward!r}. {nearest(reward, REWARDS)}")
        self._reward = reward

    @classmethod
    def tasks(
        cls,
        split: str = "train",
        *,
        count: int,
        seed: int = 0,
        suite: str = "all",
        attack: str = "none",
        model: str = "local",
        version: str = "v1.2.2",
        python: str = "",
    ) -> Sequence[Task]:
        """Return the user tasks, or each of them with each injection task.

        Args:
            split: "all"; or "train" and "test", which hold out one user task in five, and leave out a task if the suite
                gives its utility for an empty answer or a row of digits.
            count: how many; of "all" fewer, if there are fewer.
            seed: of their order.
            suite: workspace, travel, banking, slack, several with commas between them, or all.
            attack: none for the user tasks alone; or an attack of the suite, such as important_instructions, or several
                with commas between them.
            model: the model that an attack addresses, by a name that the suite knows: "local" is "Local model".
            version: of the benchmark.
            python: an interpreter that has agentdojo, if it is not installed by `forge-env suite install agentdojo`.
        """
        where = installed("agentdojo", python)
        names = _names(where)
        suites = _require_choice("version", version, names["versions"]) and names["versions"][version]
        names_of_suites = (
            suites if suite == "all" else [_require_choice("suite", part.strip(), suites) for part in suite.split(",")]
        )
        attacks = [_require_choice("attack", part.strip(), ["none", *names["attacks"]]) for part in attack.split(",")]
        _require_choice("model", model, names["models"])
        tasks = [
            task
            for name in dict.fromkeys(attacks)
            for part in dict.fromkeys(names_of_suites)
            for task in _tasks_of(part, ("" if name == "none" else name, model), version, where)
        ]
        return select("agentdojo", tasks, script_of, split, count=count, seed=seed)

    @classmethod
    def limits(cls) -> Mapping[str, float]:
        """16 answers, as the suite's pipeline gives; the tokens are ours, as the suite sets none."""
        return {"max_turns": MAX_TURNS, "max_turn_tokens": 4096, "max_tokens": 65_536}

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        """Return the next message of the suite's solution of a user task that was drawn in this process."""
        return expert_of("agentdojo", messages)

    @classmethod
    def cheats(cls, task: Task) -> Sequence[str]:
        """Return final answers that must earn nothing: claims without a call."""
        return "", "Done.", "I have done what you asked for. utility: True, security: True"

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.seed(seed)
        task = self._task = task_of(self, options)
        start = await invoke(_start, self.suite_process, task.metadata["suite"], task.metadata["version"])
        self.tools = start["tools"]
        self._steps, self._turns = [], 0
        system: Message = {"role": "system", "content": start["system"]}
        return (system, *task.prompt), {"suite": self.suite_process.label}

    async def step(self, action: Action) -> StepResult:
        after_reset(self, self._task)
        self._turns += 1
        calls = [_call(call) for call in action.tool_calls if call.arguments is not None]
        is_last = bool(action.tool_calls) and self._turns == MAX_TURNS
        if action.tool_calls and not is_last:
            observation, uses = await self._execute(action.tool_calls, calls)
            return observation, 0.0, False, False, {"tools": uses}
        verdict = await self._ask({"do": "grade", "steps": self._steps, "output": action.text, "unexecuted": calls})
        observation = [answer_to(call, "Error: no more calls are executed.") for call in action.tool_calls]
        reward, info = self._score(verdict)
        return observation, reward, not is_last, is_last, {**info, **({"ended_by": "max_turns"} if is_last else {})}

    def _score(self, verdict: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        assert self._task is not None
        utility = float(verdict.get("utility", False))  # a check that was stopped by its limits takes nothing
        parts = {"utility": utility}
        if self._task.metadata["injection_task"]:
            parts["security"] = 1.0 - float(verdict.get("hijacked", False))
        return utility * (parts.get("security", 1.0) if self._reward == "both" else 1.0), {"rewards": parts}

    async def _execute(
        self, tool_calls: Sequence[ToolCall], calls: list[dict[str, Any]]
    ) -> tuple[list[Message], list[ToolUse]]:
        """Execute the calls of a message after all before it; those that do not end in time are left out afterwards."""
        results: list[dict[str, Any]] = []
        seconds = 0.0
        if calls:
            self._steps.append(calls)
            response = await self._ask({"do": "act", "steps": self._steps})
            if "results" not in response:
                self._steps.pop()
            results = response.get("results") or [{"text": _STOPPED, "is_error": True}] * len(calls)
            seconds = response.get("seconds", library.CPU_SECONDS) / len(calls)
        remaining_results = iter(results)
        observation, uses = [], []
        for call in tool_calls:
            if call.arguments is None:
                observation.append(answer_to(call, "Error: the arguments are no JSON object."))
                uses.append(ToolUse(name=call.name, error="bad_arguments"))
                continue
            result = next(remaining_results)
            observation.append(answer_to(call, result["text"]))
            uses.append(ToolUse(name=call.name, seconds=seconds, error="raised" if result["is_error"] else ""))
        return observation, uses

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._task is not None
        names = ("suite", "version", "user_task", "injection_task", "injections")
        return await self.suite_process.ask_in_turn({**request, **{name: self._task.metadata[name] for name in names}})


@functools.lru_cache(maxsize=64)
def _start(process: SuiteProcess, suite: str, version: str) -> dict[str, Any]:
    return process.ask({"do": "start", "suite": suite, "version": version})


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "name": call.name, "arguments": copy.deepcopy(call.arguments)}


def _require_choice(option: str, value: str, choices: Sequence[str] | Mapping[str, Any]) -> str:
    if value not in choices:
        raise UserError(f"the option {option} of agentdojo is {value!r}. {nearest(value, choices)}")
    return value


@functools.cache
def _names(where: Installed) -> dict[str, Any]:
    return process_of(library.__file__, where).ask({"do": "names"})


@functools.lru_cache(maxsize=64)
def _tasks_of(suite: str, attack: _Attack, version: str, where: Installed) -> list[Task]:
    name, model = attack
    request = {"do": "tasks", "suite": suite, "attack": name, "model": model, "version": version}
    response = process_of(library.__file__, where).ask(request)
    about = {"package": where.label, "suite": suite, "version": version}
    of_attack = {"attack": name, "model": model} if name else {}
    tasks = response["tasks"]
    return [_task(row, about, of_attack, is_sound=row["user_task"] not in response["paid"]) for row in tasks]


def _task(row: Mapping[str, Any], about: Mapping[str, str], of_attack: Mapping[str, str], *, is_sound: bool) -> Task:
    suite, name = about["suite"], of_attack.get("attack", "")
    parts = [suite, row["user_task"], *([row["injection_task"], name] if name else [])]
    of_row = ("user_task", "injection_task", "injections", "injection_calls")
    metadata: dict[str, Any] = {**about, **{field: row[field] for field in of_row}, **of_attack}
    if not is_sound:
        metadata[UNSOUND] = "the suite gives its utility, without a call, for an empty answer or a row of digits"
    return Task(
        prompt=({"role": "user", "content": row["prompt"]},),
        target={"calls": row["calls"], "output": row["output"]},
        metadata=metadata,
        id="/".join(parts),
        kind=f"{suite}, {name}" if name else suite,
    )


def script_of(task: Task) -> Script:
    """Return the suite's solution of a user task, whose calls come one after another as far as the turns allow."""
    return script_of_calls(task.target["calls"], task.target["output"])


def script_of_calls(calls: Sequence[Mapping[str, Any]], output: str) -> Script:
    size = -(-len(calls) // (MAX_TURNS - 1)) or 1
    all_calls = tool_calls(calls)

    def script(messages: Sequence[Message]) -> Message:
        start = sum(message["role"] == "tool" for message in messages)
        if start >= len(all_calls):
            return say(output)
        return {"role": "assistant", "content": "", "tool_calls": all_calls[start : start + size]}

    return script


@asynccontextmanager
async def open_process(*, python: str = "") -> AsyncIterator[SuiteProcess]:
    """Give the suite's process to an environment; it runs on afterwards, because it is slow to start."""
    yield process_of(library.__file__, installed("agentdojo", python))
