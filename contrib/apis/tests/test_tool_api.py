"""tool_api with a real shop, real functions, a real service and MCP server: the state and the answers score."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fastapi import FastAPI

from agents.scripted import ScriptedAgent, say_nothing
from contrib.apis.env import ToolApi
from contrib.apis.shop.database import memory_database
from contrib.apis.shop.operations import OPERATIONS, perform
from contrib.apis.shop.task_kinds import KINDS
from contrib.apis.shop.tasks import shop_of
from contrib.apis.tasks import _NEEDED, shop_operations
from envs.messages import call, say
from forge_env.core.episode import Episode
from forge_env.core.errors import EnvError, UserError
from forge_env.core.types import Action, EpisodeLimits, Message, Outcome, Task
from forge_env.evaluation.digests import environment_digests
from forge_env.registry import registry
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode
from tests.envs.serving import serve
from tests.helpers.scripts import tool_results

LIMITS = EpisodeLimits()

FUNCTIONS = '''
import itertools
from typing import Literal

_count = itertools.count()

def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

async def join(words: list[str], separator: Literal["-", "+"] = "-") -> str:
    """Join words."""
    return separator.join(words)

def divide(a: int, b: int) -> float:
    """Divide."""
    return a / (b % 3)

def count(step: int) -> int:
    """Count."""
    return next(_count) + step

def refuse(a: int) -> int:
    """Refuse."""
    raise ValueError("never")

def nothing(a: int) -> str:
    """Say nothing."""
    return ""

def get_order(order_id: int) -> str:
    """An operation of the shop has the same name."""
    return "order"

def starts_with(response: str, target: str) -> float:
    return float(response.startswith(target))
'''


@pytest.fixture
def functions(tmp_path: Path) -> str:
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    return str(path)


def factory(**options: Any) -> EnvFactory:
    return EnvFactory(ToolApi, name="tool_api", **options)


def playing(*script: Message) -> ScriptedAgent:
    """Says these messages one after another, then the last one again."""

    def play(messages: list[Message]) -> Message:
        turn = sum(message["role"] == "assistant" for message in messages)
        return script[min(turn, len(script) - 1)]

    return ScriptedAgent(play)


async def play(opened: EnvFactory, agent: ScriptedAgent, task: Task, limits: EpisodeLimits = LIMITS) -> Episode:
    return await run_episode(opened, agent, task, seed=0, episode_id=task.id, limits=limits)


async def play_all(opened: EnvFactory, agent: ScriptedAgent, tasks: Sequence[Task]) -> list[Episode]:
    return await asyncio.gather(*(play(opened, agent, task) for task in tasks))


EXPERT = ScriptedAgent(ToolApi.expert)
NULL = ScriptedAgent(say_nothing)


# ---- the shop ----


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop() -> AsyncIterator[EnvFactory]:
    """All of the shop's operations, for tasks of any level."""
    async with factory(level=3, operations=["*"]) as opened:
        yield opened


@pytest.mark.asyncio(loop_scope="module")
async def test_the_expert_solves_every_kind_of_a_level_and_saying_nothing_solves_none(shop: EnvFactory) -> None:
    tasks = [*shop.tasks(count=24), *shop.tasks("test", count=8)]
    assert {task.kind for task in tasks} == {name for name, kind in KINDS.items() if kind.level == 3}
    assert all(task.kind == task.metadata["kind"] for task in tasks)
    for episode in await play_all(shop, EXPERT, tasks):
        assert (episode.outcome, episode.reward, episode.rewards) == (Outcome.SCORED, 1.0, {"state": 1.0})
    assert {episode.reward for episode in await play_all(shop, NULL, tasks)} == {0.0}
    # Where nothing is to be changed, one must at least have looked at the order.
    idle = [task for task in tasks if not task.target]
    assert {task.kind for task in idle} == {"refund_if", "settle"}
    beside = playing(call("get_shop"), call("get_order", order_id=1), say("Done."))
    assert {episode.reward for episode in await play_all(shop, beside, idle)} == {0.0}


def called_by_the_expert(task: Task) -> set[str]:
    """The operations that the expert calls, on the shop without HTTP."""
    messages, names = list(task.prompt), set()
    with memory_database(shop_of(task)) as db:
        while "tool_calls" in (message := ToolApi.expert(messages)):
            called = message["tool_calls"][0]["function"]
            names.add(called["name"])
            result = perform(db, called["name"], called["arguments"])
            messages += [message, {"role": "tool", "content": json.dumps(result)}]
    return names


