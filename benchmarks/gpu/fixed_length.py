"""An environment whose episodes have a known length, whatever a model with random weights says.

An episode of `tokens` tokens has `turns` turns. In each of them the environment writes its share, and the model samples
the rest: the environment asks again until the length is there, since a model with random weights may end a turn at any
token. The last turn is cut where `--env.max_tokens` ends, which must be `tokens`. Rewards are random, so that nearly
every group has advantages. Episodes of the test split have one short turn: what they show is nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forge_env.core.env import Env, StepResult
from forge_env.core.protocols import NextTurn
from forge_env.core.types import Action, Message, Task

TEMPLATE = 24  # tokens at most that a chat template puts around a message and before the answer
SHORT = 16  # sampled tokens of an episode of the test split


class FixedLength(Env):
    """Episodes of one length.

    Args:
        tokens: of an episode, prompts and answers together.
        sampled: share of them that the model samples.
        turns: of an episode; one more for each turn that the model ends early.
    """

    def __init__(self, tokens: int = 8192, sampled: float = 0.25, turns: int = 4) -> None:
        self._tokens = tokens
        self._per_answer = max(1, round(tokens * sampled / turns))
        self._per_message = max(0, tokens // turns - self._per_answer - TEMPLATE)

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        return [
            Task(prompt=(_digits(8, start=index),), metadata={"split": split, "index": index, "seed": seed})
            for index in range(count)
        ]

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        task: Task = (options or {})["task"]
        self._is_short = task.metadata["split"] == "test"
        if self._is_short:
            return [*task.prompt], {"next": NextTurn(max_tokens=SHORT)}
        message = _digits(self._per_message, start=task.metadata["index"])
        return [message], {"next": NextTurn(max_tokens=self._per_answer)}

    def step(self, action: Action) -> StepResult:
        usage = action.usage or {}
        left = self._tokens - sum(usage.values())
        if self._is_short or left <= 2 * TEMPLATE:
            return [], float(self.np_random.random()), True, False, {}
        planned = self._per_message + TEMPLATE + self._per_answer
        is_last = left < 1.5 * planned
        message = _digits(min(self._per_message, left - 2 * TEMPLATE))
        answer = left if is_last else self._per_answer
        return [message], 0.0, False, False, {"next": NextTurn(max_tokens=answer)}


def _digits(count: int, *, start: int = 0) -> Message:
    """A message of `count` digits, each of which is one token."""
    return {"role": "user", "content": f"{start}{'0123456789' * (count // 10 + 1)}"[:count]}
