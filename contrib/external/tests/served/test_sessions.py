"""The environment sessions: a run's episodes are on offer over HTTP, and agents take, play and finish them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from agents.scripted import ScriptedAgent
from contrib.external import env
from contrib.external.scoring import Scorer
from contrib.external.served.desk import Desk
from contrib.external.session import ProgramSession
from contrib.external.tests.external_playing import ADD, Check, calls, says
from contrib.external.tests.served.conftest import TASK, TOKEN, Open, error_of
from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.core.types import EpisodeLimits, Outcome
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import GroupSpec, run_group


def three(messages: Any) -> Any:
    return {"role": "assistant", "content": "3"}


SAYS_THREE = ScriptedAgent(three)


async def test_a_client_plays_a_session_token_exactly(served: Open, tiny_model: Path, check: Check) -> None:
    """The real client, with what POST /sessions tells it."""
    async with served() as server:
        playing = server.begin(says(tiny_model, calls("add", a=1, b=2), "3"))
        session = await server.take()
        assert session["task"] == {"id": TASK.id, "messages": list(TASK.prompt), "metadata": {"level": 1}}
        assert "target" not in str(session)
        async with openai.AsyncOpenAI(base_url=session["base_url"], api_key=session["api_key"]) as client:
            messages: list[Any] = list(session["task"]["messages"])
            first = await client.chat.completions.create(model=session["model"], messages=messages, tools=[ADD])
            [call] = first.choices[0].message.tool_calls or ()
            messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
            await client.chat.completions.create(model=session["model"], messages=messages, tools=[ADD])
        done = (await server.finish(session, reward=0.5, answer="three")).json()
        episode = await playing
    assert (done["outcome"], done["reward"], done["state"]) == ("scored", 0.5, "ended")
    assert (episode.outcome, episode.reward, episode.rewards) == (Outcome.SCORED, 0.5, {"agent": 0.5})
    assert (episode.is_trainable, len(episode.rows), len(episode.turns), episode.env) == (True, 1, 2, "sessions")
    assert episode.info["session"]["answer"] == "three"
    check(episode)


async def test_a_group_fills_by_the_sessions_of_several_agents(served: Open) -> None:
    async with served(tasks="math") as server:
        [task] = server.factory.tasks("train", count=1)
        running = asyncio.create_task(
            run_group(server.factory, ScriptedAgent(three), GroupSpec(task=task, count=8, seed=3, group_id="g"))
        )
        answers = [str(task.target) if i % 2 else "0" for i in range(8)]

        async def agent(answer: str) -> None:
            session = await server.take()
            assert session["task"]["id"] == task.id
            await server.chat(session, "go")
            await server.finish(session, answer=f"{answer}")

        await asyncio.gather(*(agent(answer) for answer in answers))
        group = await running
    assert sorted(e.reward or 0.0 for e in group.episodes) == [0.0] * 4 + [1.0] * 4
    assert {e.seed for e in group.episodes} == set(range(3, 11))
    assert len({e.info["session"]["id"] for e in group.episodes}) == 8


async def test_who_waits_gets_the_next_session_and_who_has_gone_takes_none(served: Open) -> None:
    async with served() as server:
        none = await server.client.post("/sessions", json={"wait_seconds": 0})
        assert (none.status_code, none.headers["retry-after"]) == (503, "1")
        assert error_of(none) == "no session is on offer after 0 s: ask again"
        with pytest.raises(httpx.ReadTimeout):  # an agent that is killed while it waits
            await server.client.post("/sessions", json={"wait_seconds": 60}, timeout=0.2)
        waiting = [asyncio.create_task(server.take(wait_seconds=60)) for _ in range(2)]
        episodes = [server.begin(SAYS_THREE, seed=i) for i in range(2)]
        for session in await asyncio.gather(*waiting):
            await server.chat(session, "go")
            assert (await server.finish(session, reward=1)).json()["reward"] == 1
        assert [(await e).reward for e in episodes] == [1, 1]


async def test_an_offer_between_the_look_and_the_wait_of_an_agent_is_not_missed() -> None:
    desk = Desk(Scorer(), token=TOKEN, public_url="", take_seconds=60)
    visit = desk.visit(ProgramSession(), TASK, 0, EpisodeLimits())
    assert desk.take() is None
    offering = asyncio.create_task(desk.offer(visit))
    waiting = asyncio.create_task(desk.arrival())  # begins after the offer
    async with asyncio.timeout(5):
        await waiting
    assert desk.take() is visit
    await offering


async def test_a_session_that_nobody_takes_or_finishes_is_a_fault_with_its_reason(served: Open) -> None:
    async with served(take_seconds=0.2) as server:
        untaken = await server.begin(SAYS_THREE)
        silent = server.begin(SAYS_THREE, seed=1, limits=EpisodeLimits(step_seconds=0.2))
        first = await server.take()
        unfinished = server.begin(SAYS_THREE, seed=2, limits=EpisodeLimits(step_seconds=1))
        second = await server.take()
        await server.chat(second, "go")
        slow = server.begin(SAYS_THREE, seed=3, limits=EpisodeLimits(step_seconds=60, episode_seconds=0.2))
        third = await server.take()
        episodes = [untaken, await silent, await unfinished, await slow]
        late = [await server.finish(session, reward=1) for session in (first, second, third)]
        state = (await server.client.get(f"/sessions/{second['id']}")).json()
        refused = await server.chat(second, "go", "3", "again")
    assert [(e.outcome, e.reward) for e in episodes] == [(Outcome.ENV_FAULT, None)] * 4
    assert episodes[0].error == "no agent has taken the session within 0.2 s"
    assert episodes[1].error == "the session's agent asked the model nothing for 0.2 s (step_seconds)"
    assert episodes[2].error == "the session was not finished: its agent sent nothing for 1 s (step_seconds)"
    assert len(episodes[2].turns) == 1, "what was answered is kept"
    assert episodes[3].error == "the session's agent asked the model nothing for 0.2 s (episode_seconds)"
    assert [r.status_code for r in late] == [409] * 3
    assert "has ended, and this changes nothing: the session was not finished" in error_of(late[1])
    assert (state["state"], state["outcome"]) == ("ended", "fault")
    assert refused.status_code == 503 and "sent nothing for 1 s" in error_of(refused)
    assert refused.headers["x-should-retry"] == "false"


async def test_the_clocks_stop_while_the_model_answers(served: Open) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    class Slow:
        async def act(self, conversation: Any, tools: Any) -> Any:
            asked.set()
            await go_on.wait()
            return await SAYS_THREE.act(conversation, tools)

    async with served() as server:
        episode = server.begin(Slow(), limits=EpisodeLimits(step_seconds=1, episode_seconds=1))
        session = await server.take()
        chat = asyncio.create_task(server.chat(session, "go"))
        await asked.wait()
        await asyncio.sleep(1.1)  # longer than both limits
        go_on.set()
        assert (await chat).status_code == 200
        await server.finish(session, reward=1)
        assert (await episode).reward == 1


async def test_a_finish_that_cannot_count_loses_nothing(served: Open) -> None:
    async with served(reward_range="0,10") as server:
        episode = server.begin(SAYS_THREE)
        session = await server.take()
        await server.chat(session, "go")
        for body, words in [
            ({"reward": 11}, "reward is 11; it is a number from 0 to 10"),
            ({"reward": float("inf")}, "reward is inf"),
            ({"reward": "1"}, "reward is '1'"),
            ({}, "nothing says what the session is worth"),
            ({"answer": 3, "reward": 1}, "answer is a int; it is a text"),
            ({"rewrad": 1}, "there is no 'rewrad'"),
            ({"error": "", "reward": 1}, "error is a text, and stands alone"),
        ]:
            response = await server.client.post(
                f"/sessions/{session['id']}/finish",
                content=str(body).replace("inf", "Infinity").replace("'", '"').encode(),
            )
            assert response.status_code == 400 and words in error_of(response), body
        assert (await server.client.get(f"/sessions/{session['id']}")).json()["state"] == "open"
        first = await server.finish(session, reward=7, answer="x")
        spaced = b'{ "answer":"x","reward" : 7}'
        again = await server.client.post(f"/sessions/{session['id']}/finish", content=spaced)
        other = await server.finish(session, reward=0)
        assert (await episode).reward == 7
    assert first.json() == again.json() and first.json()["reward"] == 7
    assert other.status_code == 409 and "was finished before" in error_of(other)


async def test_an_agent_that_gives_up_says_why(served: Open) -> None:
    async with served() as server:
        episode = server.begin(SAYS_THREE)
        session = await server.take()
        await server.chat(session, "go")
        ended = (await server.finish(session, error="the browser\ncrashed")).json()
        assert (await episode).error == "the session's agent gave up: the browser crashed"
    assert (ended["outcome"], ended["error"]) == ("fault", "the session's agent gave up: the browser crashed")


async def test_an_open_request_at_the_finish_makes_the_record_incomplete(served: Open) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    class Hangs:
        async def act(self, conversation: Any, tools: Any) -> Any:
            asked.set()
            await never.wait()

    async with served() as server:
        episode = server.begin(Hangs())
        session = await server.take()
        chat = asyncio.create_task(server.chat(session, "go"))
        await asked.wait()
        ended = (await server.finish(session, reward=1)).json()
        recorded = await episode
        assert (await chat).status_code == 503
    assert recorded.outcome is Outcome.ENV_FAULT and "request 1 was still waiting" in recorded.error
    assert ended["outcome"] == "fault" and "the record is not complete" in ended["error"]


async def test_max_turns_ends_a_session_as_any_episode(served: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env, "LAST_WORDS_SECONDS", 0.1)
    async with served() as server:
        episode = server.begin(SAYS_THREE, limits=EpisodeLimits(max_turns=1))
        session = await server.take()
        await server.chat(session, "go")
        over = await server.chat(session, "go", "3", "again")
        recorded = await episode
        late = await server.finish(session, reward=1)
    assert over.status_code == 503 and "max_turns (1)" in error_of(over)
    assert (recorded.outcome, recorded.ended_by, recorded.reward) == (Outcome.TRUNCATED, "max_turns", 0.0)
    assert late.status_code == 409 and "max_turns" in error_of(late)


async def test_the_scorer_of_the_run_scores_the_answer(served: Open, tmp_path: Path) -> None:
    grade = tmp_path / "grade.py"
    grade.write_text("def grade(answer, target):\n    return float(answer == target)\n")
    async with served(reward=f"{grade}:grade") as server:
        # Episodes that begin together are handed out in any order.
        for seed, answer in enumerate(({"answer": "3"}, {"answer": "4"}, {})):  # {}: the model's last message is it
            server.begin(SAYS_THREE, seed=seed)
            session = await server.take()
            await server.chat(session, "go")
            refused = await server.finish(session, reward=1, **answer)
            assert refused.status_code == 400 and "the function grade scores the answer here" in error_of(refused)
            await server.finish(session, **answer)
        done: list[Episode] = [await episode for episode in server.episodes]
    assert [e.reward for e in done] == [1, 0, 1]


async def test_only_who_has_a_token_comes_in(served: Open) -> None:
    async with served() as server:
        server.begin(SAYS_THREE), server.begin(SAYS_THREE, seed=1)
        mine, other = await server.take(), await server.take()
        base = server.client.base_url
        async with httpx.AsyncClient(base_url=base, verify=False) as stranger:
            for token in ("", "wrong", other["api_key"]):
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                url = f"/sessions/{mine['id']}"
                responses = [
                    await stranger.post("/sessions", json={}, headers=headers),
                    await stranger.get(url, headers=headers),
                    await stranger.post(f"{url}/finish", json={"reward": 1}, headers=headers),
                ]
                if token != other["api_key"]:
                    responses.append(await stranger.get("/v1/models", headers=headers))
                assert [r.status_code for r in responses] == [401] * len(responses)
                assert TOKEN not in "".join(r.text for r in responses)
            unknown = await stranger.get("/sessions/0000", headers={"Authorization": "Bearer wrong"})
            assert unknown.status_code == 401, "nobody learns which sessions there are"
        assert (await server.client.get("/sessions/0000")).status_code == 404
        assert (await server.client.get("/sessions")).status_code == 405
        with_server_token = await server.client.get("/v1/models")
        assert with_server_token.status_code == 401, "the token of the server opens sessions, and asks no model"
        refused = await server.client.post("/sessions", json={"prompt": "mine"})
        assert refused.status_code == 400 and "a run hands out its own tasks" in error_of(refused)


async def test_a_session_names_the_address_that_its_agent_can_reach(served: Open) -> None:
    async with served() as server:
        server.begin(SAYS_THREE), server.begin(SAYS_THREE, seed=1)
        url = str(server.client.base_url).rstrip("/")
        session = await server.take()
        assert (session["base_url"], session["anthropic_base_url"]) == (f"{url}/v1", url)
        response = await server.client.post("/sessions", json={}, headers={"Host": "trainer:8000"})
        assert response.json()["base_url"] == "http://trainer:8000/v1"
    async with served(public_url="https://agents.example.org/") as server:
        server.begin(SAYS_THREE)
        session = await server.take()
        assert session["base_url"] == "https://agents.example.org/v1"
        assert session["url"] == f"https://agents.example.org/sessions/{session['id']}"


async def test_a_body_is_bounded(served: Open) -> None:
    async with served(max_request_bytes=2048) as server:
        server.begin(SAYS_THREE)
        session = await server.take()
        large = await server.finish(session, reward=1, answer="x" * 4096)
        chat = await server.chat(session, "x" * 4096)
        state = (await server.client.get(f"/sessions/{session['id']}")).json()
    assert (large.status_code, chat.status_code, state["state"]) == (413, 413, "open")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"listen": "8000"}, "it is HOST:PORT"),
        ({"listen": "127.0.0.1:99999"}, "it is HOST:PORT"),
        ({"listen": "192.0.2.1:8000"}, "cannot listen at 192.0.2.1"),
        ({"listen": "127.0.0.1:0", "take_seconds": "0"}, "take_seconds is 0"),
        ({"listen": "127.0.0.1:0", "token_file": "/no/such/file"}, "/no/such/file cannot be read"),
        ({"listen": "127.0.0.1:0", "reward_range": "1,0"}, "reward_range is '1,0'"),
        ({}, "needs the option listen"),
        ({"listen": "127.0.0.1:0", "command": "true"}, "no option 'command'"),
    ],
)
async def test_a_mistake_is_one_sentence(options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_ENV_TOKEN", TOKEN)
    with pytest.raises(UserError, match=words):
        async with make("sessions", **options):
            pass


async def test_without_a_token_nothing_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORGE_ENV_TOKEN", raising=False)
    with pytest.raises(UserError, match="agents elsewhere need a token"):
        async with make("sessions", listen="127.0.0.1:0"):
            pass