@pytest.mark.parametrize("kind", KINDS)
def test_the_operations_that_a_kind_is_said_to_need_are_those_that_it_needs(kind: str) -> None:
    tasks = ToolApi.tasks(count=24, level=KINDS[kind].level, operations=_NEEDED[kind])
    called = [called_by_the_expert(task) for task in tasks if task.metadata["kind"] == kind]
    assert set().union(*called) == set(_NEEDED[kind])


def test_by_default_a_level_has_the_tasks_that_its_tools_suffice_for() -> None:
    tasks = ToolApi.tasks(count=20)
    assert {task.metadata["kind"] for task in tasks} == {"cancel", "restock"}
    assert tasks == ToolApi.tasks(count=20) != ToolApi.tasks(count=20, seed=1)
    assert not {t.id for t in ToolApi.tasks(count=99)} & {t.id for t in ToolApi.tasks("test", count=99)}
    assert shop_operations(1) == ["cancel_order", "search_products", "restock_product"]
    assert len(shop_operations(1)) < len(shop_operations(2)) < len(shop_operations(3)) < len(OPERATIONS)


@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_done_beside_the_task_and_done_twice_scores_nothing(shop: EnvFactory) -> None:
    task = next(task for task in ToolApi.tasks(count=40, operations=["*"]) if task.kind == "restock")
    [[name, arguments]] = task.target
    right = call(name, **arguments)
    wrong = call(name, **{**arguments, "quantity": arguments["quantity"] + 1})
    beside = call("update_address", customer_id=1, address="1 Mill Lane, Hollin")
    for script, reward in (
        ([right, say("")], 1.0),
        ([right, beside, say("Done.")], 1.0),  # refused: there is no such customer
        ([right, right, say("Done.")], 0.0),
        ([wrong, say("Done.")], 0.0),
        ([say(json.dumps(task.target))], 0.0),
    ):
        assert (await play(shop, playing(*script), task)).reward == reward, script
    customer = await play(shop, playing(call("find_customer", email="x@example.com"), say("")), task)
    assert customer.reward == 0.0 and tool_results(customer)[0].startswith("Error: 404")
    endless = await play(shop, playing(right), task, EpisodeLimits(max_turns=1))
    assert (endless.outcome, endless.reward) == (Outcome.TRUNCATED, 0.0)
    searched = await play(shop, playing(call("search_products"), say("")), task)
    assert [product["sku"] for product in json.loads(tool_results(searched)[0])]


@pytest.mark.asyncio(loop_scope="module")
async def test_64_episodes_at_once_do_not_see_each_other(shop: EnvFactory) -> None:
    tasks = list(ToolApi.tasks(count=16, level=2)) * 4
    alone = {task.id: await play(shop, EXPERT, task) for task in tasks[:4]}
    agents = [EXPERT if i % 2 == 0 else playing(call("find_customer", email="a"), say("")) for i in range(64)]
    episodes = await asyncio.gather(*(play(shop, a, t) for a, t in zip(agents, tasks, strict=True)))
    assert [episode.reward for episode in episodes] == [1.0, 0.0] * 32
    for episode in episodes[::2]:
        assert tool_results(episode) == tool_results(alone.get(episode.task.id, episode))


