"""The checks of an environment: a good one passes all of them, each broken one fails exactly the check it should."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import jsonschema
import pytest
from pydantic import BaseModel

from contrib.check import event_loop, leaks, run_checks, runner
from contrib.check.direct_calls import with_timeout
from contrib.check.report import CheckReport, CheckRow, Latency
from contrib.check.runner import NAMES, OPEN
from contrib.check.strategies import sample_arguments
from envs.messages import call, say
from forge_env.core.env import Env
from forge_env.core.errors import EnvError, SandboxUnavailable, UserError
from forge_env.core.tools import make_tool, reward, tool
from forge_env.core.types import Action, Message, Task
from forge_env.rollout import env_calls
from forge_env.rollout.env_calls import EnvTimeout
from forge_env.rollout.factory import EnvFactory, make
from forge_env.tool_env.tool_env import ToolEnv
from forge_env.utils.targets import load


class Good(ToolEnv):
    """Squares; the conversation says how lucky the seed is."""

    system_prompt = "Answer with a number."

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        numbers = random.Random(f"{split}/{seed}").sample(range(100 + (split == "test"), 1000, 2), count)
        return [Task(prompt=({"role": "user", "content": f"{n} squared?"},), target=str(n * n)) for n in numbers]

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        seen = next((m["content"] for m in reversed(messages) if m["role"] == "tool"), None)
        if seen is not None:
            return say(seen)
        number = next(m["content"] for m in messages if "squared" in m["content"]).split()[0]
        return call("square", n=int(number))

    @classmethod
    def cheats(cls, task: Task) -> Sequence[str]:
        return [f"either {task.target} or 1", "target"]

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        messages, info = await super().reset(seed=seed, options=options)
        self.luck = int(self.np_random.integers(1000))
        return [*messages, {"role": "user", "content": f"Your luck is {self.luck}."}], info

    @tool
    def square(self, n: int) -> int:
        """Square a number."""
        return n * n

    @reward
    def right(self, answer: str) -> float:
        return float(answer.strip() == self.task.target)


def good_tasks(split: str, count: int, seed: int) -> Sequence[Task]:
    return Good.tasks(split, count=count, seed=seed)


class NothingDrawn(Good):
    """Its reset is that of a ToolEnv."""

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        return await ToolEnv.reset(self, seed=seed, options=options)


class EditsItsOwn(Good):
    """Edits in place what each episode has a copy of."""

    def setup(self) -> None:
        self.messages[-1]["content"] += " !"
        self.task.metadata["played"] = len(self.task.metadata)  # type: ignore[index]
        self.task.prompt[-1]["content"] += " ?"


class EditsWhatItKeeps(Good):
    kept: ClassVar[dict[Any, Sequence[Task]]] = {}

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        return cls.kept.setdefault((split, count, seed), Good.tasks(split, count=count, seed=seed))

    def setup(self) -> None:
        for task in itertools.chain(*self.kept.values()):
            task.metadata["played"] = task.metadata.get("played", 0) + 1  # type: ignore[index]


class Plain(Env):
    """Without tools, expert and cheats; sync methods."""

    tasks = Good.tasks
    task: Task | None = None

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.task = (options or {})["task"]
        return self.task.prompt, {}

    def step(self, action: Action) -> Any:
        if self.task is None:
            raise EnvError("no episode has been started")
        return [], float(action.text == self.task.target), True, False, {}


class GlobalRandom(Good):
    async def step(self, action: Action) -> Any:
        messages, *rest = await super().step(action)
        return [{**m, "content": f"{m['content']} {random.random()}"} for m in messages], *rest

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        said = Good.expert(messages)
        return said if said.get("tool_calls") else {**said, "content": said["content"].split()[0]}


class SeededGlobalRandom(GlobalRandom):
    """The same alone, and another one among many."""

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        random.seed(seed)
        return await super().reset(seed=seed, options=options)


class SharedState(Good):
    history: ClassVar[list[str]] = []

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.history.clear()
        return await super().reset(seed=seed, options=options)

    async def step(self, action: Action) -> Any:
        self.history.append(action.text)
        result = await super().step(action)
        return *result[:4], {**result[4], "rewards": {"turns": float(len(self.history))}}


class IgnoresSeed(Good):
    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        return await super().reset(seed=7, options=options)


def opened(change: Callable[..., Any]) -> type[Env]:
    """A Good whose reset returns something else, also of its number of episodes."""

    class Opened(Good):
        episodes = 0

        async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
            self.episodes += 1
            return change(self, *await super().reset(seed=seed, options=options))

    return Opened


def changed(change: Callable[..., Any]) -> type[Env]:
    """A Good whose last step returns something else."""

    class Changed(Good):
        async def step(self, action: Action) -> Any:
            result = await super().step(action)
            return change(*result) if result[2] else result

    return Changed


def stepped(change: Callable[..., Any]) -> type[Env]:
    """A Good each of whose steps returns something else."""

    class Stepped(Good):
        async def step(self, action: Action) -> Any:
            return change(*await super().step(action))

    return Stepped


def scored(score: Callable[[str, str], float]) -> type[Env]:
    """A Good that scores an answer, beside the target, in another way."""

    class Scored(Good):
        @reward
        def right(self, answer: str) -> float:
            return float(score(answer, self.task.target))

    return Scored


def drawn(draw: Callable[[str, int, int], Sequence[Task]], base: type[Good] = Good) -> type[Env]:
    """A Good with other tasks."""

    class Drawn(base):  # type: ignore[misc,valid-type]
        @classmethod
        def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
            return draw(split, count, seed)

    return Drawn


def advised(expert: Callable[[list[Message]], Any]) -> type[Env]:
    """A Good with another expert."""
    return type("Advised", (Good,), {"expert": staticmethod(expert)})


class BadSchema(Good):
    def __init__(self) -> None:
        super().__init__()
        self.tools = deepcopy(self.tools)
        self.tools[0]["function"]["parameters"]["properties"] = {"n": {"type": "whole number"}}


class StepsWithoutReset(Plain):
    def step(self, action: Action) -> Any:
        return [], float(self.task is not None and action.text == self.task.target), True, False, {}


class AwaitedExpert(Good):
    """Its expert waits for something."""

    @staticmethod
    async def expert(messages: list[Message]) -> Message:
        await asyncio.sleep(0)
        return Good.expert(messages)


class EchoScores(Plain):
    """The question has two lines, and the second one is worth as much as its answer."""

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        return [
            replace(t, prompt=({"role": "user", "content": f"Compute.\n{t.prompt[0]['content']}"},))
            for t in Good.tasks(split, count=count, seed=seed)
        ]

    def step(self, action: Action) -> Any:
        result = super().step(action)
        return [], float(result[1] or (action.text.endswith("squared?") and "\n" not in action.text)), *result[2:]


class AnyTargetScores(Plain):
    def step(self, action: Action) -> Any:
        return [], float(action.text.isdecimal() and 3 < len(action.text) < 10), *super().step(action)[2:]


UNANSWERED = stepped(lambda messages, *rest: ([{"role": "user", "content": m["content"]} for m in messages], *rest))
TURNS_SCORE = stepped(lambda messages, value, *rest: (messages, value + (0.3 if messages else 0.0), *rest))
"""Going on is worth more than being right."""


class SeedOverwritten(Good):
    def __init__(self) -> None:
        super().__init__()
        self.seed: Any = 7


class NoReward(ToolEnv):
    tasks = Good.tasks
    square = Good.square


class TooMany(Good):
    """Waits in vain for a place when more than eight ask at once."""

    asking = 0

    async def step(self, action: Action) -> Any:
        try:
            type(self).asking += 1
            await asyncio.sleep(0.01)
            if type(self).asking > 8:
                raise EnvError("no place in the database: timed out")
        finally:
            type(self).asking -= 1
        return await super().step(action)


class BreaksOnMalformed(Good):
    async def step(self, action: Action) -> Any:
        for called in action.tool_calls:
            len(called.arguments)  # type: ignore[arg-type]
        return await super().step(action)


class OneQuestionManyTables(Good):
    """Every task asks the same of another table, which is its state."""

    system_prompt = "Look it up."

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        prompt: tuple[Message, ...] = ({"role": "user", "content": "How many rows has the table?"},)
        drawn = Good.tasks(split, count=count, seed=seed)
        return [Task(prompt=prompt, target=task.target, metadata={"table": [task.target]}) for task in drawn]


class ClosesOnce(Good):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


class BlocksTheLoop(Good):
    async def step(self, action: Action) -> Any:
        time.sleep(0.05)
        return await super().step(action)


class HoldsOn(Good):
    """Does not let itself be cancelled."""

    async def step(self, action: Action) -> Any:
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            await asyncio.sleep(30.0)
        return await super().step(action)


class Leaks(Good):
    """Leaves one thing of each kind behind in every eighth episode; what undoes it is kept for the end of the test."""

    undo: ClassVar[list[Callable[[], object]]] = []
    episodes: ClassVar = itertools.count()

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        if next(self.episodes) % 8 == 0:
            self.undo += [self.thread(), self.descriptor(), self.process(), self.orphan(), self.endless(), self.file()]
        return await super().reset(seed=seed, options=options)

    def thread(self) -> Callable[[], object]:
        released = threading.Event()
        threading.Thread(target=released.wait, daemon=True).start()
        return released.set

    def descriptor(self) -> Callable[[], object]:
        descriptor = os.open(os.devnull, os.O_RDONLY)
        return lambda: os.close(descriptor)

    def process(self) -> Callable[[], object]:
        child = subprocess.Popen(["sleep", "60"])
        return lambda: (child.kill(), child.wait())

    def orphan(self) -> Callable[[], object]:
        """A process whose parent has ended is below this one no more."""
        command = ["sh", "-c", "tail -f /dev/null >/dev/null 2>&1 & echo $!"]
        started = subprocess.run(command, capture_output=True, text=True, check=True)
        return lambda: os.kill(int(started.stdout), signal.SIGKILL)

    def endless(self) -> Callable[[], object]:
        task = asyncio.create_task(asyncio.Event().wait())
        return lambda: task

    def file(self) -> Callable[[], object]:
        descriptor, name = tempfile.mkstemp(suffix=".leaked")
        os.close(descriptor)
        return lambda: Path(name).unlink(missing_ok=True)


class LeaksWhenCancelled(Good):
    async def step(self, action: Action) -> Any:
        descriptor = os.open(os.devnull, os.O_RDONLY)
        await asyncio.sleep(0.01)
        os.close(descriptor)
        return await super().step(action)


class Database(Good):
    """A database in a file, which may be closed however far its set-up has come."""

    seconds: ClassVar = 0.02
    file: str = ""
    squares: sqlite3.Connection | None = None

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        result = await super().reset(seed=seed, options=options)
        await asyncio.sleep(self.seconds)
        return result

    def setup(self) -> None:
        descriptor, self.file = tempfile.mkstemp(suffix=".db")
        os.close(descriptor)
        time.sleep(self.seconds)
        self.squares = sqlite3.connect(self.file, check_same_thread=False)

    @tool
    def square(self, n: int) -> int:
        """Square a number."""
        assert self.squares is not None
        slow = "WITH RECURSIVE c(x) AS (VALUES(1) UNION ALL SELECT x + 1 FROM c WHERE x < 2000) SELECT count(*) FROM c"
        self.squares.execute(slow).fetchone()
        return int(self.squares.execute("SELECT ? * ?", (n, n)).fetchone()[0])

    async def close(self) -> None:
        if self.squares is not None:
            self.squares.close()
        if self.file:
            Path(self.file).unlink(missing_ok=True)


class NeedsItsWholeReset(Database):
    ready: bool | None = False

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.ready = None
        result = await super().reset(seed=seed, options=options)
        self.ready = True
        return result

    async def close(self) -> None:
        await super().close()
        assert self.ready is not None, "not ready"


class ForgetsItsFile(Database):
    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        result = await super().reset(seed=seed, options=options)
        self.is_whole = True
        return result

    async def close(self) -> None:
        if hasattr(self, "is_whole"):
            await super().close()


class RunsOn(Database):
    """Its set-up cannot be stopped."""

    def setup(self) -> None:
        super().setup()
        time.sleep(0.4)


@asynccontextmanager
async def unavailable() -> AsyncIterator[None]:
    raise SandboxUnavailable("no sandbox can be had here")
    yield


@asynccontextmanager
async def stays_open() -> AsyncIterator[None]:
    yield
    raise RuntimeError("it is stuck")


class CannotOpen(Good):
    shared: ClassVar = {"thing": f"{__name__}:unavailable"}


class CannotClose(Good):
    shared: ClassVar = {"thing": f"{__name__}:stays_open"}


class GeneratorTool(Good):
    """Its tool returns what is no text."""

    @tool
    def square(self, n: int) -> Any:
        """Square a number."""
        return (n * n for _ in range(1))


class AddressTool(Good):
    """Its tool returns a text that differs between processes."""

    @tool
    def square(self, n: int) -> str:
        """Square a number."""
        return f"{n * n} by {object()}"


class EndlessSchema(Plain):
    """Its hand-written schema is no JSON."""

    parameters: ClassVar = {"type": "object", "properties": {"x": {"type": "number", "default": float("inf")}}}
    tools = ({"type": "function", "function": {"name": "far", "description": "Go.", "parameters": parameters}},)


BROKEN: dict[type[Env], tuple[str, str]] = {
    GeneratorTool: ("contract", "the tool square returned a generator, which is not run yet: return a text"),
    AddressTool: ("contract", "an address in memory differs between processes"),
    EndlessSchema: ("contract", "the parameters of the tool far cannot be written as JSON"),
    GlobalRandom: ("same seed", "with the same seed the task"),
    SeededGlobalRandom: ("same seed", "among 64 at once"),
    SharedState: ("same seed", "among 64 at once"),
    EditsWhatItKeeps: ("same seed", "an episode edits in place what the class or a module keeps"),
    changed(lambda *r: (*r[:4], {**r[4], "rewards": {"right": 0.5, "brief": 0.25}})): (
        "breakdown",
        "the parts of the reward add up to 0.75, and the reward is 1",
    ),
    opened(lambda self, messages, info: ([*messages, {"role": "user", "content": f"{self.episodes}."}], info)): (
        "same seed",
        "set all of its state in reset()",
    ),
    IgnoresSeed: ("two seeds", "call self.seed(seed) first"),
    drawn(lambda split, n, seed: good_tasks(split, n, 0), NothingDrawn): ("two seeds", "the same tasks in the same"),
    changed(lambda *r: (r[0], float("nan"), *r[2:])): ("contract", "the reward nan"),
    changed(lambda *r: (*r[:3], r[4])): ("contract", "return (messages, reward, terminated, truncated, info)"),
    changed(lambda *r: (*r[:2], 1, *r[3:])): ("contract", "terminated=1"),
    changed(lambda *r: ([{"role": "assistant", "content": "?"}], *r[1:])): ("contract", "return only the new messages"),
    changed(lambda *r: (*r[:4], {"outcome": "won"})): ("contract", "info['outcome']='won'"),
    UNANSWERED: ("contract", "left the call square unanswered"),
    BadSchema: ("contract", "draft 2020-12"),
    opened(lambda self, messages, info: ([m["content"] for m in messages], info)): ("contract", "message 0 is a str"),
    StepsWithoutReset: ("reset before step", "raise forge_env.EnvError"),
    advised(lambda messages: {"role": "assistant", "content": "1"}): ("gold answers", "the expert scores 0"),
    advised(lambda messages: messages[99]): ("gold answers", "expert (contrib/check/tests/test_check.py:"),
    advised(lambda messages: sys.exit("no expert today")): ("gold answers", "SystemExit: no expert today"),
    scored(lambda answer, target: answer in ("", target)): ("wrong answers", "an empty answer scores 1"),
    scored(lambda answer, target: answer == target or "squared" in answer): ("wrong answers", "the prompt itself"),
    scored(lambda answer, target: answer.isdecimal() and 3 < len(answer) < 10): ("wrong answers", "task's gold"),
    scored(lambda answer, target: answer in ("nan", target)): ("constants", "the constant 'nan' scores 1 on the task"),
    scored(lambda answer, target: (answer == target) or 0.85 * (answer == "0")): ("constants", "'0' scores 0.85"),
    EchoScores: ("wrong answers", "the last line of the question scores 1"),
    AnyTargetScores: ("wrong answers", "another task's target scores 1"),
    SeedOverwritten: ("contract", "sets self.seed to 7, and Env.seed is a method"),
    NoReward: ("reward", "nothing is ever rewarded"),
    TooMany: ("same seed", "timed out'): it is too slow here"),
    scored(lambda answer, target: target in answer): ("cheats", "the cheat 0"),
    TURNS_SCORE: ("limits", "an agent that never stops scores 1.5"),
    BreaksOnMalformed: ("malformed actions", "whose arguments are not JSON ends the episode"),
    drawn(lambda split, n, seed: good_tasks("train", n, seed)): ("tasks", "train and test share 2 tasks"),
    drawn(lambda split, n, seed: [replace(t, id=f"{split}-{t.id}") for t in good_tasks("train", n, seed)]): (
        "tasks",
        "has the prompt of a train task",
    ),
    drawn(lambda split, n, seed: good_tasks(split, n, time.monotonic_ns())): ("tasks", "other tasks when called again"),
    drawn(lambda split, n, seed: good_tasks(split, 1, seed)): ("tasks", "returned 1 tasks"),
    drawn(lambda split, n, seed: [replace(t, metadata={"even": {True}}) for t in good_tasks(split, n, seed)]): (
        "tasks",
        "its metadata cannot be written as JSON",
    ),
    ClosesOnce: ("close", "called twice: close ("),
    BlocksTheLoop: ("event loop", "step() blocks the event loop"),
    HoldsOn: ("leaks", "does not end: let asyncio.CancelledError pass"),
    LeaksWhenCancelled: ("leaks", "file descriptors"),
    NeedsItsWholeReset: ("leaks", "after a reset() that is cancelled in its middle, close ("),
    ForgetsItsFile: ("leaks", "temporary files"),
    RunsOn: ("leaks", "runs on in setup, since Python cannot stop a C call, and keeps its instance open"),
}
"""Which check fails, and what its sentence says."""


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Undo what the broken environments leave behind on purpose."""
    yield
    while Leaks.undo:
        Leaks.undo.pop()()


