"""textarena:ID with a small package of the same interface; test_textarena_package.py has the real one."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agents.scripted import ScriptedAgent
from contrib.chat import client
from contrib.check import run_checks
from contrib.textarena import worker as library
from contrib.textarena.process import Worker, worker_of
from forge_env import EnvFactory, Episode, Outcome, Task, UserError, env_class, make, run_episode
from forge_env.core.errors import EnvError
from forge_env.core.types import EpisodeLimits, Message
from tests.envs.serving import serve

if sys.platform != "linux":
    pytest.skip("helper processes are confined on Linux", allow_module_level=True)

ARENA = Path(__file__).with_name("small_arena")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An interpreter that has the small package."""
    program = tmp_path_factory.mktemp("arena") / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ARENA} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    yield str(program)
    worker_of(str(program)).close()
    assert worker_of(str(program)).pid is None


def arena(python: str) -> Worker:
    return worker_of(python)


def marked(messages: list[Message]) -> Message:
    """Take the last number that is marked."""
    numbers = re.findall(r"\[\d\]", messages[-1]["content"])
    return {"role": "assistant", "content": numbers[-1]}


def says(text: str) -> ScriptedAgent:
    return ScriptedAgent(lambda messages: {"role": "assistant", "content": text})


async def play(factory: EnvFactory, agent: ScriptedAgent, task: Task | None = None) -> Episode:
    task = task or factory.tasks("train", count=1)[0]
    limits = EpisodeLimits(**factory.declared_limits())
    return await run_episode(factory, agent, task, seed=0, episode_id="e", limits=limits)


async def test_a_game_of_two_has_the_reward_of_the_agents_seat(python: str) -> None:
    async with make("textarena:Pile-v0", python=python) as factory:
        episodes = [await play(factory, ScriptedAgent(marked), t) for t in factory.tasks("train", count=12)]
    assert {e.outcome for e in episodes} == {Outcome.SCORED}
    assert {e.reward for e in episodes} == {1.0, -1.0}
    for episode in episodes:
        info = episode.info["textarena"]
        assert episode.reward == info["rewards"]["0"] == -info["rewards"]["1"]
        assert info["reason"] == f"Player {0 if episode.success else 1} took the last."
        assert (info["seat"], info["players"], info["opponent"], info["version"]) == (0, 2, "random", "0.7.4")
        assert episode.messages[-1]["content"] == f"The game is over. {info['reason']}"
        assert not any("[Player 0]" in m["content"] for m in episode.messages), "its own moves are not repeated"
        assert len(episode.turns) < 2 or "[Player 1] [" in episode.turns[1].observation[0]["content"]


async def test_the_seat_may_be_the_second_or_any(python: str) -> None:
    async with make("textarena:Pile-v0", python=python, seat="1", opponent="first") as factory:
        episode = await play(factory, ScriptedAgent(marked))
        assert episode.info["textarena"]["seat"] == 1
        assert "[Player 0] [" in episode.messages[1]["content"]
    async with make("textarena:Pile-v0", python=python, seat="any") as factory:
        tasks = factory.tasks("train", count=16)
        seats = [(await play(factory, says("?"), task)).info["textarena"]["seat"] for task in tasks]
        again = [(await play(factory, says("?"), task)).info["textarena"]["seat"] for task in tasks]
    assert set(seats) == {0, 1} and seats == again


async def test_invalid_moves_lose_and_text_that_repeats_is_cut(python: str) -> None:
    async with make("textarena:Pile-v0", python=python) as factory:
        lost = await play(factory, says("I take 99."))
    assert (lost.reward, lost.success, lost.info["textarena"]["invalid_move"]) == (-1.0, False, True)
    async with make("textarena:Echo-v0", python=python) as factory:
        agent = ScriptedAgent(lambda m: {"role": "assistant", "content": "hi" if len(m) < 5 else "stop"})
        talk = await play(factory, agent)
    assert talk.reward == 0.5 and not talk.success
    users = [message["content"] for message in talk.messages if message["role"] == "user"]
    assert [len(re.findall(r"Say \d+", text)) for text in users] == [1, 1, 1, 0], users


@pytest.mark.parametrize(
    ("game", "moves", "reward", "words"),
    [
        ("Pile-v0", ["crash"], -1.0, "KeyError: 'crash'"),
        ("Echo-v0", ["hi", "hi", "crash"], 0.02, "IndexError: no such"),
    ],
)
async def test_a_move_that_the_game_fails_on_is_an_invalid_move(
    python: str, game: str, moves: list[str], reward: float, words: str
) -> None:
    written = iter(moves)
    async with make(f"textarena:{game}", python=python) as factory:
        episode = await play(factory, ScriptedAgent(lambda _: {"role": "assistant", "content": next(written)}))
    info = episode.info["textarena"]
    assert (episode.outcome, episode.reward, info["invalid_move"]) == (Outcome.SCORED, reward, True), episode.error
    assert words in info["reason"] and "unfinished" not in info


