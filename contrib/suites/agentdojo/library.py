"""The library file of AgentDojo: it runs in the interpreter that has agentdojo, see `envs.processes.worker`.

Environments, tools, attacks and checks are the suite's own. The calls of a model are executed in a fork, from the start
of the conversation each time: nothing of an episode stays in this process. Standard library and agentdojo only.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import json
import time
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.processes.worker import Request, RunForked, Write

PACKAGES = ("agentdojo", "pydantic", "yaml")
CPU_SECONDS = 20.0
WALL_SECONDS = 60.0
MEMORY_BYTES = 4 << 30
NEEDS_A_HUMAN = "manual"
"""The attack that asks someone at the keyboard."""
CLOCKS = ("email_client", "cloud_drive_client")
"""Modules of the suite that ask for the time, and use nothing else of `datetime` while they run."""
NOW = datetime.datetime(2024, 5, 15, 12)
"""The time in an episode, on the day of the workspace's calendar: the same calls give the same results."""
PROBES = ("", "0 1 2 3 4 5 6 7 8 9")
"""Answers that are right for no user task; some checks look for a digit anywhere."""
_NOTHING: dict[str, Any] = {"steps": [[]], "output": "", "unexecuted": []}
"""What a model that does nothing makes of a request."""
_CACHED = 128
"""Environments of that many episodes at once; one takes a tenth of a second to load."""


def open_library(run_forked: RunForked) -> Callable[[Request], Request]:
    return Library(run_forked).answer