@pytest.mark.asyncio(loop_scope="module")
async def test_the_token_is_in_no_message_and_in_no_tool(shop: EnvFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: list[str] = []
    server = shop.make().services.shop.server  # type: ignore[attr-defined]
    start = server.open
    monkeypatch.setattr(server, "open", lambda content: tokens.append(start(content)) or tokens[-1])
    probes = [call("get_order", order_id="Authorization"), call("get_order", order_id=-1)]
    probing = playing(*probes, call("search_products", query="Bearer"), call("headers"), say("Done."))
    for task in shop.tasks(count=8):
        for agent in (EXPERT, probing):
            episode = await play(shop, agent, task)
            assert not any(token in episode.to_json() for token in tokens)
    assert len(tokens) == 16
    assert not any(word in json.dumps(shop.make().tools).lower() for word in ("authorization", "bearer", "token"))


async def test_a_session_ends_however_the_episode_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    reached = asyncio.Event()

    class Waits(ScriptedAgent):
        async def act(self, *args: Any) -> Any:
            reached.set()
            await asyncio.Event().wait()

    async with factory() as opened:
        task = opened.tasks(count=1)[0]
        running = asyncio.create_task(play(opened, Waits(say_nothing), task))
        await reached.wait()
        assert len(list(tmp_path.glob("**/*.db"))) == 1
        running.cancel()
        await asyncio.wait([running])
        assert not list(tmp_path.glob("**/*.db"))
        env = opened.make()
        assert isinstance(env, ToolApi)
        assert {tool["function"]["name"] for tool in env.tools} == set(shop_operations(1))
        for _ in range(2):
            await env.reset(seed=0, options={"task": task})
            assert len(list(tmp_path.glob("**/*.db"))) == 1
        await env.close()
        await env.close()
        assert not list(tmp_path.glob("**/*.db"))
        with pytest.raises(EnvError, match="after the end of the episode"):
            await env.step(Action(message=say("")))
    assert not list(tmp_path.iterdir())


async def test_a_shop_that_dies_is_a_fault_and_no_zero(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with factory() as opened:
        process = opened.make().services.shop.server._process  # type: ignore[attr-defined]
        task = next(task for task in opened.tasks(count=20) if task.metadata["kind"] == "restock")

        async def kill(messages: list[Message]) -> Message:
            if messages[-1]["role"] == "tool":
                process.kill()
                await process.wait()  # until then it may answer; asyncio alone may wait for its children
            return ToolApi.expert(messages)

        episode = await play(opened, ScriptedAgent(kill), task)
        assert (episode.outcome, episode.reward) == (Outcome.INFRA_FAULT, None)
        assert "ServiceError" in episode.error
        later = await play(opened, EXPERT, task)
        assert (later.outcome, later.reward) == (Outcome.INFRA_FAULT, None)
        assert not list(tmp_path.glob("**/*.db"))
    assert not list(tmp_path.iterdir())


# ---- functions ----


async def test_calls_of_registered_functions_are_tasks(functions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_process", {})
    registry.register("tool_api_add", f"{functions}:add", kind="tools", timeout=5.0)
    async with factory(tools=f"tool_api_add,{functions}:join") as opened:
        tasks, held_out = opened.tasks(count=40), opened.tasks("test", count=10)
        assert Counter(task.metadata["tool"] for task in tasks).keys() == {"tool_api_add", "join"}
        assert not {task.id for task in tasks} & {task.id for task in held_out}
        assert tasks == opened.tasks(count=40)
        for task in tasks:
            if task.metadata["tool"] == "tool_api_add":
                a, b = task.metadata["arguments"].values()
                assert task.target == str(a + b)
                assert task.prompt[0]["content"] == (
                    f'Call tool_api_add with {{"a": {a}, "b": {b}}} and answer with what it returns.'
                )
        assert {episode.reward for episode in await play_all(opened, EXPERT, [*tasks, *held_out])} == {1.0}
        for answer in ("", "Done.", "The answer is 5."):
            assert {e.reward for e in await play_all(opened, playing(say(answer)), tasks[:5])} == {0.0}
        for cheat in ToolApi.cheats(tasks[0]):
            assert (await play(opened, playing(say(cheat)), tasks[0])).reward == 0.0, cheat


async def test_arguments_that_a_tool_refuses_make_no_task(functions: str) -> None:
    tasks = ToolApi.tasks(count=30, tools=[f"{functions}:divide"])
    assert all(task.metadata["arguments"]["b"] % 3 for task in tasks)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{functions}:count", "count.*returns something else when it is called again.*data="),
        ("{functions}:refuse", "refuse.*ValueError: never.*data="),
        ("{functions}:nothing", "nothing.*it returns nothing.*data="),
        ("openapi:http://127.0.0.1:1/openapi.json", "openapi:.*data="),
        ("mcp:no-such-program", "mcp:.*data="),
    ],
)
def test_tools_that_no_task_can_be_made_for_are_named(functions: str, source: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        ToolApi.tasks(count=4, tools=[source.format(functions=functions)])


async def test_functions_may_stand_beside_the_shop(functions: str) -> None:
    async with factory(tools=["shop", f"{functions}:add", f"{functions}:get_order"], level=1) as opened:
        task = opened.tasks(count=1)[0]
        episode = await play(opened, playing(call("add", a=2, b=3), say("5")), task)
        assert tool_results(episode) == ["5"] and episode.rewards == {"state": 0.0}
        assert (await play(opened, EXPERT, task)).reward == 1.0
        # Whichever operations of the shop are tools, a name does not change with them.
        names = [tool["function"]["name"] for tool in opened.make().tools]
        assert "functions_get_order" in names and "get_order" not in names


async def test_two_functions_of_one_name_are_told_apart(functions: str, tmp_path: Path) -> None:
    other = tmp_path / "sums.py"
    other.write_text('def add(a: int, b: int) -> int:\n    """Add, and one."""\n    return a + b + 1\n')
    async with factory(tools=[f"{functions}:add", f"{other}:add"]) as opened:
        tasks = opened.tasks(count=20)
        assert {task.metadata["tool"] for task in tasks} == {"add", "sums_add"}
        assert {(await play(opened, EXPERT, task)).reward for task in tasks} == {1.0}


# ---- a file of tasks ----


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return str(path)


async def test_tasks_of_a_file_are_graded_on_the_final_answer(functions: str, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"question": f"What is {n} + 1?", "target": n + 1} for n in range(60)]
    rows += [{"prompt": [{"role": "user", "content": "Say it."}], "answer": "it  is"}]
    data = write_rows(tmp_path / "data.jsonl", rows)
    async with factory(tools=f"{functions}:add", data=data) as opened:
        train, test, whole = opened.tasks(count=50), opened.tasks("test", count=2), opened.tasks("all", count=61)
        assert {task.id for task in [*train, *test]} <= {task.id for task in whole}
        assert not {task.id for task in train} & {task.id for task in test}
        assert [task.id for task in train] != [task.id for task in opened.tasks(count=50, seed=1)]
        by_question = {task.prompt[0]["content"]: task for task in whole}
        sum_, say_it = by_question["What is 41 + 1?"], by_question["Say it."]
        for task, answer, reward in [(sum_, " 42.0\n", 1), (sum_, "43", 0), (say_it, "it is", 1)]:
            assert (await play(opened, playing(say(answer)), task)).reward == reward, answer
        added = await play(opened, playing(call("add", a=41, b=1), say("<think>so</think>42")), sum_)
        assert (tool_results(added), added.rewards) == (["42"], {"answer": 1.0})
    with pytest.raises(UserError, match="62 all tasks were asked for"):
        ToolApi.tasks("all", count=62, tools=[f"{functions}:add"], data=data)


async def test_a_reward_of_the_users_own_grades_a_file(functions: str, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "data.jsonl", [{"prompt": f"Greet {n}.", "answer": f"Hello {n}"} for n in range(9)])
    options = {"tools": f"{functions}:add", "data": data, "reward": f"{functions}:starts_with"}
    async with factory(**options) as opened:
        task = opened.tasks("all", count=1)[0]
        episode = await play(opened, playing(say(f"{task.target}, and good-bye")), task)
        assert (episode.reward, episode.rewards) == (1.0, {"starts_with": 1.0})
        with pytest.raises(UserError, match="no expert"):
            await play(opened, EXPERT, task)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "line 1: it is no JSON"), ("[1]", r"line 1: it is \[1\], not an object"), ('{"prompt": "a"}', "is no task")],
)
def test_a_bad_file_is_named_with_its_line(functions: str, tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "data.jsonl").write_text(text)
    with pytest.raises(UserError, match=problem):
        ToolApi.tasks(count=1, tools=[f"{functions}:add"], data=str(tmp_path / "data.jsonl"))


