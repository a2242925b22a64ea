"""A policy that samples what a function says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