def be_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set short limits, for an environment that leaks, blocks or hangs: they find it as well."""
    monkeypatch.setattr(leaks, "SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(leaks, "CANCEL_SECONDS", 0.5)
    monkeypatch.setattr(env_calls, "HELD_SECONDS", 0.1)


def verdicts(report: CheckReport) -> dict[str, bool | None]:
    return {row.name: row.ok for row in report.rows}


def failures(report: CheckReport) -> dict[str, str]:
    return {row.name: row.detail for row in report.rows if row.ok is False}


async def test_a_question_that_meets_another_state_is_another_task() -> None:
    report = await run_checks(EnvFactory(OneQuestionManyTables), tasks=3, only=["tasks"])
    assert verdicts(report) == {"tasks": True}, failures(report)
    assert "; 3 test tasks have the prompt of a train task, with another target or metadata" in report.rows[0].detail


async def test_what_a_sandbox_enforces_is_named() -> None:
    report = await run_checks(make("code_exec"), tasks=1, only=["isolation"])
    if OPEN in failures(report):
        pytest.skip(failures(report)[OPEN])  # no sandbox can be had here
    assert verdicts(report)["isolation"] is True, failures(report)
    row = next(row for row in report.rows if row.name == "isolation")
    enforced = "sandbox: ", "seccomp", "network namespace", "capabilities dropped", "host watch denied", "sigpending"
    for words in enforced:
        assert words in row.detail
    data = json.loads(json.dumps(report.to_dict()))["isolation"]["sandbox"]
    assert data["seccomp"] and data["host_watch_denied"] and {"rtprio", "stack"} <= set(data["limits"])


async def test_a_sandbox_that_isolates_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_ENV_SANDBOX", "subprocess")
    monkeypatch.setenv("FORGE_ENV_ALLOW_INSECURE_SANDBOX", "1")
    report = await run_checks(make("code_exec"), tasks=1, only=["isolation"])
    assert failures(report).keys() == {"isolation"} and "sandbox isolates nothing" in failures(report)["isolation"]


class Worker:
    """A worker that confines less than it could, and says so."""

    def enforced(self) -> dict[str, Any]:
        return {"seccomp": False, "limits": ["core"], "missing": ["its system calls are not filtered"]}


@asynccontextmanager
async def open_a_worker() -> AsyncIterator[Worker]:
    yield Worker()


class HasAWorker(Good):
    """Scores in a worker."""

    shared: ClassVar = {"scorer": f"{__name__}:open_a_worker"}


async def test_what_a_worker_does_not_enforce_is_named() -> None:
    report = await run_checks(EnvFactory(HasAWorker), tasks=1, only=["isolation"])
    row = next(row for row in report.rows if row.name == "isolation")
    assert row.ok and row.detail == "scorer: limits of core; not enforced: seccomp; its system calls are not filtered"
    assert report.to_dict()["isolation"]["scorer"]["seccomp"] is False


async def test_a_good_environment_passes_every_check() -> None:
    begun: list[str] = []
    report = await run_checks(EnvFactory(Good), tasks=2, progress=begun.append)
    assert verdicts(report) == dict.fromkeys(NAMES, True), failures(report)
    assert report.ok
    assert sorted(begun) == sorted(NAMES)
    assert next(row.detail for row in report.rows if row.name == "reset before step").endswith("raises EnvError")
    assert report.reset is not None and report.step is not None
    assert 0 < report.step.p50 <= report.step.p95


@pytest.mark.parametrize(
    ("env", "name"), [(NothingDrawn, "two seeds"), (EditsItsOwn, "same seed"), (AwaitedExpert, "gold answers")]
)
async def test_what_an_environment_may_do(env: type[Env], name: str) -> None:
    """Draw nothing where its tasks differ, edit its own copies in place, and have a coroutine for an expert."""
    report = await run_checks(EnvFactory(env), tasks=2, only=[name])
    assert report.ok and verdicts(report)[name] is True, failures(report)


class ChoosyExpert(Good):
    """Its expert solves no tasks of this kind."""

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        raise UserError("there is no expert for the tasks of a file")


async def test_an_expert_may_refuse_the_tasks() -> None:
    report = await run_checks(EnvFactory(ChoosyExpert), tasks=2, only=["gold answers"])
    [row] = [row for row in report.rows if row.name == "gold answers"]
    assert (row.ok, row.detail) == (None, "there is no expert for the tasks of a file")


async def test_without_expert_and_cheats_their_checks_are_skipped_with_a_reason() -> None:
    report = await run_checks(EnvFactory(Plain), tasks=2, only=["wrong answers", "cheats"])
    skipped = {row.name: row.detail for row in report.rows if row.ok is None}
    assert report.ok and failures(report) == {}
    assert skipped.keys() == {"gold answers", "cheats"}
    assert "define the staticmethod expert" in skipped["gold answers"]


def used_the_tool(messages: Sequence[Message]) -> float:
    return 0.2 * any(message["role"] == "tool" for message in messages)


def numbers_are_close(answer: str, target: str) -> float:
    return 0.5 / (1 + abs(int(answer) - int(target)) / 1e6) if answer.isdecimal() else 0.0


@pytest.mark.parametrize(
    ("function", "weight", "words"),
    [
        (lambda answer: float("<answer>" in answer), 0.1, "the constant '<answer>0</answer>' earns 0.1"),
        (lambda answer: float(answer.startswith("\\boxed")), 0.3, "boxed{0}' earns 0.3"),
        (lambda answer: float("</think>" in answer), 0.25, "Let me think step by step."),
        (lambda answer: min(len(answer), 500) / 500, 0.2, "earns 0.2"),
        (lambda answer: float(0 < len(answer) < 20), 0.1, "the constant '0' earns 0.1"),
        (lambda answer: float(answer[:2] == '{"'), 0.1, '"answer": 0'),
        (lambda answer: float("```" in answer), 0.1, "python"),
        (lambda answer: 1.0, 0.2, "the constant '0' earns 0.2"),
        (lambda answer: float(answer.isdecimal() and len(answer) > 3), 0.4, "the expert's answer to the task"),
        (used_the_tool, 1.0, "one call of square and the answer '0' earns 0.2"),
        (numbers_are_close, 1.0, "earns 0."),
        (lambda messages: 1.0 - (len(messages) > 4), 0.3, "earns 0.3"),
    ],
)
async def test_a_part_that_needs_no_work_is_a_warning_with_what_it_pays(
    function: Any, weight: float, words: str
) -> None:
    function.__name__ = "form"

    class Pays(Good):
        rubric = ((function, weight),)

        @staticmethod
        def success(value: float) -> bool:
            return value >= 1.0

    report = await run_checks(EnvFactory(Pays), tasks=3, only=["partial credit"])
    [row] = [row for row in report.rows if row.name == "partial credit"]
    assert report.ok and report.warnings == ("partial credit",) and (row.ok, row.is_warning) == (True, True)
    assert words in row.detail and "of the part 'form' on average, on " in row.detail, row.detail
    assert "'right'" not in row.detail, "nothing but the right answer earns it"


async def test_what_steps_pay_is_a_warning_too() -> None:
    class AnyAnswerPays(Plain):
        def step(self, action: Action) -> Any:
            messages, value, *rest = super().step(action)
            return messages, value or 0.25, *rest

    for env, words in {
        TURNS_SCORE: "one call of square and the answer '0' earns 0.3 of the rewards of steps on average",
        AnyAnswerPays: "the constant '0' earns 0.25 of the reward on average, on 2 of 2 tasks whose answer it is not",
    }.items():
        report = await run_checks(EnvFactory(env), tasks=2, only=["partial credit"])
        [row] = [row for row in report.rows if row.name == "partial credit"]
        assert row.is_warning and words in row.detail, row.detail


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["alone", "whole"])
@pytest.mark.parametrize("env", BROKEN, ids=[f"{name}: {says:.40}" for name, says in BROKEN.values()])
async def test_a_broken_environment_fails_exactly_its_check(
    env: type[Env], is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, says = BROKEN[env]
    if name == "leaks":
        be_impatient(monkeypatch)
    if name == "event loop":
        monkeypatch.setattr(event_loop, "MAX_STALL_SECONDS", 0.02)
    report = await run_checks(EnvFactory(env), tasks=2, only=[] if is_whole else [name])
    assert failures(report).keys() == {name}, failures(report)
    assert not report.ok
    detail = failures(report)[name]
    assert says in detail
    assert "\n" not in detail


class OneThread(Plain):
    """Its connection belongs to the thread that called `reset`."""

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.squares = sqlite3.connect(":memory:")
        return super().reset(seed=seed, options=options)

    def step(self, action: Action) -> Any:
        if self.task is not None:
            self.squares.execute("select 1")
        return super().step(action)


class OneThreadTool(Good):
    """The same in a tool, whose errors are told to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.squares = sqlite3.connect(":memory:")

    @tool
    def square(self, n: int) -> int:
        """Square a number."""
        return int(self.squares.execute("select ? * ?", (n, n)).fetchone()[0])


