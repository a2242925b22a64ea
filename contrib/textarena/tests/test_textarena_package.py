"""textarena:ID with the package from the index, in an environment of its own."""

from __future__ import annotations

import json
import random
import re
import subprocess
from pathlib import Path

import pytest

from agents.scripted import ScriptedAgent
from contrib.check import run_checks
from contrib.textarena.process import worker_of
from contrib.textarena.tests.test_textarena import play, says
from forge_env import Outcome, UserError, make, run_episode
from forge_env.core.types import EpisodeLimits, Message
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
    "Klondike-v0": "wrong in every Python .invalid syntax",
    "Bandit-v0": "the more it is paid",
}


WORDS = {
    "2048-v0": ["[Up]", "[Down]", "[Left]", "[Right]"],
    "2048-v0-super-easy": ["[Up]", "[Left]", "[Right]"],
    "Blackjack-v0": ["[Hit]", "[Stand]", "[Stand]", "[Fold]"],
    "FrozenLake-v0": ["[up]", "[down]", "[right]", "[left]"],
    "PegJump-v0": [f"[{a} {b}]" for a, b in ((13, 5), (12, 5), (14, 5), (7, 9), (10, 8), (6, 13), (1, 4), (4, 13))],
    "RushHour-v0": [f"[{car}{way}]" for car in "XABCD" for way in "+-"],
    "ThreeCardMonte-v0": ["[0]", "[1]", "[2]", "none"],
    "GuessTheNumber-v0": [f"[{n}]" for n in range(1, 21)],
    "LightsOut-v0": [f"[{row} {column}]" for row in range(5) for column in range(5)],
    "TowerOfHanoi-v0": ["[A B]", "[A C]", "[B C]", "[C A]"],
    "Minesweeper-v0-small": [f"[{row} {column}]" for row in range(5) for column in range(5)],
    "FifteenPuzzle-v0": ["[up]", "[down]", "[left]", "[right]"],
    "Mastermind-v0": ["[1 2 3 4]", "[2 3 4 5]", "[6 5 4 3]", "[1 1 1 1]"],
}
"""Games for one, and words of which a player makes moves."""


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


async def test_a_second_invalid_move_is_a_loss_in_games_that_swap_its_reward_and_reason(python: str) -> None:
    async with make("textarena:ThreeCardMonte-v0", python=python) as factory:
        episode = await play(factory, says("none"))
    assert (episode.outcome, len(episode.turns)) == (Outcome.SCORED, 2), episode.error
    assert episode.reward is not None and not episode.success
    assert "Invalid" in episode.info["textarena"]["reason"]


async def test_games_for_one_are_worth_what_the_packages_own_loop_says(python: str) -> None:
    """Whether they end by themselves, by invalid moves, or at our limit."""
    games, tasks = [], {}
    for game, words in WORDS.items():
        async with make(f"textarena:{game}", python=python) as factory:
            tasks[game] = factory.tasks("train", count=5, seed=2)
        for task in tasks[game]:
            draw = random.Random(f"{game}/{task.metadata['seed']}")
            moves = [draw.choice(words) for _ in range(12 if game == "2048-v0" else 25)]
            games.append({"id": game, "seed": task.metadata["seed"], "moves": moves})
    script = str(Path(__file__).with_name("package_games.py"))
    done = subprocess.run([python, script], input=json.dumps(games), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    different = []
    for game, other in zip(games, theirs, strict=True):
        [task] = [task for task in tasks[game["id"]] if task.metadata["seed"] == game["seed"]]
        moves = iter(game["moves"])
        agent = ScriptedAgent(lambda _, moves=moves: {"role": "assistant", "content": next(moves)})
        async with make(f"textarena:{game['id']}", python=python) as factory:
            limits = EpisodeLimits(**{**factory.declared_limits(), "max_turns": len(game["moves"])})
            episode = await run_episode(factory, agent, task, seed=0, episode_id="e", limits=limits)
        outcome = Outcome.SCORED if other["reason"] else Outcome.TRUNCATED
        ours = (episode.outcome, episode.reward, len(episode.turns), episode.info["textarena"].get("reason"))
        if ours != (outcome, other["reward"], other["moves"], other["reason"]):
            different.append((game["id"], game["seed"], ours, other))
    assert different == []
    assert len(theirs) >= 50 and sum(other["reason"] is None for other in theirs) >= 5


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
