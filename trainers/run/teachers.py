"""Teachers: who judges the sampled tokens of an episode, by its environment.

A model of `distill.teacher` reads the episode's own rows. With "self" the policy teaches itself: its weights before the
step read the rows with a hint in the prompt, such as a solution or feedback. So does the self-teacher of SDPO (arXiv
2601.20802); that of OPSD (arXiv 2601.18734) keeps the weights of the start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from agents.renderer.rendering import Renderer
from forge_env.core.episode import Episode, Group
from forge_env.core.errors import UserError
from forge_env.core.turn import Row
from forge_env.core.types import NOT_SAMPLED
from forge_env.utils.threads import invoke
from trainers.batching.batch import Sample
from trainers.settings.distill import SELF
from trainers.setup.run_plan import EnvShare, RunPlan

Ask = Callable[[str, Sequence[Sample]], Awaitable[list[Any]]]


class Teachers:
    """The teachers of a run. `ask` is `Trainer.teacher_answers`, and `model` the folder of the policy."""

    def __init__(self, plan: RunPlan, ask: Ask, model: Path) -> None:
        self._plan, self._ask, config = plan, ask, plan.config
        self._renderer: Renderer | None = None
        if SELF in config.teachers:
            self._renderer = Renderer(model, thinking=config.env.thinking, tools=config.renderer.tools)

    async def __call__(self, groups: Sequence[Group]) -> list[Any]:
        """The answer of each valid episode's teacher, in order; None for one without a teacher, or without a hint."""
        by_teacher: dict[str, dict[int, Sample]] = {}
        answers: list[Any] = []
        for group in groups:
            share = self._plan.share(group.env)
            for episode in group.valid:
                sample = await self._sample(share, episode, [e for e in group.valid if e is not episode])
                if sample is not None:
                    by_teacher.setdefault(share.config.distill.teacher, {})[len(answers)] = sample
                answers.append(None)
        results = await asyncio.gather(*(self._ask(name, [*samples.values()]) for name, samples in by_teacher.items()))
        for samples, of_teacher in zip(by_teacher.values(), results, strict=True):
            for place, answer in zip(samples, of_teacher, strict=True):
                answers[place] = answer
        return answers

    async def _sample(self, share: EnvShare, episode: Episode, siblings: Sequence[Episode]) -> Sample | None:
        """What the teacher of an episode reads; None if there is nothing to ask."""
        if (teacher := share.config.distill.teacher) != SELF:
            return Sample(rows=episode.rows) if teacher else None
        name, environment = f"the hint of {share.config.env.name}", cast(Any, share.factory.env_class)
        try:
            hint = await invoke(environment.hint, episode, siblings)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"{name} failed on the episode {episode.id}: {reason}") from error
        if not isinstance(hint, str):
            raise UserError(f"{name} for the episode {episode.id} is {hint!r:.80}: return a text, empty for no hint")
        rows = await invoke(self._rows_with_hint, episode, hint) if hint else []
        longest = max((len(row.token_ids) for row in rows), default=0)
        return Sample(rows=tuple(rows)) if 0 < longest <= self._plan.config.env.max_tokens else None

    def _rows_with_hint(self, episode: Episode, hint: str) -> list[Row]:
        """The rows of an episode with a hint in the first prompt, and the same sampled targets."""
        assert self._renderer is not None
        first, ids, rows = episode.turns[0], [row.token_ids for row in episode.rows], list[Row]()
        longer_rows = self._renderer.with_hint(ids, first.prompt_ids, first.observation, hint)
        for row, longer in zip(episode.rows, longer_rows, strict=True):
            if num_added := len(longer) - len(row.token_ids):  # all before the first sampled token
                mask, logprobs = (np.pad(each, (num_added, 0)) for each in (row.loss_mask, row.generator_logprobs))
                versions = np.pad(row.versions, (num_added, 0), constant_values=NOT_SAMPLED)
                row = Row(token_ids=np.array(longer), loss_mask=mask, generator_logprobs=logprobs, versions=versions)
            rows.append(row)
        return rows