async def test_a_database_in_a_file_passes_while_its_methods_are_cancelled() -> None:
    report = await run_checks(EnvFactory(Database), tasks=1, only=["threads", "leaks"])
    assert report.ok and failures(report) == {}


@pytest.mark.parametrize("env", [OneThread, OneThreadTool])
async def test_what_belongs_to_one_thread_is_named_with_its_remedy(env: type[Env]) -> None:
    report = await run_checks(EnvFactory(env), tasks=1, only=["threads"])
    [(row, detail)] = failures(report).items()
    assert row in ("contract", "threads"), "the first one, if free threads of other tests serve its calls"
    assert "check_same_thread=False, or open and use it in methods that are async def" in detail


class Hangs(Good):
    async def step(self, action: Action) -> Any:
        await asyncio.Event().wait()


class HangsInSetup(Good):
    async def setup(self) -> None:
        await asyncio.Event().wait()


class HangsLater(Good):
    made = 0

    async def setup(self) -> None:
        type(self).made += 1
        if self.made > 3:
            await asyncio.Event().wait()


@pytest.mark.parametrize("env", [Hangs, HangsInSetup, HangsLater])
async def test_what_hangs_fails_whatever_the_budget(env: type[Env], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "HANG_SECONDS", 0.3)
    report = await run_checks(EnvFactory(env), tasks=1, seconds=1.5)
    assert "after 0 episodes: find the call that hangs, or raise the budget" in next(iter(failures(report).values()))
    assert not report.ok


