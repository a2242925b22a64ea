"""textarena:ID: each game of TextArena is an environment; the agent has one seat, opponents have the others."""

from __future__ import annotations

import functools
import random
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from contrib.common.adapters import draw_seeds, json_object, refuse_calls
from contrib.textarena.opponents import ModelOpponents, check_opponent, model_of
from contrib.textarena.process import Worker, worker_of
from forge_env.core.env import Env, StepResult, after_reset
from forge_env.core.errors import EnvError, UserError
from forge_env.core.reward_value import reward_value
from forge_env.core.types import Action, Message, Task
from forge_env.utils.threads import invoke

SYSTEM_PROMPT = (
    "You play a text game. Read its rules, and write one move per turn, in the format that they ask for. The game "
    "reads your whole answer."
)
MAX_TURNS = 200
"""Turns of an episode where the game itself sets no limit."""
MAX_MOVE = 4000
"""Characters of the end of an answer that the game is given; more digits than that break games in Python."""
_EXAMPLE = '{"max_turns": 20}'
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,99}")


class TextArena(Env):
    """Base of the classes of `resolve`. One task is one seed of the game.

    The reward is the one that the game gives the agent's seat at its end: 1 for a win, -1 for a loss or after too many
    invalid moves, 0 for a draw in most games. A game that a limit cuts has what TextArena's own games give at theirs:
    the share of the work in a game for one player that counts it, else 0. `info["textarena"]` has the game's reason.
    """

    made_of: ClassVar[Sequence[str]] = ("textarena",)
    shared: ClassVar = {"arena": "contrib.textarena.process:open_worker"}
    game: ClassVar[str]
    system_prompt: ClassVar[str] = SYSTEM_PROMPT

    arena: Worker

    def __init__(
        self,
        *,
        players: int = 0,
        seat: str = "0",
        opponent: str = "random",
        opponent_key_env: str = "OPENAI_API_KEY",
        game_options: str | Mapping[str, Any] = "{}",
    ) -> None:
        """Make an instance.

        Args:
            players: how many play; 0 is the smallest number that the game takes.
            seat: of the agent: a number from 0, or "any", which is drawn from the seed of the task.
            opponent: of all other seats: "random" plays legal moves, "first" the first legal move that it sees;
                "openai:MODEL@BASE_URL" asks a model.
            opponent_key_env: the environment variable with the API key of that endpoint; "" for one that takes none.
            game_options: keyword arguments of the game; as text, a JSON object.
        """
        if not hasattr(self, "arena"):
            raise EnvError(f"{type(self).__name__} is made by its factory: forge_env.make('textarena:{self.game}')")
        self._options = json_object(game_options, "game_options", _EXAMPLE)
        self._players = self._players_of(self.arena, players, self._options)
        self._seat = _seat(seat, self._players)
        check_opponent(opponent)
        self._opponent, self._key_env = opponent, opponent_key_env
        self._session = ""
        self._me = 0
        self._models: ModelOpponents | None = None
        self._is_unfinished = False

    @classmethod
    def tasks(
        cls,
        split: str = "train",
        *,
        count: int,
        seed: int = 0,
        python: str = "",
        players: int = 0,
        game_options: str | Mapping[str, Any] = "{}",
    ) -> Sequence[Task]:
        """One task for each seed of the game; seeds of "train" are even, seeds of "test" odd."""
        seeds = draw_seeds(split, count=count, seed=seed, pairs=2**29)
        cls._players_of(worker_of(python), players, json_object(game_options, "game_options", _EXAMPLE))
        return [cls._task(seed_of_task) for seed_of_task in seeds]

    @classmethod
    def _task(cls, seed: int) -> Task:
        prompt: Message = {"role": "user", "content": f"This is {cls.game}."}
        return Task(prompt=(prompt,), metadata={"game": cls.game, "seed": seed})

    @classmethod
    def limits(cls, *, python: str = "", game_options: str | Mapping[str, Any] = "{}") -> Mapping[str, float]:
        """A turn for each that the game allows, and for an invalid move before each."""
        options = json_object(game_options, "game_options", _EXAMPLE)
        turns = worker_of(python).describe(cls.game, options)["max_turns"]
        return {"max_turns": 2 * turns if turns else MAX_TURNS}

    @classmethod
    def effects(cls, *, opponent: str = "random") -> str:
        """An opponent behind an endpoint is asked again in a replay."""
        model = model_of(opponent)
        return f"asks the model {model} to play the opponents" if model else ""

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.seed(seed)
        await self.close()
        task: Task | None = (options or {}).get("task")
        start = task.metadata.get("seed", seed) if task is not None else seed
        start = random.Random(str(seed)).randrange(2**30) if start is None else int(start)
        self._me = random.Random(f"{start}/seat").randrange(self._players) if self._seat is None else self._seat
        if model_of(self._opponent):
            self._models = ModelOpponents(
                self._opponent, key_env=self._key_env, system_prompt=self.system_prompt, seed=start
            )
        self._session = uuid.uuid4().hex
        request = {"do": "start", "game": self.game, "options": self._options, "players": self._players, "seed": start}
        response = await self._ask({**request, "seat": self._me, "opponent": self._opponent})
        response = await self._opponents_moves(response)
        if "done" in response:
            raise EnvError(f"the game {self.game} ended before the agent's first move")
        self.truncation_reward, self._is_unfinished = response["score"], True
        system: Message = {"role": "system", "content": self.system_prompt}
        return (system, Message(role="user", content=response["text"])), {}

    async def step(self, action: Action) -> StepResult:
        after_reset(self, self._session or None)
        if action.tool_calls:
            return refuse_calls(action.tool_calls, "move"), 0.0, False, False, {"illegal_action": "a tool call"}
        response = await self._opponents_moves(await self._ask({"do": "play", "text": action.text[-MAX_MOVE:]}))
        if "done" not in response:
            self.truncation_reward = response["score"]
            return (Message(role="user", content=response["text"]),), 0.0, False, False, {}
        return self._end_of_game(response)

    def final_info(self) -> Mapping[str, Any]:
        """Say of a game that was cut what it is worth."""
        facts = {**self._facts(), "unfinished": True, "score": self.truncation_reward}
        return {"textarena": facts} if self._is_unfinished else {}

    async def close(self) -> None:
        session, self._session = self._session, ""
        models, self._models = self._models, None
        try:
            if session:
                await invoke(self.arena.forget, session)
        finally:
            if models is not None:
                await models.aclose()

    def _end_of_game(self, response: Mapping[str, Any]) -> StepResult:
        reward = response["rewards"].get(str(self._me))
        value = reward_value(reward, f"the game {self.game} of TextArena ended with the reward")
        self._is_unfinished = False
        info = {**response["info"], **self._facts(), "rewards": response["rewards"]}
        text = f"The game is over. {response['info'].get('reason') or ''}".strip()
        return (Message(role="user", content=text),), value, True, False, {"textarena": info}

    def _facts(self) -> dict[str, Any]:
        facts = {"seat": self._me, "players": self._players, "opponent": self._opponent}
        return {**facts, "version": self.arena.version}

    async def _opponents_moves(self, response: dict[str, Any]) -> dict[str, Any]:
        """Let models move until the agent is to move, or the game is over; the helper process has moved the others."""
        while response.get("player", self._me) != self._me:
            assert self._models is not None
            move = await self._models.move(response["player"], response["text"])
            response = await self._ask({"do": "play", "text": move[-MAX_MOVE:]})
        if "stuck" in response:
            raise EnvError(
                f"the opponent {self._opponent!r} finds no legal move for player {response['stuck']} of {self.game}: "
                "name a model as the opponent, openai:MODEL@BASE_URL"
            )
        if "endless" in response:
            raise EnvError(f"the opponents made {response['endless']} moves, and the agent of {self.game} had no turn")
        return response

    async def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return await self.arena.ask_in_turn({**request, "session": self._session})

    @classmethod
    def _players_of(cls, worker: Worker, players: int, options: Mapping[str, Any]) -> int:
        counts = worker.describe(cls.game, options)["players"]
        if players and players not in counts:
            numbers = ", ".join(map(str, counts))
            raise UserError(f"players is {players}; the game {cls.game} takes {numbers}")
        return int(players or counts[0])


@functools.cache
def resolve(rest: str) -> type[Env]:
    """Return the environment of "textarena:REST"; REST is the id of a game, which is looked up when tasks are drawn."""
    if not _NAME.fullmatch(rest):
        raise UserError(f"textarena:{rest} names no game: write the id of one, as textarena:TicTacToe-v0")
    attributes = {"game": rest, "__doc__": f"The game {rest} of TextArena.", "__module__": __name__}
    return type(f"TextArena{re.sub(r'[^A-Za-z0-9]', '', rest)}", (TextArena,), attributes)


def _seat(seat: str, players: int) -> int | None:
    if seat == "any":
        return None
    if not str(seat).isdigit() or int(seat) >= players:
        raise UserError(f"seat is {seat!r}; it is a number from 0 to {players - 1}, or any")
    return int(seat)
