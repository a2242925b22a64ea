"""A small package with the interface of TextArena 0.7.4 that `contrib/textarena/worker.py` uses, and a few games."""

from __future__ import annotations

import enum
import random
from typing import Any

from textarena.envs.registration import ENV_REGISTRY


class ObservationType(enum.Enum):
    PROMPT = 1
    PLAYER_ACTION = 2
    GAME_MESSAGE = 3


class State:
    def __init__(self, players: int, max_turns: int | None = None) -> None:
        assert players == self.players, f"it has {self.players} players, not {players}"
        self.max_turns = max_turns
        self.current_player_id = 0
        self.role_mapping = {-1: "GAME", **{i: f"Player {i}" for i in range(players)}}
        self.observations: dict[int, list[Any]] = {i: [] for i in range(players)}
        self.done = False
        self.rewards: dict[int, float] | None = None
        self.game_info: dict[int, dict[str, Any]] = {i: {"invalid_move": False} for i in range(players)}

    players = 2

    def add_observation(self, message: str, kind: ObservationType, sender: int = -1) -> None:
        for seen in self.observations.values():
            seen.append((sender, message, kind))

    def set_invalid_move(self, reason: str) -> None:
        player = self.current_player_id
        self.finish({i: -1 if i == player else 1 for i in self.observations}, reason)
        self.game_info[player]["invalid_move"] = True

    def step(self) -> tuple[bool, dict[str, Any]]:
        return self.done, {}

    def finish(self, rewards: dict[int, float], reason: str) -> None:
        self.done, self.rewards = True, rewards
        for info in self.game_info.values():
            info["reason"] = reason


class TwoPlayerState(State):
    pass


class SinglePlayerState(State):
    players = 1

    def set_invalid_move(self, reason: str, reward: float = -1.0) -> None:
        self.finish({0: reward}, reason)
        self.game_info[0]["invalid_move"] = True


class Pile:
    """Players take the marked number, which is drawn anew for each move, from a pile; who empties it wins."""

    def __init__(self, size: int = 6) -> None:
        self.size = size

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = TwoPlayerState(num_players, max_turns=self.size)
        random.seed(seed)
        self.left = self.size
        self._announce()

    def _announce(self) -> None:
        self.marked = random.randint(1, 3)
        text = f"There are {self.left}. Take [{self.marked}] or [give up]."
        self.state.add_observation(text, ObservationType.GAME_MESSAGE)

    def get_observation(self) -> tuple[int, list[Any]]:
        player = self.state.current_player_id
        seen, self.state.observations[player] = self.state.observations[player], []
        return player, seen

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        state = self.state
        state.add_observation(action, ObservationType.PLAYER_ACTION, state.current_player_id)
        if "hang" in action:
            while True:
                pass
        if "crash" in action:
            raise KeyError("crash")
        if action == "[nonsense]":
            state.finish({0: float("nan"), 1: 0.0}, "No number.")
        elif action != f"[{self.marked}]":
            state.set_invalid_move(f"{action} is not marked.")
        else:
            self.left -= self.marked
            if self.left <= 0:
                winner = state.current_player_id
                state.finish({winner: 1, 1 - winner: -1}, f"Player {winner} took the last.")
            state.current_player_id = 1 - state.current_player_id
            self._announce()
        return state.done, {}

    def close(self) -> tuple[Any, Any]:
        return self.state.rewards, self.state.game_info


class Echo:
    """One player; the text of a view holds all that was before, as TextArena's wrappers write it."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = SinglePlayerState(num_players)
        random.seed(seed)
        self.seen, self.heard = f"\n[GAME] Say {random.randrange(1000)}.", 0

    def get_observation(self) -> tuple[int, str]:
        return 0, self.seen

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        if "crash" in action:
            raise IndexError("no such word")
        self.heard += 1
        self.seen += f"\n[GAME] Heard {len(action)}. Say {random.randrange(1000)}."
        if "stop" in action:
            self.state.finish({0: 0.5}, "You said so.")
        return self.state.done, {}

    def _get_percentage_completion(self) -> float:
        return self.heard**2 / (100 * self.heard)  # before the first move, a fault of its code

    def close(self) -> tuple[Any, Any]:
        return self.state.rewards, self.state.game_info


class Words:
    def __init__(self) -> None:
        raise LookupError("\n*****\n  Resource 'words' not found.\n  Please use the NLTK Downloader to obtain it\n")


class Debate:
    def __init__(self) -> None:
        raise ValueError("OpenRouter API key not found. Please set the OPENROUTER_API_KEY environment variable.")


class Klondike:
    def __init__(self) -> None:
        raise SyntaxError("invalid syntax (env.py, line 119)")


GAMES = {
    "Pile-v0": Pile,
    "Echo-v0": Echo,
    "Words-v0": Words,
    "Debate-v0": Debate,
    "Klondike-v0": Klondike,
    "Bandit-v0-hard": Pile,
}
ENV_REGISTRY.update(GAMES)


def make(name: str, **options: Any) -> Any:
    return GAMES[name](**options)