class MoveWins(Plain):
    """A game without an expert, whose first legal move wins."""

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        return [Task(prompt=({"role": "user", "content": f"Move 0 or 1. {split} {i}"},)) for i in range(count)]

    def step(self, action: Action) -> Any:
        return [], float(action.text.strip()[-1:] in ("0", "1")), True, False, {}


class AllWin(MoveWins):
    def step(self, action: Action) -> Any:
        return [], 1.0, True, False, {}


async def test_a_move_that_wins_is_no_cheat_and_a_reward_for_anything_is_one() -> None:
    checks = ["wrong answers", "constants"]
    assert failures(await run_checks(EnvFactory(MoveWins), tasks=2, only=checks)) == {}
    wins = failures(await run_checks(EnvFactory(AllWin), tasks=2, only=checks))
    assert "each of 16 constants succeeds" in wins["constants"]


async def test_what_the_budget_ends_is_not_checked_and_never_passed() -> None:
    class Slow(Good):
        async def step(self, action: Action) -> Any:
            await asyncio.sleep(0.02)
            return await super().step(action)

    report = await run_checks(EnvFactory(Slow), tasks=8, seconds=1.0)
    assert report.ok and report.not_checked
    rows = {row.name: row for row in report.rows}
    assert all(rows[name].ok is None for name in report.not_checked)
    assert report.to_dict()["not_checked"] == list(report.not_checked)


