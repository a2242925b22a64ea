"""Toolbox: order, parallel calls, places, retries, time-outs that stop the work, faults, and what is recorded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pydantic
import pytest

from benchmarks.simulated_time import World
from benchmarks.simulated_time import run as simulated
from forge_env.core.errors import EnvError, SandboxError
from forge_env.core.tools import make_tool, tool
from forge_env.core.types import ToolCall
from forge_env.tool_env.tool_env import Toolbox
from forge_env.utils.deadlines import Deadline
from tests.helpers.waiting import DEADLINE_S


def box(*functions: Callable[..., Any]) -> Toolbox:
    tools = [make_tool(function) for function in functions]
    return Toolbox({each.name: each for each in tools})


def giving(value: Any, **options: Any) -> Toolbox:
    """A box with the tool `give`, which returns the value or raises it."""

    @tool(**options)
    def give() -> Any:
        """Give it."""
        if isinstance(value, Exception):
            raise value
        return value

    return box(give)


def calls(*names: str, **arguments: Any) -> list[ToolCall]:
    return [ToolCall(id=f"call_{i}", name=name, arguments=arguments) for i, name in enumerate(names)]


async def said(toolbox: Toolbox, *names: str, **arguments: Any) -> list[str]:
    messages, _ = await toolbox.answer(calls(*names, **arguments))
    return [message["content"] for message in messages]


async def test_calls_run_one_after_another_unless_they_are_declared_parallel() -> None:
    running, most = 0, {"one": 0, "many": 0}

    async def work(kind: str) -> str:
        nonlocal running
        running += 1
        most[kind] = max(most[kind], running)
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1
        return kind

    @tool
    async def one() -> str:
        """Work."""
        return await work("one")

    @tool(parallel=True)
    async def many() -> str:
        """Work."""
        return await work("many")

    assert await said(box(one, many), "one", "one", "many", "many", "many", "one") == [
        "one", "one", "many", "many", "many", "one",
    ]  # fmt: skip
    assert most == {"one": 1, "many": 3}


async def test_parallel_calls_that_need_each_other_meet() -> None:
    barrier = threading.Barrier(3)

    @tool(parallel=True)
    def meet() -> int:
        """Wait for the others."""
        return barrier.wait(DEADLINE_S)

    assert sorted(await said(box(meet), "meet", "meet", "meet")) == ["0", "1", "2"]


def test_places_are_shared_by_all_episodes_and_waiting_for_one_does_not_count() -> None:
    """In simulated time: on a busy machine, a real clock goes on where the work does not."""
    running, most = 0, 0
    full, release = asyncio.Event(), asyncio.Event()

    @tool(concurrency=2, timeout=5.0)
    async def scarce() -> str:
        """Use a place."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            full.set()
        try:
            await release.wait()
        finally:
            running -= 1
        return "done"

    scarce_tool = make_tool(scarce)

    async def episode(seconds: float) -> list[str]:
        return await Deadline(seconds).run(said(Toolbox({"scarce": scarce_tool}), "scarce"))

    async def holders() -> None:
        """Two that use their time up in the only two places; then the places are worth having."""
        ends = await asyncio.gather(episode(0.3), episode(0.3), return_exceptions=True)
        assert [type(end) for end in ends] == [TimeoutError, TimeoutError]
        release.set()

    async def play() -> None:
        holding = asyncio.create_task(holders())
        await full.wait()
        # the others have far less time than they wait for
        assert await asyncio.gather(*(episode(0.1) for _ in range(4))) == [["done"]] * 4
        await holding

    simulated(World(), play())
    assert most == 2


def test_the_pause_before_a_further_attempt_does_not_count() -> None:
    @tool(retries=3, idempotent=True)
    async def weak() -> None:  # a loop in simulated time waits for no thread
        """Fail."""
        raise ValueError("weak")

    assert simulated(World(), Deadline(0.01).run(said(box(weak), "weak"))) == ["Error: ValueError: weak"]


async def test_a_call_out_of_time_is_told_and_its_work_is_stopped() -> None:
    stopped = asyncio.Event()
    thread_began, thread_stopped = threading.Event(), threading.Event()

    @tool(timeout=0.05)
    async def coroutine() -> None:
        """Never end."""
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    @tool(timeout=0.05)
    def thread() -> None:
        """Never end."""
        thread_began.set()
        try:
            while True:
                pass
        finally:
            thread_stopped.set()

    toolbox = box(coroutine, thread)
    assert await said(toolbox, "coroutine") == ["Error: coroutine took longer than 0.05 s and was stopped."]
    assert stopped.is_set()
    messages, [use] = await toolbox.answer(calls("thread"))
    assert messages[0]["content"] == "Error: thread took longer than 0.05 s and was stopped."
    assert (use.name, use.error) == ("thread", "timeout") and use.seconds >= 0.05
    # On a busy machine it may not have begun in time; then it never does.
    assert not thread_began.is_set() or await asyncio.to_thread(thread_stopped.wait, DEADLINE_S)


