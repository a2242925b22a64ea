"""Which weight store a run has."""

from __future__ import annotations

from forge_env.runtime.weights import WeightStore, choose_store
from trainers.config import RunConfig
from trainers.setup.placement import Placement

_BYTES = 4  # of a weight: the trainer publishes float32


def find_store(config: RunConfig, placement: Placement, parameters: int) -> tuple[WeightStore, str]:
    """Choose the store of a run whose model has so many parameters; returns it, and a sentence that says why.

    Raises:
        UserError: when the one that the config names cannot work.
    """
    services = config.services
    holders = [services.trainer, services.generator]
    if services.ref_model.procs:
        holders.append(services.ref_model)
    all_on_gpus = all(service.with_gpus for service in holders)
    return choose_store(
        config.weights.store,
        size=_BYTES * parameters,
        all_on_gpus=all_on_gpus,
        hosts=placement.num_hosts,
        shared_gpus=all_on_gpus and placement.shares_gpus,
    )
