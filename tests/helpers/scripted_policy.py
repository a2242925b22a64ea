"""Policies that sample what a function says, or given answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from forge_env.core.tokens import IDS, Ids, array_of, as_list
from forge_env.core.turn import Completion
from forge_env.core.types import Sampling


class ScriptedPolicy:
    """A policy whose tokens come from a function of the prompt; every logprob is 0, every version is `version`."""

    def __init__(self, script: Callable[[Sequence[int]], Sequence[int]], *, version: int = 0) -> None:
        self._script = script
        self.version = version

    async def generate(self, prompt_ids: Ids, sampling: Sampling, *, request_id: str, session: str) -> Completion:
        token_ids = tuple(self._script(as_list(prompt_ids)))[: sampling.max_tokens]
        stopped = token_ids[-1] in sampling.stop_token_ids
        return Completion(
            prompt_ids=array_of(prompt_ids, IDS),
            token_ids=array_of(token_ids, IDS),
            logprobs=np.zeros(len(token_ids)),
            versions=((self.version, len(token_ids)),),
            finish_reason="stop" if stopped else "length",
        )


class Recorder(ScriptedPolicy):
    """Samples given answers, one for each request, each by newer weights and with other logprobs.

    Attributes:
        asked: the prompt, the sampling and the name of each request.
        sessions: of all requests.
    """

    def __init__(self, answers: Sequence[Sequence[int]]) -> None:
        super().__init__(lambda prompt: next(self._answers))
        self.begin(answers)

    def begin(self, answers: Sequence[Sequence[int]]) -> None:
        self._answers = iter(answers)
        self.asked: list[tuple[tuple[int, ...], Sampling, str]] = []
        self.sessions: set[str] = set()

    async def generate(self, prompt_ids: Ids, sampling: Sampling, *, request_id: str, session: str) -> Completion:
        self.asked.append((tuple(prompt_ids), sampling, request_id))
        self.sessions.add(session)
        done = await super().generate(prompt_ids, sampling, request_id=request_id, session=session)
        self.version += 1
        return replace(done, logprobs=tuple(-self.version - i / 8 for i in range(len(done.token_ids))))
