"""Which weight store a run has."""

from __future__ import annotations

from forge_env.runtime.weights import WeightStore, choose_store
from trainers.config import RunConfig
from trainers.setup.placement import Placement


def find_store(
    config: RunConfig, placement: Placement, size: int, card: float | None = None
) -> tuple[WeightStore, str]:
    """Choose the store of a run; returns it, and a sentence that says why.

    Args:
        config: of the run.
        placement: of its processes.
        size: bytes of one snapshot of its weights, see `snapshot_bytes`.
        card: bytes that the run may use of each GPU; None where that is not known.

    Raises:
        UserError: when the one that the config names cannot work.
    """
    services = config.services
    all_on_gpus = services.trainer.with_gpus and services.generator.with_gpus
    return choose_store(
        config.weights.store,
        size=size,
        all_on_gpus=all_on_gpus,
        hosts=placement.num_hosts,
        shared_gpus=all_on_gpus and placement.shares_gpus,
        card=card,
    )
