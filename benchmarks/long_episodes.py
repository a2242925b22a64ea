"""Long episodes without a model: the environment, the agent and the trainer's process of `benchmarks.loop_lag`.

Nothing is imported here that the processes of a real run would not import: the environment's process has no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from forge_env.core.env import Env
from forge_env.core.episode import Episode, Turn, digest
from forge_env.core.protocols import Conversation
from forge_env.core.tokens import IDS, join_arrays
from forge_env.core.types import Action, Message, Task, ToolSpec, ToolUse
from forge_env.runtime.actor import ForgeActor, concurrent_endpoint

VOCABULARY = 151_000
CHARACTERS = 3  # of the text of a token


class LongEnv(Env):
    """Answers every turn with a text, and ends after `turns` of them; the reward is drawn."""

    def __init__(self, turns: int = 10, characters: int = 3000) -> None:
        self._left, self._text = turns, "word " * (characters // 5)

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        return [Task(prompt=({"role": "user", "content": f"Question {i}"},), target=i) for i in range(count)]

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self.seed(seed)
        return [{"role": "user", "content": self._text}], {}

    async def step(self, action: Action) -> Any:
        self._left -= 1
        reward = float(self.np_random.random()) if not self._left else 0.0
        observation = [{"role": "tool", "content": self._text}] if self._left else []
        info = {"tools": (ToolUse(name="search", seconds=0.1),)}
        return observation, reward, not self._left, False, info


class LongAgent:
    """Makes turns of random tokens: `added` of the environment and `sampled` of the model in each.

    Args:
        added: tokens that the environment adds before each turn.
        sampled: tokens that the model samples in each turn.
        seconds: that a turn takes, so that episodes end at different times; each one has its own share of it.
    """

    def __init__(self, added: int, sampled: int, seconds: float) -> None:
        self._added, self._sampled, self._seconds = added, sampled, seconds
        self._text = "thought " * (sampled * CHARACTERS // 8)

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        number = len(conversation.turns)
        rng = np.random.default_rng((conversation.seed or 0, number))
        await asyncio.sleep(self._seconds * float(rng.random()))
        ids = rng.integers(0, VOCABULARY, self._added + self._sampled, dtype=np.int32)
        logprobs = -rng.standard_exponential(self._sampled, dtype=np.float32)  # as an engine's are
        message: Message = {"role": "assistant", "content": self._text}
        before = [ids for turn in conversation.turns for ids in (turn.prompt_ids, turn.token_ids)]
        turn = Turn(
            kind="sampled",
            observation=conversation.observation,
            message=message,
            prompt_ids=ids[: self._added],
            token_ids=ids[self._added :],
            logprobs=logprobs,
            versions=((0, self._sampled),),
            starts_row=not number,
            context_digest=digest(join_arrays(IDS, *before, ids[: self._added])),
        )
        return turn, Action(message=message)


class ReadingTrainer(ForgeActor):
    """Takes the samples of a step as a trainer's rank does, and reads every token of them in a thread."""

    def __init__(self, **base: Any) -> None:
        super().__init__(**base)

    @concurrent_endpoint
    async def step(self, samples: Sequence[Any], loss: Any, **options: Any) -> dict[str, float]:
        """Return the number of tokens and of episodes, as the metrics of a step."""
        tokens = await asyncio.to_thread(_count, samples)
        counts = {"tokens": float(tokens), "episodes": float(len(samples))}
        return {"loss": 0.0, "grad_norm": 1.0, "skipped": 0.0, **counts}

    @concurrent_endpoint
    async def logprobs(self, samples: Sequence[Any], temperature: float) -> list[np.ndarray]:
        """Return a number for each sampled token, in the form in which the trainer's actor returns them."""
        return await asyncio.to_thread(_zeros, samples)

    @concurrent_endpoint
    async def save(self, folder: str, step: int, extra: dict[str, Any], **options: Any) -> None:
        """Take what a checkpoint is given."""


def own_reward(episode: Episode) -> float:
    """A reward function of the user's own that reads every token, and takes its time."""
    return sum(int((turn.token_ids % 2).sum()) for turn in episode.turns) / episode.num_sampled


def _zeros(samples: Sequence[Any]) -> list[np.ndarray]:
    return [np.zeros(sum(np.count_nonzero(row.loss_mask) for row in sample.rows)) for sample in samples]


def _count(samples: Sequence[Any]) -> int:
    return sum(
        int(np.count_nonzero(row.loss_mask)) for sample in samples for row in sample.rows if row.token_ids[0] >= 0
    )
