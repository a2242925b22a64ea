"""TokenAgent: a renderer and a policy. Its turns hold the exact tokens that the engine saw and sampled."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

import numpy as np

from agents.renderer.conversation_format import Thinking, ToolsForm
from agents.renderer.rendering import Renderer
from agents.thought_budget import context_digest, sample_within
from forge_env.core.protocols import ANSWER_SECONDS, ContextFull, Conversation, NextTurn, Policy
from forge_env.core.tokens import IDS, array_of, join_arrays
from forge_env.core.turn import Completion, Turn
from forge_env.core.types import Action, Sampling, ToolSpec

_DEFAULT_TURN = NextTurn()


class TokenAgent:
    """An agent that samples its turns from a policy.

    Args:
        model: Hugging Face folder with the policy's tokenizer and family.
        temperature: 0 is greedy.
        top_p: see `Sampling`; 1 in training.
        thinking: whether the model thinks before it answers, see `Renderer`. `EpisodeLimits.max_thinking_tokens` limits
            a thought.
    """

    completes = True
    constrains = True

    def __init__(
        self,
        model: str,
        policy: Policy,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        thinking: Thinking = "off",
        tools: ToolsForm = "auto",
    ) -> None:
        self.renderer = Renderer(model, thinking=thinking, tools=tools)
        self._policy = policy
        self._temperature = temperature
        self._top_p = top_p

    def greedily(self) -> Self:
        """The same agent with temperature 0."""
        greedy = copy.copy(self)
        greedy._temperature, greedy._top_p = 0.0, 1.0
        return greedy

    @property
    def answer_seconds(self) -> float | None:
        """Time limit for an answer, in seconds; None if the policy enforces its own."""
        return getattr(self._policy, "answer_seconds", ANSWER_SECONDS)

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        """Sample one turn.

        Raises:
            ContextFull: the prompt leaves no room to answer.
            TurnRefused: the policy, or a feature of the schema, does not allow an answer of this form.
            PolicyError: the policy did not answer.
        """
        next_turn, observation = conversation.next_turn or _DEFAULT_TURN, conversation.observation
        if next_turn.prompt is None:
            row, new_ids = self.renderer.next_prompt(conversation, tools)
        else:
            row, new_ids = self.renderer.plain_prompt(conversation, next_turn.prompt)
            observation = ({"role": "user", "content": self.renderer.decode(new_ids)},)
        new = array_of(new_ids, IDS)
        prompt = join_arrays(IDS, row, new)
        room = min(conversation.max_turn_tokens, conversation.max_tokens - len(prompt))
        if next_turn.max_tokens is not None:
            room = min(room, next_turn.max_tokens)
        if room < 1 or conversation.is_long(len(prompt)):
            raise ContextFull(f"the prompt has {len(prompt)} tokens, and the context {conversation.max_tokens}")
        completion, prompts = await self._sample(conversation, next_turn, prompt, room, tools)
        if stop := (*next_turn.stop, *self.renderer.stop):
            completion = truncate_at_stop(completion, stop, self.renderer.decode)
        sampled = completion.token_ids.tolist()
        action = self.renderer.read(sampled, completion.finish_reason, tools)
        # Of the earlier turns' tokens only the last one was not an input yet. The last one of this turn is not one
        # either.
        first, end = max(0, len(row) - 1), len(prompt) + len(sampled) - 1
        turn = Turn(
            kind="sampled",
            observation=observation,
            message=action.message,
            tool_calls=action.tool_calls,
            prompt_ids=new,
            **completion.sampled,
            versions=completion.versions,
            starts_row=not len(row),
            context_digest=context_digest(prompts, completion.versions),
            finish_reason=completion.finish_reason,
            routes=tuple(routes.within(first, end) for routes in completion.routes) if completion.routes else (),
            constraint="" if next_turn.constraint is None else next_turn.constraint.label,
            constrained=completion.constrained,
        )
        if conversation.next_turn is not None:
            usage = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled)}
            action = replace(action, usage=usage)
        if next_turn.prompt is not None:
            text = self.renderer.plain_text(sampled)
            action = replace(action, message={"role": "assistant", "content": text}, tool_calls=())
        return turn, action

    async def _sample(
        self, conversation: Conversation, next_turn: NextTurn, prompt: np.ndarray, room: int, tools: Sequence[ToolSpec]
    ) -> tuple[Completion, list[np.ndarray]]:
        """Sample the tokens of one turn; returns them, and the prompt of each request as the engine reports it."""
        turn, seed, session = len(conversation.turns), conversation.seed, conversation.request_id
        request_id = f"{session}/{turn}"
        sampling = Sampling(
            temperature=self._temperature,
            top_p=self._top_p,
            max_tokens=room,
            seed=None if seed is None else _turn_seed(seed, turn, 0),
            stop_token_ids=self.renderer.stop_token_ids,
            stop=(*next_turn.stop, *self.renderer.stop),
        )
        budget = conversation.max_thinking_tokens
        # A plain prompt has no template, and so no thought.
        thinks = self.renderer.thinks and next_turn.prompt is None
        if next_turn.constraint is None and not (budget and thinks):
            completion = await self._policy.generate(prompt, sampling, request_id=request_id, session=session)
            return completion, [completion.prompt_ids]

        async def ask(prompt_ids: np.ndarray, sampling: Sampling, number: int) -> Completion:
            if number and seed is not None:
                sampling = replace(sampling, seed=_turn_seed(seed, turn, number))
            id_ = f"{request_id}+{number}" if number else request_id
            return await self._policy.generate(prompt_ids, sampling, request_id=id_, session=session)

        if next_turn.constraint is not None:
            return await next_turn.constraint.sample(
                ask, prompt, sampling, renderer=self.renderer, tools=tools, budget=budget, thinks=thinks
            )
        return await sample_within(
            ask,
            prompt,
            sampling,
            budget=budget,
            close=self.renderer.close_thought,
            is_in_thought=self.renderer.is_in_thought,
        )


def _turn_seed(seed: int, turn: int, number: int) -> int:
    """A seed for each request of a turn. Equal episode seeds give equal turns, and different requests have different
    seeds."""
    return (seed * 1_000_003 + turn * 7_919 + number * 104_729) % 2**31


def truncate_at_stop(completion: Completion, stop: Sequence[str], decode: Callable[[Sequence[int]], str]) -> Completion:
    """The completion up to and with the token that completes the first stop string.

    The decision to stop depends only on the tokens before it. So the remaining tokens were sampled as if generation had
    ended there, and their logprobs stay valid.
    """
    ids = completion.token_ids.tolist()

    def stops(count: int) -> bool:
        text = decode(ids[:count])
        return any(string in text for string in stop)

    if not stops(len(ids)):
        return completion
    low, high = 1, len(ids)  # the smallest count that stops; decoding more tokens never removes text
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if stops(middle) else (middle + 1, high)
    return replace(completion.first(low), finish_reason="stop")