async def test_64_at_once_are_fewer_where_they_do_not_fit() -> None:
    class Slow(Plain):
        async def step(self, action: Action) -> Any:
            await asyncio.sleep(0.05)
            return super().step(action)

    row = (await run_checks(EnvFactory(Slow), tasks=1, only=["same seed"], seconds=6.0)).rows[-2]
    assert row.ok and row.detail.endswith("at once, as 64 do not fit into the budget")


async def test_chosen_checks_run_with_those_that_they_need() -> None:
    begun: list[str] = []
    played: list[int] = []
    report = await run_checks(
        EnvFactory(Good), tasks=1, only=["Wrong-Answers"], progress=begun.append, on_episode=played.append
    )
    assert begun == ["tasks", OPEN, "contract", "reward", "gold answers", "wrong answers"]
    assert [row.name for row in report.rows] == [*(name for name in begun if name != OPEN), OPEN]
    assert report.ok and played == list(range(1, len(played) + 1)) and len(played) > 5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tasks": 0}, "tasks is 0; a check needs 1"),
        ({"only": ["gold"]}, "no check 'gold'. .*gold answers"),
        ({"seconds": 0.0}, "seconds is 0; .* above 0 s"),
        ({"seconds": float("nan")}, "seconds is nan; .* above 0 s"),
    ],
)
async def test_mistakes_in_the_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        await run_checks(EnvFactory(Good), **settings)


