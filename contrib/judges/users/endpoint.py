"""The endpoint that an LLMUser asks, shared by all episodes: made at its first use, closed when no episode uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from contrib.chat.agent import ChatAgent
from contrib.common.usage import Usage
from contrib.judges.users.user import without_thoughts
from forge_env.core.errors import InfraError, ServiceError
from forge_env.core.protocols import ContextFull


class SharedEndpoint:
    """An agent that is lent, or one that is made by these settings. The connections of a lent one stay open."""

    def __init__(self, agent: ChatAgent | None, settings: Mapping[str, Any]) -> None:
        self._agent = agent
        self._is_lent = agent is not None
        self._settings = settings
        self._uses: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_uses": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _uses=WeakKeyDictionary())

    @property
    def name(self) -> str:
        return str(self._settings["model"] if self._agent is None else self._agent.client.model)

    async def ask(
        self,
        who: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        timeout: float,
        seeds: Sequence[int | None],
        used: Usage,
    ) -> str:
        """The first answer that is whole and not empty, without its thoughts.

        There are as many requests as seeds; `max_tokens` and the timeout, in seconds, are those of one. The usage is
        added to `used`, also if there is no answer.
        """
        problem = ""
        for seed in seeds:
            try:
                reply = await self.agent.client.complete(
                    messages,
                    max_tokens=max_tokens,
                    temperature=self.agent.temperature,
                    timeout=timeout,
                    seed=seed,
                    used=used,
                )
            except ContextFull as error:
                raise ServiceError(f"the conversation is too long for {who}: {error}") from None
            except InfraError as error:
                raise ServiceError(f"{who} did not answer: {error}") from None
            text = without_thoughts(reply.text)
            if text and reply.finish_reason != "length":
                return text
            problem = f"was cut off at {max_tokens} tokens" if reply.finish_reason == "length" else "is empty"
        raise ServiceError(f"{who} gave no message in {len(seeds)} answers: the last one {problem} ({self.name})")

    @property
    def agent(self) -> ChatAgent:
        if self._agent is None:
            self._agent = ChatAgent(**self._settings)
        return self._agent

    def take(self) -> None:
        """Keep the connections of the running event loop open until the matching `release`."""
        loop = asyncio.get_running_loop()
        self._uses[loop] = self._uses.get(loop, 0) + 1

    async def release(self) -> None:
        """Close the connections of the running event loop, if no other episode uses them."""
        loop = asyncio.get_running_loop()
        self._uses[loop] = uses = max(self._uses.get(loop, 0) - 1, 0)
        if not uses and not self._is_lent and self._agent is not None:
            await self._agent.aclose()