class Library:
    """The suites. Environments that were loaded last are kept, as they are before the first call of an episode."""

    def __init__(self, run_forked: RunForked) -> None:
        self._run_forked = run_forked
        self._suites = importlib.import_module("agentdojo.task_suite.load_suites")
        importlib.import_module("agentdojo.attacks")
        self._attacks = importlib.import_module("agentdojo.attacks.attack_registry")
        self._models = importlib.import_module("agentdojo.models")
        self._pipeline = importlib.import_module("agentdojo.agent_pipeline.agent_pipeline")
        self._execution = importlib.import_module("agentdojo.agent_pipeline.tool_execution")
        self._runtime = importlib.import_module("agentdojo.functions_runtime")
        self._types = importlib.import_module("agentdojo.types")
        self._environments: OrderedDict[str, Any] = OrderedDict()
        self._reads: dict[Any, bool] = {}
        self._originals: dict[str, Any] = {}
        self._solutions: dict[Any, list[dict[str, Any]]] = {}
        for name in CLOCKS:
            module = importlib.import_module(f"agentdojo.default_suites.v1.tools.{name}")
            vars(module)["datetime"] = types.SimpleNamespace(datetime=_StoppedClock)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "names":
                versions = {name: list(suites) for name, suites in self._suites._SUITES.items()}
                attacks = [name for name in self._attacks.ATTACKS if name != NEEDS_A_HUMAN]
                return {"versions": versions, "attacks": attacks, "models": list(self._models.MODEL_NAMES)}
            case "tasks":
                return self._tasks(request)
            case "start":
                return self._start(request)
            case "act":
                return self._act(request)
            case _:
                return self._grade(request)

    def _suite(self, request: dict[str, Any]) -> Any:
        return self._suites.get_suites(request["version"])[request["suite"]]

    def _tasks(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the user tasks, or each of them with each injection that an attack makes."""
        suite = self._suite(request)
        if not request["attack"]:
            rows = [self._row(suite, task, None, {}) for task in suite.user_tasks.values()]
            return {"tasks": rows, "paid": self._paid_for_nothing(request["version"], request["suite"])}
        target = types.SimpleNamespace(name=request["model"])
        attack = self._attacks.load_attack(request["attack"], suite, target)
        injection_tasks = list(suite.injection_tasks.values())[: 1 if attack.is_dos_attack else None]
        rows = []
        for user_task in suite.user_tasks.values():
            for injection_task in injection_tasks:
                try:
                    injections = attack.attack(user_task, injection_task)
                except ValueError:  # a task that shows no place for an injection
                    continue
                rows.append(self._row(suite, user_task, injection_task, injections))
        return {"tasks": rows, "paid": self._paid_for_nothing(request["version"], request["suite"])}

    @functools.cache  # noqa: B019  # there is one library
    def _paid_for_nothing(self, version: str, name: str) -> list[str]:
        """The user tasks that get the suite's utility, without a call, for one of `PROBES`."""
        suite = self._suites.get_suites(version)[name]
        ids = []
        for task in suite.user_tasks.values():
            before = task.init_environment(self._without_injections(suite))
            for text in PROBES:
                if suite._check_task_result(task, [self._block(text)], before, before.model_copy(deep=True), []):
                    ids.append(task.ID)
                    break
        return ids

    def _row(self, suite: Any, user_task: Any, injection_task: Any, injections: dict[str, str]) -> dict[str, Any]:
        return {
            "user_task": user_task.ID,
            "injection_task": injection_task.ID if injection_task else "",
            "prompt": user_task.PROMPT,
            "injections": injections,
            "calls": self._solution_under(suite, user_task, injections),
            "output": user_task.GROUND_TRUTH_OUTPUT,
            "injection_calls": self._solution(suite, injection_task) if injection_task else [],
        }

    def _without_injections(self, suite: Any) -> Any:
        if suite.name not in self._originals:
            self._originals[suite.name] = suite.load_and_inject_default_environment({})
        return self._originals[suite.name].model_copy(deep=True)

    def _solution_under(self, suite: Any, task: Any, injections: dict[str, str]) -> list[dict[str, Any]]:
        """Return the solution of a user task in an environment with injections, which some solutions read."""
        plain = self._solution(suite, task)
        if not injections or self._reads.get((suite.name, task)) is False:
            return plain
        environment = suite.load_and_inject_default_environment(injections)
        solution = _calls(task.ground_truth(task.init_environment(environment)))
        self._reads[suite.name, task] = solution != plain
        return solution

    def _solution(self, suite: Any, task: Any) -> list[dict[str, Any]]:
        """Return the calls that solve a task, in an environment without injections, as JSON data."""
        if (suite.name, task) not in self._solutions:
            environment = self._without_injections(suite)
            if hasattr(task, "init_environment"):
                environment = task.init_environment(environment)
            self._solutions[suite.name, task] = _calls(task.ground_truth(environment))
        return self._solutions[suite.name, task]

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        tools = []
        for tool in self._suite(request).tools:
            function = {"name": tool.name, "description": tool.description}
            function["parameters"] = tool.parameters.model_json_schema()
            tools.append({"type": "function", "function": function})
        return {"tools": tools, "system": self._pipeline.load_system_message(None)}

    def _act(self, request: dict[str, Any]) -> dict[str, Any]:
        """Execute all calls from the start; return the results of the last step's calls, as the suite shows them."""
        suite = self._suite(request)
        user_task = suite.get_user_task_by_id(request["user_task"])

        def work(write: Write, request: dict[str, Any]) -> None:
            environment = user_task.init_environment(self._environment(request))
            runtime = self._runtime.FunctionsRuntime(suite.tools)
            messages, _, seconds = self._replay(request["steps"], user_task.PROMPT, runtime, environment)
            last = messages[len(messages) - len(request["steps"][-1]) :]
            results = [{"text": m["error"] or m["content"][0]["content"], "is_error": bool(m["error"])} for m in last]
            write({"results": results, "seconds": seconds})

        self._environment(request)  # loaded here, so that the forks to come have it
        return self._run_in_fork(work, request)

    def _grade(self, request: dict[str, Any]) -> dict[str, Any]:
        """Replay the episode in the suite's own run of a task, which returns utility and whether the injection worked.

        "unexecuted" are calls of the last message, after which the suite executes no more; they count as made.
        """
        suite = self._suite(request)
        user_task = suite.get_user_task_by_id(request["user_task"])
        injection_task = (
            suite.get_injection_task_by_id(request["injection_task"]) if request["injection_task"] else None
        )

        def work(write: Write, request: dict[str, Any]) -> None:
            def query(prompt: str, runtime: Any, environment: Any) -> Any:
                messages, environment, _ = self._replay(request["steps"], prompt, runtime, environment)
                messages.append(self._assistant(request["output"], request["unexecuted"]))
                return prompt, runtime, environment, messages, {}

            utility, is_hijacked = suite.run_task_with_pipeline(
                types.SimpleNamespace(query=query),
                user_task,
                injection_task,
                {},
                environment=self._environment(request),
            )
            write({"utility": bool(utility), "hijacked": bool(is_hijacked) if injection_task else False})

        return self._run_in_fork(work, request)

    def _replay(self, steps: list[Any], prompt: str, runtime: Any, environment: Any) -> tuple[list[Any], Any, float]:
        executor = self._execution.ToolsExecutor()
        messages: list[Any] = [{"role": "user", "content": [self._block(prompt)]}]
        seconds = 0.0
        for calls in steps:
            start = time.perf_counter()
            messages.append(self._assistant("", calls))
            _, _, environment, messages, _ = executor.query(prompt, runtime, environment, messages, {})
            messages = list(messages)
            seconds = time.perf_counter() - start
        return messages, environment, seconds

    def _assistant(self, text: str, calls: list[dict[str, Any]]) -> Any:
        function_calls = [
            self._runtime.FunctionCall(function=c["name"], args=c["arguments"], id=c["id"]) for c in calls
        ]
        return {"role": "assistant", "content": [self._block(text)], "tool_calls": function_calls or None}

    def _block(self, text: str) -> Any:
        return self._types.text_content_block_from_string(text)

    def _environment(self, request: dict[str, Any]) -> Any:
        key = json.dumps([request["version"], request["suite"], request["injections"]], sort_keys=True)
        if key not in self._environments:
            suite = self._suite(request)
            self._environments[key] = suite.load_and_inject_default_environment(request["injections"])
            if len(self._environments) > _CACHED:
                self._environments.popitem(last=False)
        self._environments.move_to_end(key)
        return self._environments[key]

    def _run_in_fork(self, work: Callable[..., None], request: dict[str, Any]) -> dict[str, Any]:
        """Return what a fork writes for a request; "ended" if the model's part of it has ended the fork."""
        works = [functools.partial(work, request={**request, **changes}) for changes in ({}, _NOTHING)]
        limits = {"cpu_seconds": CPU_SECONDS, "wall_seconds": WALL_SECONDS, "memory_bytes": MEMORY_BYTES}
        values, exit_code = self._run_forked(works[0], control=works[1], **limits)
        return values[0] if exit_code == 0 else {"ended": exit_code}


def _calls(calls: list[Any]) -> list[dict[str, Any]]:
    plain = json.loads(json.dumps([[call.function, dict(call.args)] for call in calls], default=str))
    return [{"name": name, "arguments": arguments} for name, arguments in plain]


class _StoppedClock:
    """Stands for the class `datetime.datetime` in the modules of `CLOCKS`."""

    @staticmethod
    def now() -> datetime.datetime:
        return NOW