async def test_every_kind_of_leak_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    be_impatient(monkeypatch)
    failed = failures(await run_checks(EnvFactory(Leaks), tasks=2, only=["leaks"]))
    detail = failed.pop("leaks")
    assert not failed
    for named in ("threads (Thread-", os.devnull, "sleep ", "tail ", "asyncio tasks (Event.wait", ".leaked"):
        assert named in detail


@pytest.mark.parametrize(("env", "reason"), [(CannotOpen, "no sandbox"), (CannotClose, "it is stuck")])
async def test_what_cannot_be_opened_or_closed_is_a_row(env: type[Env], reason: str) -> None:
    report = await run_checks(EnvFactory(env), tasks=2, only=["contract"])
    assert reason in failures(report)["open and close"]
    assert verdicts(report)["contract"] is (None if env is CannotOpen else True)


SHOUTS = """
from contrib.check.tests.test_check import Plain
from forge_env import EnvError

class Shouts(Plain):
    def step(self, action):
        raise EnvError("two\\nlines, \\x1b[2J and \\ud800")
"""


async def test_a_sentence_is_one_line_that_any_terminal_can_show(tmp_path: Path) -> None:
    (tmp_path / "shouts.py").write_text(SHOUTS)
    factory = EnvFactory(load(f"{tmp_path / 'shouts.py'}:Shouts"))
    detail = failures(await run_checks(factory, tasks=1))["contract"]
    assert re.fullmatch(r"step \(.*shouts.py:\d+\): two lines, \\x1b\[2J and \\ud800", detail), detail