@pytest.mark.parametrize(
    ("game", "options", "reward"), [("Echo-v0", {}, 0.05), ("Pile-v0", {"game_options": '{"size": 60}'}, 0.0)]
)
async def test_a_game_that_a_limit_cuts_is_worth_its_running_score(
    python: str, game: str, options: dict[str, Any], reward: float
) -> None:
    """Not a lost game: the share of the work where the game counts it, else a draw's 0."""
    async with make(f"textarena:{game}", python=python, **options) as factory:
        limits = EpisodeLimits(**{**factory.declared_limits(), "max_turns": 5})
        agent = ScriptedAgent(lambda m: marked(m) if game == "Pile-v0" else {"role": "assistant", "content": "hi"})
        [task] = factory.tasks("train", count=1)
        episode = await run_episode(factory, agent, task, seed=0, episode_id="e", limits=limits)
    assert (episode.outcome, episode.ended_by, episode.reward) == (Outcome.TRUNCATED, "max_turns", reward)
    info = episode.info["textarena"]
    assert (info["unfinished"], info["score"], info["seat"], info["version"]) == (True, reward, 0, "0.7.4")


async def test_the_same_seed_gives_the_same_game_however_many_are_played_at_once(python: str) -> None:
    async with make("textarena:Pile-v0", python=python, game_options='{"size": 12}') as factory:
        tasks = factory.tasks("train", count=4)
        alone = [(await play(factory, ScriptedAgent(marked), task)).messages for task in tasks]
        together = await asyncio.gather(*(play(factory, ScriptedAgent(marked), t) for t in tasks * 4))
        arena(python).close()  # and in another process
        later = [(await play(factory, ScriptedAgent(marked), task)).messages for task in tasks]
    assert [episode.messages for episode in together] == alone * 4
    assert later == alone
    assert len({str(messages) for messages in alone}) == len(tasks)


async def test_a_killed_process_is_a_fault_of_the_games_under_way_alone(python: str) -> None:
    async with make("textarena:Pile-v0", python=python, game_options='{"size": 30}') as factory:
        await play(factory, ScriptedAgent(marked))
        turns: list[int] = []

        def kill_at_the_second_turn(messages: list[Message]) -> Message:
            turns.append(1)
            if len(turns) == 2:
                pid = arena(python).pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            return marked(messages)

        killed = await play(factory, ScriptedAgent(kill_at_the_second_turn))
        assert (killed.outcome, killed.reward) == (Outcome.INFRA_FAULT, None), killed.error
        assert "another one took its place" in killed.error
        assert (await play(factory, ScriptedAgent(marked))).outcome is Outcome.SCORED


async def test_a_game_that_gives_no_number_is_a_fault(python: str) -> None:
    async with make("textarena:Pile-v0", python=python) as factory:
        episode = await play(factory, says("[nonsense]"))
        assert (episode.outcome, episode.reward) == (Outcome.ENV_FAULT, None) and "nan" in episode.error
    async with make("textarena:Pile-v0", python=python, opponent="random") as factory:
        assert (await play(factory, ScriptedAgent(marked))).outcome is Outcome.SCORED


def test_a_game_that_hangs_is_ended_and_the_process_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "CALL_SECONDS", 0.05)

    def hang() -> None:
        while True:
            pass

    with pytest.raises(TimeoutError, match="longer than 0.05 s"):
        library._call_in_time(hang)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


async def test_nothing_is_left_after_this_process_is_killed(python: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, time\nfrom contrib.textarena.process import worker_of\n"
        f"worker = worker_of({python!r})\nworker.describe('Pile-v0', {{}})\n"
        "print(worker.pid, flush=True)\ntime.sleep(600)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ARENA.parents[3])}
    process = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env=environ)
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        watch = os.pidfd_open(pid)
        process.kill()
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(watch, ended.set)
        async with asyncio.timeout(60):
            await ended.wait()
        loop.remove_reader(watch)
        os.close(watch)
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


class Endpoint:
    """An OpenAI-compatible endpoint that plays by `choose`, and keeps what it was asked."""

    def __init__(self, choose: Callable[[str], str]) -> None:
        self.choose = choose
        self.asked: list[list[Message]] = []
        self.finish = "stop"
        self.app = Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])])

    async def _complete(self, request: Request) -> JSONResponse:
        messages = (await request.json())["messages"]
        self.asked.append(messages)
        message = {"role": "assistant", "content": self.choose(messages[-1]["content"])}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        return JSONResponse({"choices": [{"message": message, "finish_reason": self.finish}], "usage": usage})


