"""Plays the games of TextArena, for `envs.processes.worker`: many at once, each with random numbers of its own.

Games draw from the module `random`, some from NumPy's global generator. Both are exchanged around every call of a game,
so that the same seed gives the same game however many are played at once.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import random
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.processes.worker import Request, RunForked, Write

PACKAGES = ("textarena", "nltk")
CALL_SECONDS = 60.0
"""Time limit of one call of a game."""
TRIAL_SECONDS = 5.0
"""Time limit of trying one move in a fork."""
TRIALS = 150
MAX_PLAYERS = 15
MAX_OPPONENT_MOVES = 1000
"""Moves of opponents between two of the agent."""
BUILT_IN = ("random", "first")
UNFIT = {"Bandit": "the further its last choice is from the best button, the more it is paid: choose another game"}
"""Games whose rewards teach the opposite of their task, and why."""
_BRACKETS = re.compile(r"\[[^\[\]\n]{1,60}\]")
_WORDS_ALONE = "I pass."
"""The last move to be tried: games of talk accept any text."""


def open_library(run_forked: RunForked) -> Callable[[Request], Request]:
    os.environ.pop("OPENROUTER_API_KEY", None)  # a game that cannot reach its judges would count no votes
    tempfile.tempdir = os.sep  # nltk asks for the folder, and none can be found by writing to it
    with contextlib.suppress(ImportError):
        import numpy  # noqa: F401  # before its generator is saved for the first time
    with contextlib.suppress(ImportError):
        # Games try to fetch word lists. This process has no network and no place for them.
        nltk: Any = importlib.import_module("nltk")
        nltk.download = lambda *args, **kwargs: False
    return Library(run_forked).answer


class Library:
    def __init__(self, run_forked: RunForked) -> None:
        self._arena = importlib.import_module("textarena")
        self._run_forked = run_forked
        self._games: dict[str, Game] = {}

    def answer(self, request: Request) -> Request:
        do = request["do"]
        if do == "games":
            return {"games": sorted(sys.modules["textarena.envs.registration"].ENV_REGISTRY)}
        if do == "describe":
            return self._describe(request["game"], request["options"])
        if do == "end":
            return {"ended": self._games.pop(request["session"], None) is not None}
        if do == "start":
            game = Game(self._make(request["game"], request["options"], request["seed"]), request)
            self._games[request["session"]] = game
        elif request["session"] not in self._games:
            return {"lost": True}
        else:
            game = self._games[request["session"]]
            game.step(request["text"])
        return self._advance(game)

    def _make(self, name: str, options: dict[str, Any], seed: int) -> Any:
        def make() -> Any:
            _seed(seed)
            return self._arena.make(name, **options)

        return _call_in_time(make)

    def _describe(self, name: str, options: dict[str, Any]) -> Request:
        """Return the numbers of players that a game takes and its limit of turns, or why it cannot be played."""
        players: list[int] = []
        max_turns, refusal = None, UNFIT.get(name.partition("-")[0], "")
        if refusal:
            return {"refused": refusal}
        for number in range(1, MAX_PLAYERS + 1):
            try:
                env = self._make(name, options, 0)
            except BaseException as error:
                return {"refused": _reason(error)}
            try:
                _call_in_time(functools.partial(env.reset, num_players=number, seed=0))
                kind, is_for_one = type(env.state).__name__, _is_for_one(env.state)
            except Exception as error:
                refusal = refusal or _reason(error)
                continue
            max_turns = getattr(env.state, "max_turns", None)
            if is_for_one or kind == "TwoPlayerState":  # some of their games accept any number
                players = [1 if is_for_one else 2]
                break
            players += [number] if number > 1 else []
        return {"players": players, "max_turns": max_turns} if players else {"refused": refusal}

    def _advance(self, game: Game) -> Request:
        """Play the built-in opponents until somebody else is to move, or the game is over."""
        for _ in range(MAX_OPPONENT_MOVES):
            if game.is_done:
                return game.result()
            player, text = game.observe()
            if player == game.seat or game.opponent not in BUILT_IN:
                return {"player": player, "text": text, "score": game.score()}
            # What stands in brackets in the player's view, or has the form of that.
            move = next((move for move in game.candidates(player, text) if self._is_legal(game, move)), None)
            if move is None:
                return {"stuck": player}
            game.step(move)
        return {"endless": MAX_OPPONENT_MOVES}

    def _is_legal(self, game: Game, move: str) -> bool:
        def try_move(write: Write) -> None:
            write(game.is_legal(move))

        limits = {"cpu_seconds": TRIAL_SECONDS, "wall_seconds": TRIAL_SECONDS, "memory_bytes": 8 << 30}
        output, _ = self._run_forked(try_move, **limits)
        return output == [True]


class Game:
    def __init__(self, env: Any, request: Request) -> None:
        self._env = env
        self.seat, self.opponent = request["seat"], request["opponent"]
        self._texts: dict[int, str] = {}
        self.is_done = False
        self._moves = random.Random(f"{request['seed']}/opponents")
        _call_in_time(lambda: env.reset(num_players=request["players"], seed=request["seed"]))
        if _is_for_one(env.state):
            _order_reason_and_reward(env.state)
        self._random = _random_state()

    def step(self, text: str) -> None:
        """Make a move. One that the code of the game fails on is an invalid move."""
        with self._random_numbers():
            try:
                self.is_done, _ = _call_in_time(lambda: self._env.step(action=text))
            except (MemoryError, OSError):  # a TimeoutError, too: the machine's, and not the game's
                raise
            except Exception as error:
                state = self._env.state
                worth = {"reward": self.score()} if _is_for_one(state) else {}
                is_out = state.set_invalid_move(reason=f"the game fails on it with {_reason(error)}", **worth)
                if is_out and not state.done:  # the others play on, which the code of the game has to arrange
                    raise
                self.is_done, _ = state.step()

    def score(self) -> float:
        """Return what the game is worth as it stands: the share that one for one player counts, else a draw's 0."""
        try:
            share = float(self._env._get_percentage_completion()) if _is_for_one(self._env.state) else 0.0
        except Exception:  # a game without such a share, or a fault of its code
            return 0.0
        return share if math.isfinite(share) else 0.0

    def observe(self) -> tuple[int, str]:
        """Return the player to move, and what is new to him. His own moves are left out: he knows what he wrote."""
        with self._random_numbers():
            self._hide_own_moves()
            player, view = _call_in_time(self._env.get_observation)
        if not isinstance(view, str):
            view = "".join(f"\n[{self._role(sender)}] {message}" for sender, message, *_ in view)
            self._texts[player] = self._texts.get(player, "") + view
            return player, view.strip("\n")
        before, self._texts[player] = self._texts.get(player, ""), view
        new = view[len(before) :] if before and view.startswith(before) else view
        return player, (new if new.strip() else view).strip("\n")

    def result(self) -> Request:
        with self._random_numbers():
            rewards, info = _call_in_time(self._env.close)
        mine = dict((info or {}).get(self.seat, {}))
        rewards = {str(player): reward for player, reward in (rewards or {}).items()}
        return {"done": True, "rewards": rewards, "info": {key: _plain(value) for key, value in mine.items()}}

    def candidates(self, player: int, text: str) -> Iterator[str]:
        newest, all_seen = self._moves_in(text), self._moves_in(self._texts[player])
        if self.opponent == "first":
            yield from dict.fromkeys([*newest, *all_seen])
        else:
            for number in range(TRIALS if all_seen else 0):
                move = self._moves.choice(newest if newest and number % 4 < 3 else all_seen)
                yield move if number % 2 == 0 else self._like(move)
        yield _WORDS_ALONE

    def is_legal(self, move: str) -> bool:
        """Make a move, and say whether the game takes it; only for a fork."""
        refusals: list[str] = []
        refuse = self._env.state.set_invalid_move

        def note(*args: Any, **kwargs: Any) -> Any:
            refusals.append(move)
            return refuse(*args, **kwargs)

        self._env.state.set_invalid_move = note
        self.step(move)
        return not refusals

    def _moves_in(self, text: str) -> list[str]:
        roles = {f"[{role}]" for role in self._env.state.role_mapping.values()}
        matches = (match.group().replace("'", "") for match in _BRACKETS.finditer(text))
        return [move for move in dict.fromkeys(matches) if move not in roles]

    def _like(self, move: str) -> str:
        """A move of the same form: other numbers, and other letters if they stand alone."""
        numbers = re.sub(r"\d+", lambda match: str(self._moves.randrange(max(10, 2 * int(match[0][:3])))), move)
        return re.sub(r"(?<![A-Za-z])[A-Ha-h](?![A-Za-z])", self._other_letter, numbers)

    def _other_letter(self, match: re.Match[str]) -> str:
        return self._moves.choice("ABCDEFGH" if match[0].isupper() else "abcdefgh")

    def _hide_own_moves(self) -> None:
        state = self._env.state
        player = state.current_player_id
        observations = getattr(state, "observations", {}).get(player)
        if observations:
            observations[:] = [item for item in observations if item[0] != player or item[2].name != "PLAYER_ACTION"]

    def _role(self, sender: int) -> str:
        return str(self._env.state.role_mapping.get(sender, "GAME" if sender == -1 else f"Player {sender}"))

    @contextlib.contextmanager
    def _random_numbers(self) -> Iterator[None]:
        _set_random_state(self._random)
        try:
            yield
        finally:
            self._random = _random_state()


