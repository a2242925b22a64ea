"""ors:URL against a small server on loopback: episodes, the stream of a call, what breaks, and what is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.scripted import ScriptedAgent
from contrib.check import run_checks
from contrib.ors import session
from contrib.ors.content import messages_of, text_of
from contrib.ors.events import Event, read_events
from contrib.ors.tests.small_server import OrsServer
from forge_env import EnvFactory, Episode, Outcome, Task, UserError, env_class, make, run_episode
from forge_env.core.errors import ServiceError
from forge_env.core.types import EpisodeLimits, Message
from tests.envs.serving import serve
from tests.helpers.server_process import server_process


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PAUSE_SECONDS", 0.01)


@pytest.fixture
def server() -> OrsServer:
    return OrsServer()


@pytest.fixture
def url(server: OrsServer) -> Iterator[str]:
    with serve(server.app) as url:
        yield f"ors:{url}"


def says(*turns: str | list[tuple[str, dict[str, Any]]]) -> ScriptedAgent:
    """An agent that writes these turns: a text, or calls of tools."""

    def act(messages: list[Message]) -> Message:
        number = sum(message["role"] == "assistant" for message in messages)
        turn = turns[min(number, len(turns) - 1)]
        if isinstance(turn, str):
            return {"role": "assistant", "content": turn}
        functions = [{"name": name, "arguments": arguments} for name, arguments in turn]
        calls = [{"id": f"c{i}", "type": "function", "function": f} for i, f in enumerate(functions)]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    return ScriptedAgent(act)


def submit(answer: str) -> Message:
    call = {"id": "c", "type": "function", "function": {"name": "submit", "arguments": {"answer": answer}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


async def play(factory: EnvFactory, agent: ScriptedAgent, task: Task | None = None) -> Episode:
    task = task or factory.tasks("train", count=1)[0]
    limits = EpisodeLimits(**{**factory.declared_limits(), "max_turns": 6})
    return await run_episode(factory, agent, task, seed=0, episode_id="e", limits=limits)


def right(task: Task) -> ScriptedAgent:
    return says([("submit", {"answer": str(task.metadata["task_spec"]["n"] + 1)})])


async def test_an_episode_is_a_session_that_is_deleted_at_its_end(server: OrsServer, url: str) -> None:
    async with make(url) as factory:
        task = factory.tasks("train", count=1)[0]
        agent = says([("look", {})], [("submit", {"answer": str(task.metadata["task_spec"]["n"] + 1)}), ("look", {})])
        episode = await play(factory, agent, task)
    assert (episode.outcome, episode.reward, episode.success) == (Outcome.SCORED, 1.0, True), episode.error
    assert [m["content"] for m in episode.messages if m["role"] != "assistant"] == [
        f"What is {task.metadata['task_spec']['n']} + 1?\n[image: image/png, 3 bytes]",
        "a\u2028b" + " " * 40,
        "Graded.",
        "Error: look was not run: the episode has finished.",
    ]
    assert episode.info["ors"] == {"environment": "adding", "split": "train", "index": task.metadata["index"]}
    assert episode.info["ors_result"] == {"metadata": [{"right": True}]}
    assert server.sessions == {} and server.runs == 2


async def test_rewards_come_from_the_outputs_and_a_plain_answer_ends_the_episode(server: OrsServer, url: str) -> None:
    async with make(url) as factory:
        wrong = await play(factory, says([("submit", {"answer": "?"})]))
        text = await play(factory, says("I do not know."))
        invalid = await play(factory, says([("submit", {})], [("nothing", {})], "No."))
        server.terminal = {"name": "submit", "arg": "answer", "description": ""}
        task = factory.tasks("train", count=1)[0]
        answered = await play(factory, says(str(task.metadata["task_spec"]["n"] + 1)), task)
    assert [e.outcome for e in (wrong, text, invalid, answered)] == [Outcome.SCORED] * 4
    assert [e.reward for e in (wrong, text, invalid, answered)] == [0.0, 0.0, 0.0, 1.0]
    assert [m["content"] for m in invalid.messages if m["role"] == "tool"] == [
        "Error: answer is missing",
        "Error: there is no tool 'nothing'. Tools: submit, look.",
    ]


@pytest.mark.parametrize("flag", [1, "true"])
async def test_the_flag_of_an_end_may_be_a_number_or_a_text(server: OrsServer, url: str, flag: Any) -> None:
    server.finished = flag
    async with make(url) as factory:
        task = factory.tasks("train", count=1)[0]
        episode = await play(factory, right(task), task)
    assert (episode.reward, len(episode.turns)) == (1.0, 1), episode.error


async def test_an_environment_that_compares_the_episodes_of_a_group_is_refused(server: OrsServer, url: str) -> None:
    for compares in (None, False):
        server.compares = compares
        assert make(url).tasks("train", count=1)
    server.compares = True
    with pytest.raises(UserError, match="also scores the episodes of a group by comparing them.*group_scores=ignore"):
        make(url).tasks("train", count=1)
    with pytest.raises(UserError, match="option group_scores is 'no'; it is refuse or ignore"):
        make(url, group_scores="no").tasks("train", count=1)
    server.has_tools = False
    async with make(url) as factory:
        with pytest.raises(UserError, match="also scores the episodes of a group by comparing them"):
            await play(factory, says("No."))
    async with make(url, group_scores="ignore") as factory:
        assert (await play(factory, says("No."))).outcome is Outcome.SCORED


async def test_the_numbers_of_a_call_keep_their_digits(server: OrsServer, url: str) -> None:
    async with make(url) as factory:
        await play(factory, says([("look", '{"a": 1.10, "b": [-0, 12345678901234567890, 1E5]}')], "Done."))  # type: ignore[list-item]
    assert '"input": {"a": 1.10, "b": [-0, 12345678901234567890, 1E5]}' in server.calls[0]


async def test_a_conversation_of_the_server_is_the_prompt(server: OrsServer, url: str) -> None:
    server.messages = [
        {"role": "system", "blocks": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "blocks": [{"type": "text", "text": "Hello."}]},
    ]
    async with make(url) as factory:
        episode = await play(factory, says("Bye."))
    assert [m["content"] for m in episode.messages] == ["Be brief.", "Hello.", "Bye."]


async def test_a_lost_stream_is_resumed_and_the_call_is_run_once(server: OrsServer, url: str) -> None:
    async with make(url) as factory:
        task = factory.tasks("train", count=1)[0]
        server.break_streams = 2
        episode = await play(factory, right(task), task)
        assert (episode.reward, server.runs) == (1.0, 1), episode.error
        server.break_streams = 99
        lost = await play(factory, right(task), task)
        server.break_streams = -1
        unnamed = await play(factory, right(task), task)
    for episode in (lost, unnamed):
        assert (episode.outcome, episode.reward) == (Outcome.INFRA_FAULT, None)
        assert "was lost" in episode.error
    assert server.runs == 3
    assert server.sessions == {}


async def test_an_environment_that_still_starts_is_waited_for(server: OrsServer, url: str) -> None:
    async with make(url, start_seconds=60) as factory:
        server.starting = 2
        assert (await play(factory, says("No."))).outcome is Outcome.SCORED
    async with make(url, start_seconds=0.5) as factory:
        server.starting = 99
        episode = await play(factory, says("No."))
    assert episode.outcome is Outcome.INFRA_FAULT and "503" in episode.error


async def test_a_slow_call_and_a_bad_reward_are_faults(server: OrsServer, url: str) -> None:
    async with make(url, call_seconds=0.2) as factory:
        task = factory.tasks("train", count=1)[0]
        server.hold.clear()
        slow = await play(factory, right(task), task)
        server.hold.set()
    assert (slow.outcome, slow.reward) == (Outcome.INFRA_FAULT, None) and "within 0.2 s" in slow.error
    async with make(url) as factory:
        for reward in ("much", 1e300):
            server.reward = reward
            episode = await play(factory, right(task), task)
            assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None) and repr(reward) in episode.error


async def test_a_cancelled_episode_is_deleted_on_the_server(server: OrsServer, url: str) -> None:
    async with make(url) as factory:
        task = factory.tasks("train", count=1)[0]
        server.hold.clear()
        running = asyncio.create_task(play(factory, right(task), task))
        async with asyncio.timeout(30):
            while not server.runs:
                await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        server.hold.set()
    assert server.sessions == {}


async def test_pings_keep_a_session_and_tell_that_the_server_ended_it(server: OrsServer, url: str) -> None:
    async with make(url, ping_seconds=0.02) as factory:
        task = factory.tasks("train", count=1)[0]

        async def turn(messages: list[Message]) -> Message:
            async with asyncio.timeout(30):
                while server.pings < 3:
                    await asyncio.sleep(0.01)
                server.sessions.clear()
                pings = server.pings
                while server.pings == pings:
                    await asyncio.sleep(0.01)
            return submit("1")

        episode = await play(factory, ScriptedAgent(turn), task)
    assert (episode.outcome, episode.reward) == (Outcome.INFRA_FAULT, None)
    assert "is lost: a ping is answered with 404" in episode.error or "has ended it (410)" in episode.error


async def test_the_key_and_the_secrets_are_sent_and_never_shown(
    server: OrsServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "key-of-the-user"
    with pytest.raises(UserError, match="401: no such key.*ORS_API_KEY"):
        make(url).tasks("train", count=1)
    monkeypatch.setenv("ORS_API_KEY", "key-of-the-user")
    monkeypatch.setenv("JUDGE_KEY", "secret-of-the-judge")
    async with make(url, secrets=["JUDGE_KEY"]) as factory:
        episode = await play(factory, says("No."))
    assert episode.outcome is Outcome.SCORED, episode.error
    assert server.secrets == {"JUDGE_KEY": "secret-of-the-judge"}
    assert all(headers["x-api-key"] == "key-of-the-user" for headers in server.headers[1:])
    assert "key-of-the-user" not in repr(episode) and "secret-of-the-judge" not in repr(episode)
    with pytest.raises(UserError, match="OTHER_KEY"):
        make(url, api_key_env="OTHER_KEY").tasks("train", count=1)


def test_tasks_are_drawn_by_seed_and_split(server: OrsServer, url: str) -> None:
    factory = make(url)
    train, again = factory.tasks("train", count=5, seed=1), factory.tasks("train", count=5, seed=1)
    assert train == again != factory.tasks("train", count=5, seed=2)
    assert {task.metadata["split"] for task in factory.tasks("test", count=12)} == {"exam"}
    assert factory.tasks("exam", count=12) == factory.tasks("test", count=12)
    with pytest.raises(UserError, match="13 tasks were asked for, and the split train of adding has 12"):
        factory.tasks("train", count=13)
    with pytest.raises(UserError, match=r"no split 'dev'; it has train \(train\), exam \(test\)"):
        factory.tasks("dev", count=1)
    server.has_num_tasks = False
    assert factory.tasks("train", count=5, seed=1) == train


def test_addresses_are_checked() -> None:
    for name, sentence in {
        "ors:": "names no server",
        "ors:ftp://host": "names no server",
        "ors:http://me:secret@host": "holds a user",
        "ors:http://host?x=1": "holds a user, a query",
    }.items():
        with pytest.raises(UserError, match=sentence) as caught:
            env_class(name)
        assert "me:secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"call_seconds": 0}, "call_seconds is 0"),
        ({"environment": "addin"}, "no environment 'addin'. Did you mean adding"),
        ({"tools": "x"}, "no option 'tools'"),
    ],
)
async def test_options_are_checked(url: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        async with make(url, **options) as factory:
            factory.tasks("train", count=1)
            factory.make()


def test_another_server_and_none_are_told_apart() -> None:
    from starlette.applications import Starlette

    with serve(Starlette()) as url, pytest.raises(UserError, match="404.*Is it an ORS server"):
        make(f"ors:{url}").tasks("train", count=1)
    with pytest.raises(UserError, match="no server answers at .*: start it, or correct the address"):
        make(f"ors:{url}").tasks("train", count=1)


async def test_a_killed_server_is_a_fault_and_never_a_zero() -> None:
    imports = "from contrib.ors.tests.small_server import OrsServer\nserver = OrsServer()\nserver.hold.clear()"
    with server_process(imports, "server.app") as (process, url):
        async with make(f"ors:{url}") as factory:
            task = factory.tasks("train", count=1)[0]

            def act(messages: list[Message]) -> Message:
                process.kill()
                return submit("1")

            episode = await play(factory, ScriptedAgent(act), task)
            assert (episode.outcome, episode.reward) == (Outcome.INFRA_FAULT, None)
            assert "was lost" in episode.error
            gone = await play(factory, says("No."), task)
            assert (gone.outcome, gone.reward) == (Outcome.INFRA_FAULT, None) and "ConnectError" in gone.error


async def test_the_contract_holds(url: str) -> None:
    report = await run_checks(make(url), tasks=2, seconds=60, only=("contract", "malformed actions"))
    assert [row for row in report.rows if row.ok is False] == []


@given(st.lists(st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]))), st.integers(1, 9))
def test_events_are_read_from_pieces_of_any_size(texts: list[str], size: int) -> None:
    stream = "".join(f": note\r\n\r\nevent: chunk\r\ndata: {text}\r\n\r\n" for text in texts).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(stream), size):
            yield stream[start : start + size]

    async def read() -> list[Event]:
        return [event async for event in read_events(pieces())]

    assert asyncio.run(read()) == [Event("chunk", text) for text in texts]


def test_blocks_become_messages() -> None:
    conversation = [
        {"role": "assistant", "blocks": [{"type": "reasoning", "text": "Hm."}, {"type": "tool_call", "id": "1"}]},
        {"role": "user", "blocks": [{"type": "tool_result", "tool_call_id": "1", "blocks": []}]},
    ]
    first, second = messages_of(conversation, "it")
    assert (first["content"], first["reasoning_content"], first["tool_calls"][0]["id"]) == ("", "Hm.", "1")
    assert second == {"role": "tool", "content": "", "tool_call_id": "1"}
    for wrong in ([{"type": "video"}], "text", [1]):
        with pytest.raises(ServiceError):
            text_of(wrong, "it")
    with pytest.raises(ServiceError, match="'video'"):
        messages_of([{"role": "user", "blocks": [{"type": "video"}]}], "it")