# ---- services and servers ----


@pytest.fixture
def capitals(tmp_path: Path) -> str:
    rows = [{"prompt": f"The capital of {c}?", "answer": a} for c, a in {"France": "Paris", "Italy": "Rome"}.items()]
    return write_rows(tmp_path / "capitals.jsonl", rows)


def looks_up(messages: list[Message]) -> Message:
    if messages[-1]["role"] == "tool":
        return say(json.loads(messages[-1]["content"])["capital"])
    return call("capital", country=messages[-1]["content"].split()[-1].rstrip("?"))


@pytest.mark.parametrize(
    ("limit", "outcome", "words"),
    [
        ({"step_seconds": 1.0}, Outcome.ENV_FAULT, "took longer than 1 s"),
        ({"episode_seconds": 1.0}, Outcome.TIMEOUT, "tool_api and the services that it calls used up the 1 s"),
    ],
    ids=["step", "episode"],
)
async def test_a_service_that_stops_answering_is_not_the_model_s_failure(
    limit: dict[str, float], outcome: Outcome, words: str, capitals: str
) -> None:
    """The episode ends without a reward within the deadline, and its sibling, with its own limits, is not held up."""
    app = FastAPI()
    asked: list[str] = []

    @app.get("/capitals/{country}", operation_id="capital")
    async def capital(country: str) -> dict[str, str]:
        asked.append(country)
        if country == "Italy":
            await asyncio.Event().wait()
        return {"capital": "Paris"}

    with serve(app) as url:
        async with factory(tools=f"openapi:{url}/openapi.json", data=capitals) as opened:
            limits = {"Rome": EpisodeLimits(**limit), "Paris": EpisodeLimits()}
            tasks, agent = opened.tasks("all", count=2), ScriptedAgent(looks_up)
            episodes = await asyncio.gather(*(play(opened, agent, task, limits[task.target]) for task in tasks))
    assert "France" in asked  # on a busy machine the time may be up before Italy is asked for
    by_answer = {episode.task.target: episode for episode in episodes}
    assert (by_answer["Paris"].outcome, by_answer["Paris"].reward) == (Outcome.SCORED, 1.0)
    assert (by_answer["Rome"].outcome, by_answer["Rome"].reward) == (outcome, None)
    assert words in by_answer["Rome"].error