async def test_no_temporary_folder_is_left_and_the_old_one_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = tempfile.gettempdir(), os.environ.get("TMPDIR")
    await run_checks(EnvFactory(Plain), tasks=1, only=["leaks"])
    assert (tempfile.gettempdir(), os.environ.get("TMPDIR")) == before
    assert list(tmp_path.iterdir()) == []


async def test_what_cannot_be_cancelled_is_waited_for_no_longer_than_its_time() -> None:
    released = asyncio.Event()

    async def stubborn() -> None:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                pass

    with pytest.raises(EnvTimeout, match="close\\(\\) took longer than 0.01 s"):
        await with_timeout("close()", stubborn(), 0.01)
    released.set()


def test_a_report_is_plain_data() -> None:
    rows = (CheckRow(name="tasks", ok=True, detail="8", seconds=0.5), CheckRow(name="cheats", ok=None, detail="none"))
    report = CheckReport(name="x", rows=rows, reset=Latency(p50=1.0, p95=2.0))
    assert report.ok
    row = {"name": "tasks", "ok": True, "detail": "8", "seconds": 0.5, "is_warning": False, "unfinished": False}
    skipped = row | {"name": "cheats", "ok": None, "detail": "none", "seconds": 0.0}
    whole = {"name": "x", "ok": True, "warnings": [], "not_checked": [], "rows": [row, skipped]}
    whole |= {"reset": {"p50": 1.0, "p95": 2.0}, "step": None, "isolation": {}}
    assert json.loads(json.dumps(report.to_dict())) == whole
    assert not replace(report, rows=(*rows, CheckRow(name="close", ok=False, detail="no"))).ok


def test_percentiles_are_those_of_the_nearest_rank() -> None:
    assert Latency.of([]) is None
    assert Latency.of([0.002]) == Latency(p50=2.0, p95=2.0)
    assert Latency.of([i / 1000 for i in range(100, 0, -1)]) == Latency(p50=50.0, p95=95.0)


class Node(BaseModel):
    value: float
    children: list[Node] = []


def some_tool(a: int, b: Literal["x", "y"], c: list[int], d: Node, e: bool | None, i: int = 3) -> str:
    """Take one of everything."""
    return ""


def test_sample_arguments_fit_the_schema_and_the_tool() -> None:
    made = make_tool(some_tool)
    arguments = sample_arguments([made.spec], "some_tool")
    jsonschema.validate(arguments, dict(made.parameters), cls=jsonschema.Draft202012Validator)
    assert made.arguments(arguments)["d"] == Node(value=1.0)
    assert "i" not in arguments, "only what is required"
