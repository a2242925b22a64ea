"""Sizes the engine by the memory of all processes, and checks that they fit; if not, names settings that fit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from importlib.util import find_spec
from operator import or_
from typing import Any

from forge_env.core.errors import UserError
from forge_env.runtime.weights import StoreRequest, choose_store
from forge_env.utils.settings import with_values
from trainers.lora import published_parameters
from trainers.setup.card import Memory, gib
from trainers.setup.memory import BYTES, engine_memory, frozen_memory, trainer_memory
from trainers.setup.placement import FROZEN, Process
from trainers.setup.run_plan import RunPlan
from trainers.setup.sizing.engine import plan_engine

MOST_GPUS = 64  # of one host, that a remedy may name
Remedy = dict[str, Any]
"""Settings by their dotted names, e.g. `{"training.optimizer_state": "bfloat16"}`."""


def _store_request(plan: RunPlan) -> StoreRequest:
    services, placement = plan.config.services, plan.placement
    all_on_gpus = services.trainer.with_gpus and services.generator.with_gpus
    num_parameters = published_parameters(plan.lora, plan.shape) if plan.shape else 0
    return StoreRequest(
        size=BYTES[plan.engine_dtype] * num_parameters,
        all_on_gpus=all_on_gpus,
        hosts=placement.num_hosts,
        shared_gpus=all_on_gpus and placement.shares_gpus,
        card=plan.card,
    )


def with_sizes(plan: RunPlan) -> RunPlan:
    """The plan with its weight store, the memory of all processes, and an engine that gets what the others on its GPU
    leave."""
    request, has_shape = _store_request(plan), plan.shape is not None
    store, why = choose_store(plan.config.weights.store, request)
    store_size = store.keep * request.size if store.on_gpu else 0
    places = plan.placement.processes
    engines = [process for process in places if process.service == "generator"]
    memory: dict[Process, Memory | None] = dict.fromkeys(places, Memory())
    for process in places:
        if process.service == "trainer":
            memory[process] = trainer_memory(plan, versions=0 if process.rank else store_size) if has_shape else None
        elif process.service in FROZEN:
            service, shape = getattr(plan.config.services, process.service), plan.shape
            if process.service == "teacher":
                shape = [model.shape for model in plan.teachers.values()][process.replica // service.num_replicas]
            memory[process] = frozen_memory(plan, service, shape) if shape else None
        elif process.service == "store" and not store_size:  # two snapshots in the host's memory
            memory[process] = Memory(always={"weights": 2.0 * request.size}) if has_shape else None
    gpus = {engine.where for engine in engines if engine.gpu is not None}
    beside = [[usage for process, usage in memory.items() if usage and process.where == gpu] for gpu in gpus]
    others = max((sum(usage.total for usage in of_gpu) for of_gpu in beside), default=0.0)
    at_rest = max((sum(usage.at_rest for usage in of_gpu) for of_gpu in beside), default=0.0)
    on_card = max(Counter(engine.where for engine in engines if engine.gpu is not None).values(), default=1)
    engine, about = plan_engine(plan, others=others, at_rest=at_rest, on_card=on_card)
    snapshot = request.size if store.received else 0
    memory |= dict.fromkeys(engines, engine_memory(plan, engine, snapshot=snapshot) if has_shape else None)
    return replace(
        plan,
        store=store if has_shape else None,
        store_reason=why if has_shape else "",
        engine=engine,
        about_engine=about,
        processes=list(memory.items()),
    )


def check_store_room(plan: RunPlan) -> None:
    """Check that there is a store for `--weights.store auto`. One that is named was checked when it was chosen."""
    if plan.store and (refusal := plan.store.refusal(_store_request(plan), "")):
        raise UserError(f"--weights.store is auto, which leaves {plan.store.title}, {refusal}")


def check_fit(plan: RunPlan) -> None:
    """Check that each GPU has room for its processes, as far as the sizes of model and GPU are known."""
    fullest, card = max(plan.cards, key=lambda usage: usage.worst, default=None), plan.card
    if card is not None and fullest is not None and fullest.worst > card:
        raise UserError(
            f"a GPU has {gib(card)} GiB, and the estimate is more: {fullest}; {_settings_that_fit(plan, card)}"
        )


def _settings_that_fit(plan: RunPlan, card: float) -> str:
    """The end of a sentence: the remedies up to the first with which a GPU of `card` bytes suffices, less idle ones."""

    def need(remedies: Sequence[Remedy]) -> float:
        """Bytes of the fullest GPU; infinite if the processes or the store cannot be."""
        trial = replace(plan, config=with_values(plan.config, reduce(or_, remedies, {})))
        if trial.placement.gpus_needed > trial.placement.num_hosts * trial.placement.gpus_per_host:
            return math.inf
        try:
            return max(usage.worst for usage in with_sizes(trial).cards)
        except UserError:  # of the store
            return math.inf

    per_host, larger = plan.placement.gpus_per_host, (plan.config.services.trainer.procs << power for power in range(7))
    for gpus in (per_host, *(procs for procs in larger if per_host < procs <= MOST_GPUS)):
        machine = {"launcher.gpus_per_host": gpus, **_trainers(gpus)} if gpus > per_host else {}
        remedies_so_far, least = [machine], need([machine])
        for remedy in _remedies(plan, gpus):
            if least > card and (now := need([*remedies_so_far, remedy])) <= least:
                remedies_so_far, least = [*remedies_so_far, remedy], now
        if least > card:
            continue
        for remedy in reversed(remedies_so_far[1:]):
            without = [other for other in remedies_so_far if other is not remedy]
            remedies_so_far = without if need(without) <= card else remedies_so_far
        options = (
            f"--{name} {str(value).lower() if value is True else value}"
            for name, value in reduce(or_, remedies_so_far).items()
            if with_values(plan.config, {name: value}) != plan.config
        )
        return f"it fits {f'on {gpus} such GPUs ' if machine else ''}with {' '.join(options)}"
    return "no setting that was tried makes it fit: take a larger card, or a smaller model"


def _remedies(plan: RunPlan, gpus: int) -> list[Remedy]:
    """With `gpus` of a host, by their cost in speed; one that changes nothing, or that cannot be, does no harm."""
    training, services = plan.config.training, plan.config.services
    tokens = training.max_tokens_per_micro_batch
    halves = [tokens >> power for power in range(1, 32) if tokens >> power >= plan.config.env.max_tokens]
    trainers, engines = (
        [procs << power for power in range(1, 7) if procs << power <= gpus]
        for procs in (services.trainer.procs, services.generator.procs)
    )
    moments = {"training.optimizer_state": "float32"} if training.optimizer_state == "bfloat16" else {}
    offload = {"training.cpu_offload": True} | moments  # the host updates no moments in bfloat16
    return [
        {"services.generator.sleep": "auto"},
        {"services.generator.kv_cache_gib": 0.0},
        {"training.optimizer_state": "bfloat16"},
        *([{"training.optimizer_state": "8bit"}] if find_spec("torchao") and not plan.lora else []),
        *({"training.max_tokens_per_micro_batch": half} for half in halves),
        *({"training.activation_checkpoint": mode} for mode in ("selective", "attention", "full")),
        {"weights.store": "shared_memory"},  # in the host's memory, which may have no room
        *map(_trainers, trainers),
        *({"services.generator.procs": procs} for procs in engines if plan.sizes.num_key_value_heads % procs == 0),
        *([{"launcher.share_gpus": "no"}] if plan.config.launcher.share_gpus == "yes" else []),
        *([] if plan.lora else [offload, offload | {"training.offload_sums": True}]),  # an 8B step took twice as long
    ]


def _trainers(procs: int) -> Remedy:
    """`procs` processes, and no `parallelism.data_parallel_shard_degree` that was set for fewer."""
    return {"services.trainer.procs": procs, "parallelism.data_parallel_shard_degree": -1}
