"""Grammars of answers, which a part of contrib/ lets the engine take."""

from __future__ import annotations

from typing import Any, Protocol

from forge_env.core.errors import TurnRefused
from forge_env.registry.contrib import rows


class Grammars(Protocol):
    """What the engine needs for requests with `Sampling.grammar`. It must not refer to the engine."""

    async def check(self, grammar: str, vocabulary: int) -> None:
        """Raise TurnRefused for a grammar that would hold up the engine."""

    def admit(self, engine: Any, grammar: str) -> None:
        """Prepare vLLM's `LLMEngine` for a request with a grammar, in the engine's thread."""

    async def close(self) -> None: ...


def open_grammars(model: str) -> Grammars:
    for row in rows("grammars").values():
        grammars: Grammars = row.load()(model)
        return grammars
    raise TurnRefused("no part of contrib/ lets the engine hold an answer to a form: ask without one")