def _call_in_time(call: Callable[[], Any]) -> Any:
    """Call a game, for CALL_SECONDS at most."""

    def give_up(*_: Any) -> None:
        raise TimeoutError(f"it took longer than {CALL_SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, CALL_SECONDS)
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _is_for_one(state: Any) -> bool:
    return type(state).__name__ == "SinglePlayerState"


def _order_reason_and_reward(state: Any) -> None:
    """Countdown, Cryptarithm, Slitherlink and ThreeCardMonte give both in each other's place."""
    refuse = state.set_invalid_move

    def in_order(reason: Any = None, reward: Any = -1.0) -> Any:
        return refuse(reward, reason) if isinstance(reward, str) else refuse(reason, reward)

    state.set_invalid_move = in_order


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, LookupError) and (corpus := re.search(r"Resource \W*(\w+)\W* not found", text)):
        return (
            f"it needs nltk's corpus {corpus[1]!r}, which is not on this machine: `python -m nltk.downloader "
            f"{corpus[1]}` fetches it where there is a network"
        )
    if isinstance(error, SyntaxError):
        if text.startswith("f-string") and sys.version_info < (3, 12):
            return f"its source needs Python 3.12 ({text}): name a newer interpreter as python"
        return f"its source is wrong in every Python ({text}): choose another game, or mend it there"
    if "OpenRouter" in text:
        return "it asks models at OpenRouter while it is played, which its process cannot reach"
    return f"{type(error).__name__}: {text[:300]}"


def _seed(seed: int) -> None:
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def _random_state() -> tuple[Any, Any]:
    return random.getstate(), sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None


def _set_random_state(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    if state[1] is not None:
        sys.modules["numpy"].random.set_state(state[1])


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
