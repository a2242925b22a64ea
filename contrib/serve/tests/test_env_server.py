"""What a server of an environment refuses, what it bounds, and what its clients make of it."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from contrib.common.server_settings import ServeSettings, read_token
from contrib.serve.remote import wire
from contrib.serve.remote.server_address import ServerAddress
from contrib.serve.session import Session
from contrib.serve.tests.served import TOKEN, Proxy, Served, served
from contrib.serve.tests.served_envs import Counter
from contrib.serve.tests.test_remote_env import COUNTER, behind, playing
from forge_env.cli.main import main
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode
from tests.forge_env.rollout.test_overlap import DEADLINE_S, MOMENT_S, Opened, Recorded
from tests.forge_env.rollout.test_overlap import TASK as SLOW_TASK
from tests.helpers.waiting import until

SESSION = "0123456789abcdef" * 2
HEADERS = {"authorization": f"Bearer {TOKEN}", wire.HEADER: str(wire.PROTOCOL)}


@pytest.fixture(scope="module")
def counter() -> Iterator[Served]:
    with served(COUNTER, max_sessions=2, max_request_bytes=5000) as server:
        yield server


def post(server: Served, request: Any, path: str = f"sessions/{SESSION}", **headers: str) -> tuple[int, Any]:
    url = f"{server.url}{wire.PATH}/{path}"
    response = httpx.post(url, content=json.dumps(request), headers={**HEADERS, **headers}, timeout=30, verify=False)
    assert response.headers[wire.HEADER] == str(wire.PROTOCOL), "the version is in every exchange"
    return response.status_code, response.json()


def reset(server: Served, **more: Any) -> dict[str, Any]:
    about = make(server.url).env_class.about  # type: ignore[attr-defined]
    task = wire.task_data(Counter.tasks(count=1)[0])
    return {"number": 1, "call": "reset", "about": about.id, "seed": 3, "task": task, "limits": None, **more}


def step(number: int, name: str = "up") -> dict[str, Any]:
    call = {"id": "c", "name": name, "arguments": {}, "raw": "", "error": ""}
    message = {"role": "assistant", "content": ""}
    action = {"message": message, "tool_calls": [call], "finish_reason": "stop"}
    return {"number": number, "call": "step", "action": action}


def close(server: Served, number: int, session: str = SESSION) -> None:
    assert post(server, {"number": number, "call": "close"}, f"sessions/{session}")[0] == 200


def test_a_repeated_request_gets_the_first_answer_and_no_other_order_is_taken(counter: Served) -> None:
    assert post(counter, step(2))[0] == 410
    assert post(counter, reset(counter, about="another"))[0] == 410
    first = post(counter, reset(counter))
    assert first[0] == 200
    assert post(counter, reset(counter)) == first
    taken = post(counter, step(2))
    assert taken[1]["result"]["messages"][0]["content"] == "1"
    assert post(counter, step(2)) == taken
    status, refusal = post(counter, step(4))
    assert (status, refusal["error"]) == (409, "the call 4 of this session came after the call 2")
    assert post(counter, {"number": 3, "call": "fly"})[0] == 400
    closed = post(counter, {"number": 3, "call": "close"})
    assert post(counter, {"number": 3, "call": "close"}) == closed, "the answer may have been lost"
    assert post(counter, step(4))[0] == 409


def test_only_this_version_and_this_token_are_served(counter: Served) -> None:
    status, refusal = post(counter, reset(counter), **{wire.HEADER: "99"})
    assert (status, f"version {wire.PROTOCOL}" in refusal["error"], "99" in refusal["error"]) == (426, True, True)
    assert post(counter, reset(counter), authorization="Bearer no")[0] == 401
    assert post(counter, reset(counter), authorization=f"Basic {TOKEN}")[0] == 401
    assert httpx.get(counter.url, headers={"authorization": f"Bearer {TOKEN}"}, verify=False).status_code == 426


def test_requests_and_sessions_are_bounded(counter: Served) -> None:
    assert post(counter, {"number": 1, "padding": "x" * 6000})[0] == 413
    assert post(counter, reset(counter), "sessions/short")[0] == 400
    assert post(counter, [1])[0] == 400
    assert post(counter, {}, "fly")[0] == 404
    others = ["a" * 32, "b" * 32]
    for name in others:
        assert post(counter, reset(counter), f"sessions/{name}")[0] == 200
    status, refusal = post(counter, reset(counter), f"sessions/{'c' * 32}")
    assert (status, refusal["error"].partition(":")[0]) == (503, "all 2 sessions are in use")
    close(counter, 2, others[0])
    assert post(counter, reset(counter), f"sessions/{'c' * 32}")[0] == 200
    close(counter, 2, others[1])
    close(counter, 2, "c" * 32)


def test_an_idle_session_is_ended_and_its_instance_closed() -> None:
    with served(COUNTER, idle_seconds=0.3) as server:
        assert post(server, reset(server))[0] == 200
        before, until = len(Counter.closed), time.monotonic() + 30
        while len(Counter.closed) == before:
            assert time.monotonic() < until
            time.sleep(0.01)
        status, refusal = post(server, step(2))
        assert (status, "had no request of it for 0.3 s" in refusal["error"]) == (410, True)


def test_the_end_of_a_server_closes_its_sessions() -> None:
    with served(COUNTER) as server:
        assert post(server, reset(server))[0] == 200
        before = len(Counter.closed)
    assert len(Counter.closed) == before + 1


def spoken(version: str) -> Any:
    """Return what makes an app answer in another version of the protocol; "" is none at all."""

    def wrap(app: Any) -> Any:
        async def other(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
            async def sent(event: dict[str, Any]) -> None:
                if event["type"] == "http.response.start":
                    name = wire.HEADER.encode()
                    kept = [(n, v) for n, v in event["headers"] if n != name]
                    event["headers"] = [*kept, *([(name, version.encode())] if version else [])]
                await send(event)

            await app(scope, receive, sent)

        return other

    return wrap


@pytest.mark.parametrize(("version", "text"), [("99", "speaks version 99 of the protocol"), ("", "is no server of a")])
async def test_another_version_is_a_mistake_at_first_and_a_fault_in_an_episode(
    counter: Served, version: str, text: str
) -> None:
    with served(COUNTER, wrap=spoken(version)) as other:
        with pytest.raises(UserError, match=text):
            make(other.url)
        async with EnvFactory(behind(other.url, counter), name="other") as factory:
            task = Counter.tasks(count=1)[0]
            episode = await run_episode(factory, playing("1"), task, seed=1, episode_id="e")
    assert (episode.outcome, episode.reward) == (Outcome.INFRA_FAULT, None)
    assert text in episode.error


@pytest.mark.parametrize("what", ["black hole", "refuse", "drop answer"])
async def test_a_connection_that_stays_lost_is_a_fault(counter: Served, what: str) -> None:
    async with Proxy(counter.url, ["pass", *[what] * 9]) as url:
        remote = behind(url, counter)
        remote.shared = {"connections": "contrib.serve.tests.served:impatient"}
        async with EnvFactory(remote, name="lost") as factory:
            for name in ("first", "lost"):
                task = Counter.tasks(count=1)[0]
                episode = await run_episode(factory, playing(("up", {}), "1"), task, seed=1, episode_id=name)
                if name == "first":
                    assert episode.outcome is Outcome.SCORED
                    await factory.shared["connections"].close()  # the next session connects anew
    assert (episode.outcome, episode.reward, episode.success) == (Outcome.INFRA_FAULT, None, None)
    assert "was lost in reset" in episode.error
    for left, session in list(counter.app._sessions.items()):
        if not session.is_closed:  # the answer to a close is sent before the session leaves the list
            await asyncio.to_thread(close, counter, session._number + 1, left)


async def test_a_long_step_gives_signs_of_life(counter: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "BEAT_SECONDS", 0.05)
    remote = behind(counter.url, counter)
    remote.shared = {"connections": "contrib.serve.tests.served:impatient"}
    async with EnvFactory(remote, name="slow") as factory:
        task = Counter.tasks(count=1)[0]
        episode = await run_episode(factory, playing(("slow", {"seconds": 1.2}), "1"), task, seed=1, episode_id="e")
    assert (episode.outcome, episode.reward) == (Outcome.SCORED, 1.0), episode.error


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "serve needs one of three: RUN"),
        (["--env", "external"], "has turns that run at once"),
        (["--env", "math", "--as", "htp"], "is no protocol"),
        (["--env", "math", "--option", "levl=1"], "has no option 'levl'"),
        (["--env", "math", "--port", "99999"], "is no port"),
        (["--env", "math", "--host", "203.0.113.9"], "cannot listen at 203.0.113.9"),
        (["--env", "math", "--token", "short"], "it is not shown"),
        (["--env", "math", "--token", "x" * 20, "--token-file", "f"], "are both given"),
        (["--env", "math", "--token-file", "/no/such/file"], "cannot be read"),
        (["--env", "math", "--max-sessions", "0"], "--max-sessions 0"),
        (["--env", "math", "--as", "opnenv"], "Did you mean openenv? Available: http, mcp, openenv."),
        (["--env", COUNTER, "--as", "openenv", "--split", "nix"], "there is no split 'nix'"),
        (["--env", "math", "--as", "openenv", "--limit", "max_turn=3"], "names no limit"),
        (["--env", "math", "--as", "http", "--limit", "max_turns=3"], "--out and --limit are for"),
    ],
)
def test_a_mistake_gets_one_sentence(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *arguments]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "what",
    [["outputs/run"], *(["--env", "math", "--as", name] for name in ("http", "openenv", "mcp")), ["--agent", "vllm:x"]],
)
def test_a_port_that_is_taken_is_said_before_anything_is_opened(
    what: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", *what, "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert f"cannot listen at 127.0.0.1, port {port}: Address already in use" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("http://", "is no address of a server"),
        ("http://user:secret@host", "holds a user or password"),
        ("http://host?tokn_env=A", "has the setting 'tokn_env'"),
        ("http://host:99999", "is no address of a server"),
    ],
)
def test_a_wrong_address_gets_one_sentence(address: str, text: str) -> None:
    with pytest.raises(UserError, match=text.replace("?", r"\?")) as raised:
        make(address)
    assert "secret" not in str(raised.value)


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counter: Served) -> None:
    monkeypatch.setenv("OTHER", "the-token-of-another-server")
    assert ServerAddress.parse(f"{counter.url}/?token_env=OTHER") == ServerAddress(counter.url, "OTHER")
    with pytest.raises(UserError, match="the token is wrong or missing"):
        make(f"{counter.url}?token_env=OTHER")
    with pytest.raises(UserError, match="variable MISSING, which is not set"):
        make(f"{counter.url}?token_env=MISSING")
    (tmp_path / "token").write_text("a-token-in-a-file\n")
    assert read_token(file=tmp_path / "token") == ("a-token-in-a-file", False)
    monkeypatch.delenv("FORGE_ENV_TOKEN")
    made, is_new = read_token()
    assert is_new
    assert len(made) > 40
    assert made != read_token()[0]
    assert [ServeSettings(token=made, host=host).is_local for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0")] == [
        *(True, True, True, False)
    ]


def test_a_session_in_use_is_waited_for(counter: Served) -> None:
    """A full server is busy and not lost: a client that waits gets the session that another one leaves."""
    for name in ("d" * 32, "e" * 32):
        assert post(counter, reset(counter), f"sessions/{name}")[0] == 200

    async def play() -> Any:
        async with make(counter.url) as factory:
            task = Counter.tasks(count=1)[0]
            return await run_episode(factory, playing("1"), task, seed=1, episode_id="e")

    async def free_one_meanwhile() -> Any:
        playing_now = asyncio.create_task(play())
        await asyncio.to_thread(close, counter, 2, "d" * 32)
        return await playing_now

    assert asyncio.run(free_one_meanwhile()).outcome is Outcome.SCORED
    close(counter, 2, "e" * 32)


async def test_an_episode_of_a_client_is_closed_after_its_set_up() -> None:
    with Opened(Recorded, "setup") as opened:
        async with opened.factory as factory:
            session = Session(factory, max_seconds=DEADLINE_S)
            task = {"id": "", "prompt": list(SLOW_TASK.prompt)}
            call = session.call({"number": 1, "call": "reset", "task": task, "seed": 0})
            await until(lambda: opened.begins in opened.notes)
            ended = asyncio.create_task(session.end(DEADLINE_S))
            await asyncio.wait({ended}, timeout=MOMENT_S)
            assert call.cancelled() and opened.notes == [opened.begins]
            opened.go_on()
            await ended
        assert opened.notes == [*opened.both, "close"]
