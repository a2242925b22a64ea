"""ReferenceActor: the frozen reference model of the KL penalty, in processes of its own, one for each rank.

It holds the policy that the run's reinforcement learning starts from: the model of `model.path`, or, where a warm-up
of the same run came first, the warmed-up weights, which are handed to it before the first step. They never change
afterwards. The trainer writes such weights, exact, to `reference.safetensors` in the run's folder, where a run that is
resumed finds them again.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forge_env.core.errors import InvariantError
from forge_env.runtime.calls.handle import ServiceHandle
from trainers.batching.batch import Sample
from trainers.batching.packing import DEFAULT_CROSSOVER, flops_crossover, row_cost
from trainers.batching.shares import even_shares
from trainers.families.shape import ModelShape
from trainers.run.model_actor import ImportedLater, ModelActor, of_model

if TYPE_CHECKING:
    import numpy as np

    from trainers.titan.reference import TitanReference
else:
    TitanReference = ImportedLater("trainers.titan.reference:TitanReference")


class ReferenceActor(ModelActor[TitanReference]):
    """Computes logprobs under weights that nobody trains."""

    idempotent = frozenset({"logprobs"})
    serves = TitanReference
    load = of_model(TitanReference.load_file)
    logprobs = of_model(TitanReference.logprobs)


async def ask_reference(
    service: ServiceHandle[ReferenceActor],
    samples: Sequence[Sample],
    temperature: float,
    *,
    replicas: int,
    shape: ModelShape | None = None,
) -> list[np.ndarray]:
    """The reference model's logprobs of the sampled targets, per sample, in order.

    The samples are split by FLOPs into a share for each replica of the plan, also where one is down at the moment: what
    a share is does not depend on that.

    Args:
        service: with its deadline.
        samples: of one step.
        temperature: which the tokens were sampled at.
        replicas: of the reference model.
        shape: of the model, where its sizes are known.
    """
    crossover = flops_crossover(dataclasses.asdict(shape)) if shape else DEFAULT_CROSSOVER
    costs = [sum(row_cost(len(row.token_ids), crossover) for row in sample.rows) for sample in samples]

    async def ask(share: list[int]) -> list[np.ndarray]:
        found = await service.route(ReferenceActor.logprobs, [samples[index] for index in share], temperature)
        if found is None or len(found) != len(share):
            raise InvariantError(f"the reference model gave no logprobs for {len(share)} samples")
        return found

    shares = even_shares(costs, replicas)
    answers = await asyncio.gather(*map(ask, shares))
    by_sample = {
        index: values
        for share, answer in zip(shares, answers, strict=True)
        for index, values in zip(share, answer, strict=True)
    }
    return [by_sample[index] for index in range(len(samples))]
