"""Turns with a form of the answer: the thought before it is free, and the answer is sampled under a grammar."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from forge_env.core.errors import TurnRefused
from forge_env.core.turn import Completion
from forge_env.core.types import Sampling

if TYPE_CHECKING:
    from agents.renderer.rendering import Renderer
    from agents.thought_budget import Ask


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstrainedTurn:
    """Samples one turn under `Sampling.grammar`.

    A model that thinks is asked twice: for its thought without the grammar, and then for the answer. So the tokens of a
    thought have the logprobs of the model alone. If the first completion is no complete thought, it is dropped, and the
    answer is sampled without one. This depends on its tokens alone. So the tokens of a thought that is kept were
    sampled as if nothing else could have come.
    """

    ask: Ask
    renderer: Renderer
    budget: int = 0
    """Tokens of a thought, including its opening token; 0 is no limit."""

    async def sample(
        self, prompt: np.ndarray, sampling: Sampling, *, thinks: bool
    ) -> tuple[Completion, list[np.ndarray]]:
        """The completion of the full turn, and the prompt of each request as the engine reports it.

        Args:
            prompt: of the turn.
            sampling: with the grammar; `max_tokens` is the limit of the full turn.
            thinks: whether a thought may come first.
        """
        first = await self._thought(prompt, sampling) if thinks else None
        if first is None:
            answer = await self._answer(prompt, sampling, 1 if thinks else 0)
            return answer, [answer.prompt_ids]
        sampled = first.token_ids.tolist()
        is_ended = sampled[-1] == self.renderer.end_thought
        inserted = self.renderer.after_thought if is_ended else self.renderer.close_thought
        room = sampling.max_tokens - len(sampled) - len(inserted)
        if room < 1 or not (is_ended or self.budget):
            return replace(first, finish_reason="length"), [first.prompt_ids]
        rest = await self._answer(first.with_inserted(inserted), replace(sampling, max_tokens=room), 1)
        return first.then(inserted, rest), [first.prompt_ids, rest.prompt_ids]

    async def _thought(self, prompt: np.ndarray, sampling: Sampling) -> Completion | None:
        """Sample a thought with its end, or a thought that a limit has cut; None if the model has not thought."""
        end = self.renderer.end_thought
        room = min(sampling.max_tokens, self.budget or sampling.max_tokens)
        stops = (*sampling.stop_token_ids, end)
        first = await self.ask(prompt, replace(sampling, grammar="", stop=(), max_tokens=room, stop_token_ids=stops), 0)
        ids = first.token_ids.tolist()
        is_whole = ids[-1] == end and self.renderer.is_in_thought(ids[:-1])
        is_cut = first.finish_reason == "length" and self.renderer.is_in_thought(ids)
        return first if is_whole or is_cut else None

    async def _answer(self, prompt: np.ndarray, sampling: Sampling, number: int) -> Completion:
        answer = await self.ask(prompt, sampling, number)
        if answer.constrained != len(answer.token_ids):
            raise TurnRefused("the policy samples without grammars, so it cannot hold an answer to a form")
        return answer