async def test_a_cassette_stands_in_for_a_service_that_is_gone(capitals: str, tmp_path: Path) -> None:
    app = FastAPI()

    @app.get("/capitals/{country}", operation_id="capital")
    async def capital(country: str) -> dict[str, str]:
        return {"capital": {"France": "Paris", "Italy": "Rome"}[country]}

    cassette = str(tmp_path / "cassette.jsonl")
    with serve(app) as url:
        options = {"tools": f"openapi:{url}/openapi.json", "data": capitals, "cassette": cassette}
        async with factory(**options) as opened:
            tasks = opened.tasks("all", count=2)
            recorded = await play_all(opened, ScriptedAgent(looks_up), tasks)
    async with factory(**options, cassette_mode="replay") as opened:
        replayed = await play_all(opened, ScriptedAgent(looks_up), tasks)
        other = await play(opened, playing(call("capital", country="Spain"), say("Madrid")), tasks[0])
    assert [e.reward for e in recorded] == [e.reward for e in replayed] == [1.0, 1.0]
    assert [tool_results(e) for e in recorded] == [tool_results(e) for e in replayed]
    assert other.outcome is Outcome.INFRA_FAULT and "NotRecorded" in other.error


# ---- options ----


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tools": "sop"}, "no tools 'sop'. Did you mean shop"),
        ({"tools": ","}, "no tools: name some"),
        ({"tools": "shop,shop"}, "named twice"),
        ({"data": "tasks.jsonl"}, "the shop has tasks of its own"),
        ({"reward": "a:b"}, "scored by its final state"),
        ({"cassette": "c.jsonl"}, "a cassette records"),
        ({"cassette_mode": "replay"}, "there is no cassette"),
        ({"operations": "cancel_ordr"}, "Did you mean cancel_order"),
        ({"level": "4"}, "the levels are 1, 2, 3"),
    ],
)
async def test_options_that_do_not_go_together_are_refused_at_the_start(options: dict[str, str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        async with factory(**options):
            pass


def test_a_level_that_the_operations_do_not_suffice_for_says_what_it_needs() -> None:
    with pytest.raises(UserError, match="cancel: cancel_order; refund: get_order, refund_order"):
        ToolApi.tasks(count=1, operations=["get_*"])


def test_an_instance_is_made_by_its_factory() -> None:
    with pytest.raises(EnvError, match="factory"):
        ToolApi()


def test_the_environment_is_made_of_its_tools_and_the_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("other.py").write_text("def add(a: int) -> int:\n    'Add.'\n    return a\n")
    shop = environment_digests(make("tool_api", tools=["other.py:add", "shop"]))
    made_of = {"contrib/apis/env.py", "contrib/apis/services.py", "contrib/apis/shop/task_kinds.py"}
    assert {"other.py"} | made_of <= shop.keys()
