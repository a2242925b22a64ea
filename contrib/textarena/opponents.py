"""A model behind an endpoint that plays the other seats of a game, each in a conversation of its own."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from contrib.common.usage import Usage, record_usage
from contrib.judges.users.endpoint import SharedEndpoint
from contrib.textarena.worker import BUILT_IN
from forge_env.core.errors import UserError
from forge_env.core.types import Message
from forge_env.utils.deadlines import queued

ANSWER_SECONDS = 120.0
MAX_TOKENS = 1024
"""Tokens of one answer of an opponent, thoughts included."""
ATTEMPTS = 3
"""How often a move is asked for, in all, when it is empty or cut off."""


def check_opponent(opponent: str) -> None:
    if opponent not in BUILT_IN and not re.fullmatch(r"openai:[^@\s]+.*", opponent):
        raise UserError(
            f"opponent is {opponent!r}; it is random, which plays legal moves, first, which plays the first legal move "
            "that it sees, or openai:MODEL@BASE_URL"
        )


def model_of(opponent: str) -> str:
    """Return the MODEL@BASE_URL of an opponent behind an endpoint, "" of another one."""
    return opponent.removeprefix("openai:") if opponent.startswith("openai:") else ""


class ModelOpponents:
    """The opponents of one episode. Close them."""

    def __init__(self, opponent: str, *, key_env: str, system_prompt: str, seed: int | None) -> None:
        self._endpoint = _endpoint(model_of(opponent), key_env)
        self._endpoint.agent  # a setting that cannot work is told before the first move  # noqa: B018
        self._endpoint.take()
        self._is_open = True
        self._system: Message = {"role": "system", "content": system_prompt}
        self._conversations: dict[int, list[Message]] = {}
        self._seed = seed

    async def move(self, player: int, text: str) -> str:
        """Ask for the move of a player. The deadlines of the episode are paused."""
        messages = self._conversations.setdefault(player, [self._system])
        messages.append({"role": "user", "content": text})
        used = Usage()
        try:
            async with queued():
                answer = await self._endpoint.ask(
                    f"the model of player {player}, an opponent,",
                    messages,
                    max_tokens=MAX_TOKENS,
                    timeout=ANSWER_SECONDS,
                    seeds=[None if self._seed is None else self._seed + attempt for attempt in range(ATTEMPTS)],
                    used=used,
                )
        finally:
            record_usage("user", used)
        messages.append({"role": "assistant", "content": answer})
        return answer

    async def aclose(self) -> None:
        if self._is_open:
            self._is_open = False
            await self._endpoint.release()


@functools.lru_cache(maxsize=16)
def _endpoint(model: str, key_env: str) -> SharedEndpoint:
    name, _, url = re.sub(r"@(?=https?://)", "\0", model, count=1).partition("\0")
    settings: Mapping[str, object] = {
        "model": name,
        "api_key_env": key_env,
        "timeout": ANSWER_SECONDS,
        **({"base_url": url} if url else {}),
    }
    return SharedEndpoint(None, settings)