async def test_a_model_plays_the_other_seat(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_FIRST_PAUSE", 0.001)  # of the requests to an endpoint that is gone
    endpoint = Endpoint(lambda text: re.findall(r"\[\d\]", text)[-1])
    with serve(endpoint.app) as url:
        opponent = f"openai:tiny@{url}/v1"
        async with make("textarena:Pile-v0", python=python, opponent=opponent, game_options='{"size": 20}') as factory:
            episode = await play(factory, ScriptedAgent(marked))
            assert "asks the model tiny@" in factory.effects()
        assert episode.outcome is Outcome.SCORED, episode.error
        assert episode.info["model_calls"]["user"]["calls"] == len(endpoint.asked) > 1
        assert [m["role"] for m in endpoint.asked[1]] == ["system", "user", "assistant", "user"]
    async with make("textarena:Pile-v0", python=python, opponent=opponent) as factory:
        dead = await play(factory, ScriptedAgent(marked))
    assert (dead.outcome, dead.reward) == (Outcome.INFRA_FAULT, None) and "an opponent, did not answer" in dead.error
    endpoint.finish = "length"
    with serve(endpoint.app) as url:
        async with make("textarena:Pile-v0", python=python, opponent=f"openai:tiny@{url}/v1") as factory:
            cut = await play(factory, ScriptedAgent(marked))
    assert (cut.outcome, cut.reward) == (Outcome.INFRA_FAULT, None) and "was cut off at 1024 tokens" in cut.error


@pytest.mark.parametrize(
    ("game", "options", "sentence"),
    [
        ("Pyle-v0", {}, "no game 'Pyle-v0'. Did you mean Pile-v0"),
        ("Words-v0", {}, "needs nltk's corpus 'words'.*nltk.downloader words"),
        ("Debate-v0", {}, "asks models at OpenRouter"),
        ("Klondike-v0", {}, "is wrong in every Python .invalid syntax .env.py, line 119..: choose another game"),
        ("Bandit-v0-hard", {}, "from the best button, the more it is paid: choose another game"),
        ("Pile-v0", {"players": "3"}, "players is 3; the game Pile-v0 takes 2"),
        ("Pile-v0", {"seat": "2"}, "seat is '2'; it is a number from 0 to 1, or any"),
        ("Pile-v0", {"opponent": "clever"}, "opponent is 'clever'; it is random"),
        ("Pile-v0", {"opponent": "openai:@x"}, "opponent is 'openai:@x'"),
        ("Pile-v0", {"game_options": "[1]"}, "game_options is '.1.'; write it as a JSON object"),
        ("Pile-v0", {"game_options": '{"colour": 1}'}, "cannot be played with game_options.*colour"),
    ],
)
async def test_mistakes_get_one_sentence(python: str, game: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((UserError, EnvError), match=sentence):
        async with make(f"textarena:{game}", python=python, **options) as factory:
            factory.tasks("train", count=1)
            factory.make()


@pytest.mark.parametrize(("version", "sentence"), [((3, 11), "needs Python 3.12"), ((3, 12), "wrong in every Python")])
def test_a_newer_python_is_named_only_if_it_helps(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], sentence: str
) -> None:
    monkeypatch.setattr(library.sys, "version_info", version)
    assert sentence in library._reason(SyntaxError("f-string: unmatched '[' (env.py, line 62)"))


def test_interpreters_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="names no game"):
        env_class("textarena:")
    with pytest.raises(UserError, match="python='/no/python' is no program"):
        make("textarena:Pile-v0", python="/no/python").tasks("train", count=1)
    empty, broken = tmp_path / "empty", tmp_path / "broken"
    empty.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    broken.write_text("#!/bin/sh\necho unknown option -P >&2\nexit 2\n")
    for program in (empty, broken):
        program.chmod(0o755)
    with pytest.raises(UserError, match=f"TextArena is not installed: {empty} -m pip install textarena"):
        worker_of(str(empty))
    with pytest.raises(UserError, match="takes Python 3.11 or newer: unknown option -P"):
        worker_of(str(broken))


async def test_the_contract_holds(python: str) -> None:
    only = ("contract", "malformed actions", "leaks", "close", "isolation", "two seeds")
    report = await run_checks(make("textarena:Pile-v0", python=python), tasks=2, seconds=60, only=only)
    assert [row for row in report.rows if row.ok is False] == []
    assert report.isolation["arena"]["network_denied"]