async def test_an_idempotent_tool_is_tried_again() -> None:
    attempts: list[str] = []

    @tool(retries=2, idempotent=True)
    def flaky(fails: int) -> str:
        """Fail a few times."""
        attempts.append("x")
        if len(attempts) <= fails:
            raise ConnectionError("gone")
        return "here"

    assert await said(box(flaky), "flaky", fails=2) == ["here"]
    assert len(attempts) == 3
    attempts.clear()
    assert await said(box(flaky), "flaky", fails=9) == ["Error: ConnectionError: gone"]
    assert len(attempts) == 3


async def test_faults_are_not_told_to_the_model() -> None:
    with pytest.raises(EnvError, match=r"tool give \(.*test_toolbox.py:\d+\): KeyError: 'the table is gone'"):
        await said(giving(KeyError("the table is gone"), fatal=(KeyError,)), "give")
    underneath = giving(SandboxError("the sandbox is gone"), parallel=True)
    for names in (["give"], ["give", "give"]):
        with pytest.raises(SandboxError, match="the sandbox is gone"):
            await said(underneath, *names)


@dataclass
class Point:
    x: float


class Model(pydantic.BaseModel):
    name: str


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *(("text", "text"), (3, "3"), (0.5, "0.5"), (True, "true"), (None, "null"), (float("nan"), "nan")),
        *((["ü", float("nan")], '["ü",NaN]'), ({"a": [1, None]}, '{"a":[1,null]}'), ("\ud800", "\ud800")),
        *((Point(1.0), '{"x":1.0}'), (Model(name="n"), '{"name":"n"}'), ({"b", "a", "c"}, '["a","b","c"]')),
        ({"tags": frozenset({2, 1}), "on": (date(2024, 3, 1), Path("/a"))}, '{"tags":[1,2],"on":["2024-03-01","/a"]}'),
        *((b"plain", "plain"), (b"\x89PNG\xff", "[5 bytes]"), ([bytearray(b"\0")], '["[1 bytes]"]')),
        *((datetime(2024, 3, 1, 12), "2024-03-01T12:00:00"), (Decimal("1.10"), "1.10"), (Colour.RED, "red")),
        ([Decimal("1.10"), Fraction(1, 3)], '["1.10","1/3"]'),
        ({Colour.RED: Colour.RED, 1: 2, (1, "a"): None}, '{"red":"red","1":2,"[1,\\"a\\"]":null}'),
        *((numpy.array([[1, 2]]), "[[1,2]]"), (numpy.float32(0.5), "0.5"), ({"a": 1}.values(), "[1]")),
        *(({"n": numpy.int64(3), "b": numpy.bool_(True)}, '{"n":3,"b":true}'), (range(3), "[0,1,2]")),
    ],
)
async def test_results_are_text_or_json(value: Any, text: str) -> None:
    assert await said(giving(value), "give") == [text]


class Nameless:
    pass


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ((i for i in range(3)), "a generator, which is not run yet"),
        ([map(str, [1])], "a map, which is not run yet"),
        (Nameless(), "a Nameless, which has no text of its own"),
        ({"a": [Nameless()]}, "a Nameless, which has no text of its own"),
        (len.__call__, "a method-wrapper with an address in memory as its text"),
        (Nameless, "the class Nameless"),
        ({1: "a", "1": "b"}, "a dict with two keys that have the same text"),
    ],
)
async def test_a_result_that_is_no_text_is_one_sentence_for_the_author(value: Any, problem: str) -> None:
    with pytest.raises(EnvError, match=f"the tool give returned {problem}: return a text, a number, a list or a dict"):
        await said(giving(value), "give")


async def test_long_results_and_long_errors_are_cut() -> None:
    assert await said(giving("0123456789abc", max_output=10), "give") == ["0123456789\n[3 more characters]"]
    [error] = await said(giving(ValueError("x" * 1000), max_output=10), "give")
    assert len(error) < 50


async def test_what_became_of_each_call_is_recorded() -> None:
    toolbox = giving(TimeoutError("the other side"))
    messages, uses = await toolbox.answer([*calls("give", "nothing"), *calls("give", depth=1)])
    names = [("give", "raised"), ("nothing", "unknown_tool"), ("give", "bad_arguments")]
    assert [(use.name, use.error) for use in uses] == names
    assert messages[0]["content"] == "Error: TimeoutError: the other side", "it is an error like any other"
    _, [use] = await giving("fine").answer(calls("give"))
    assert (use.name, use.error) == ("give", "")


async def test_cancelling_a_turn_gives_the_places_back() -> None:
    began = asyncio.Event()

    @tool(concurrency=1)
    async def hold(for_ever: bool) -> str:
        """Hold a place."""
        began.set()
        if for_ever:
            await asyncio.Event().wait()
        return "free"

    toolbox = box(hold)
    task = asyncio.create_task(said(toolbox, "hold", for_ever=True))
    await began.wait()
    waiting = asyncio.create_task(said(toolbox, "hold", for_ever=False))
    await asyncio.sleep(0)
    task.cancel()
    assert await asyncio.wait_for(waiting, DEADLINE_S) == ["free"]
