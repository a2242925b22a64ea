"""textarena:ID with the package from the index, in an environment of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agents.scripted import ScriptedAgent
from envs.textarena.process import worker_of
from forge_env import Outcome, UserError, make
from forge_env.check import run_checks
from forge_env.core.types import Message
from tests.envs.textarena.test_textarena import play, says
from tests.helpers.own_environment import python_with

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PACKAGES = ("textarena==0.7.4", "numpy==2.3.5")
PLAYED = ("TicTacToe-v0", "ConnectFour-v0", "KuhnPoker-v0", "Othello-v0-tiny", "SimpleTak-v0", "PigDice-v0-short")
"""Games that random players play to their end."""
REFUSED = {
    "Wordle-v0": "nltk's corpus",
    "TwentyQuestions-v0": "asks models at OpenRouter",
    "ScorableGames-v0": "Game configuration directory not found",
    "UsedCar-v0-balanced": "No module named",
}


@pytest.fixture
def python() -> str:
    return str(python_with(*PACKAGES))


@pytest.mark.parametrize("game", ["TicTacToe-v0", "FrozenLake-v0", "KuhnPoker-v0-short"])
async def test_the_checks_pass(python: str, game: str) -> None:
    report = await run_checks(make(f"textarena:{game}", python=python), tasks=4, seconds=400)
    assert [row for row in report.rows if row.ok is False or row.unfinished] == []


def free_square(messages: list[Message]) -> Message:
    squares = re.findall(r"'(\[\d\])'", messages[-1]["content"].rpartition("Available Moves")[2])
    return {"role": "assistant", "content": squares[0]}


async def test_the_rules_and_rewards_of_the_games_come_along(python: str) -> None:
    async with make("textarena:TicTacToe-v0", python=python, seat="any") as factory:
        tasks = factory.tasks("train", count=16)
        episodes = [await play(factory, ScriptedAgent(free_square), task) for task in tasks]
        assert {episode.outcome for episode in episodes} == {Outcome.SCORED}, [e.error for e in episodes]
        assert {episode.reward for episode in episodes} >= {1.0, -1.0}
        for episode in episodes:
            info = episode.info["textarena"]
            won = f"Player {info['seat']} has won!" == info["reason"]
            assert won == episode.success == (episode.reward == 1.0), info
        invalid = await play(factory, says("[9]"), tasks[0])
        assert (invalid.reward, invalid.info["textarena"]["invalid_move"], len(invalid.turns)) == (-1.0, True, 2)
        assert "attempted an invalid move" in invalid.turns[1].observation[0]["content"]
        assert make("textarena:TicTacToe-v0", python=python).declared_limits() == {"max_turns": 200}
    async with make("textarena:GuessTheNumber-v0", python=python) as factory:
        assert factory.declared_limits() == {"max_turns": 20}
        numbers = iter(range(1, 21))
        guess = ScriptedAgent(lambda messages: {"role": "assistant", "content": f"[{next(numbers)}]"})
        episode = await play(factory, guess)
        assert episode.outcome is Outcome.SCORED and episode.info["textarena"]["reason"], episode.error


async def test_random_players_play_to_the_end(python: str) -> None:
    arena = worker_of(python)
    start = {"do": "start", "options": {}, "seed": 3, "seat": -1, "opponent": "random"}
    for game in PLAYED:
        players = arena.describe(game, {})["players"][0]
        first, again = (
            arena.ask({**start, "session": session, "game": game, "players": players}) for session in ("a", "b")
        )
        assert first["done"] and set(first["rewards"].values()) <= {-1, 0, 1}, game
        assert first == again, game


@pytest.mark.parametrize("game", REFUSED)
def test_games_that_cannot_be_played_are_refused_with_the_reason(python: str, game: str) -> None:
    with pytest.raises(UserError, match=REFUSED[game]):
        make(f"textarena:{game}", python=python).tasks("train", count=1)


def test_the_command_evaluates_a_scripted_agent(python: str, tmp_path: Path) -> None:
    (tmp_path / "player.py").write_text(
        "import re\ndef move(messages):\n"
        "    moves = re.findall(r\"'(\\[\\d\\])'\", messages[-1]['content'].rpartition('Available Moves')[2])\n"
        "    return {'role': 'assistant', 'content': moves[0]}\n"
    )
    command = [str(Path(sys.executable).with_name("forge-env")), "eval", "--env", "textarena:TicTacToe-v0"]
    command += ["--option", f"python={python}", "--agent", "scripted:player.py:move", "--tasks", "6", "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    episodes = [json.loads(line) for line in next(tmp_path.glob("out/**/episodes.jsonl")).read_text().splitlines()]
    assert {episode["outcome"] for episode in episodes} == {"scored"} and len(episodes) == 6
