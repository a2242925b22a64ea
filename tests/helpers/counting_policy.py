"""A PolicyActor without an engine that counts the ends of conversations. It has a file of its own without torch."""

from __future__ import annotations

from typing import Any

from agents.generator.policy import PolicyActor
from agents.generator.start import EngineSettings
from forge_env.runtime.actor import concurrent_endpoint


class CountingPolicy(PolicyActor):
    """Says which conversations it was told to have ended."""

    def __init__(self, **base: Any) -> None:
        super().__init__(model="", settings=EngineSettings(), **base)
        self._told: list[str] = []

    async def on_start(self) -> None:
        """There is no engine to start."""

    async def on_finish(self) -> None:
        """There is no engine to close."""

    @concurrent_endpoint
    async def end_conversation(self, conversation: str) -> None:
        self._told.append(conversation)

    @concurrent_endpoint
    async def told(self) -> list[str]:
        """The conversations, in the order of the calls."""
        return self._told
