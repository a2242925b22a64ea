"""Sizes the engine by the memory of all processes, and checks that they fit; if not, names settings that fit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from importlib.util import find_spec
from operator import or_
from typing import Any, NamedTuple

from agents.generator.settings import EngineSettings
from forge_env.core.errors import UserError
from forge_env.runtime.weights import StoreRequest, WeightStore, choose_store
from forge_env.utils.settings import with_values
from trainers.lora import published_parameters
from trainers.setup.draft import Draft
from trainers.setup.memory import BYTES, Memory, engine_memory, gib, reference_memory, trainer_memory
from trainers.setup.placement import Process
from trainers.setup.sizing.card import Processes, cards
from trainers.setup.sizing.engine import plan_engine

MOST_GPUS = 64  # of one host, that a remedy may name
Remedy = dict[str, Any]
"""Settings by their dotted names, e.g. `{"training.optimizer_state": "bfloat16"}`."""


class MemoryPlan(NamedTuple):
    """The engine of a run, a sentence on its cache and its sleep, and the memory of all processes."""

    engine: EngineSettings
    about_engine: str
    processes: Processes


def find_store(draft: Draft) -> tuple[WeightStore, str] | None:
    """The weight store of a run, and a sentence that says why; None if the sizes of the model are not known."""
    found = choose_store(draft.config.weights.store, _store_request(draft))
    return found if draft.shape else None


def check_store_room(draft: Draft) -> None:
    """Check that there is a store for `--weights.store auto`. One that is named was checked when it was chosen."""
    found = find_store(draft)
    if found and (refusal := found[0].refusal(_store_request(draft), "")):
        raise UserError(f"--weights.store is auto, which leaves {found[0].title}, {refusal}")


def _store_request(draft: Draft) -> StoreRequest:
    services, placement = draft.services, draft.placement
    all_on_gpus = services.trainer.with_gpus and services.generator.with_gpus
    return StoreRequest(
        size=_snapshot_bytes(draft) if draft.shape else 0,
        all_on_gpus=all_on_gpus,
        hosts=placement.num_hosts,
        shared_gpus=all_on_gpus and placement.shares_gpus,
        card=draft.card,
    )


def _snapshot_bytes(draft: Draft) -> int:
    """One snapshot of the published weights, in the engine's dtype."""
    return BYTES[draft.services.generator.dtype] * published_parameters(draft.lora, draft.sizes)


def plan_memory(draft: Draft, store: WeightStore | None) -> MemoryPlan:
    """Estimate the memory of all processes, and give the engine what the others on its GPU leave."""
    places, known = draft.placement.processes, draft.shape is not None
    engines = [process for process in places if process.service == "generator"]
    snapshot = _snapshot_bytes(draft) if known else 0
    kept = store.keep * snapshot if store and store.on_gpu else 0
    memory: dict[Process, Memory | None] = dict.fromkeys(places, Memory())
    for process in places:
        if process.service == "trainer":
            memory[process] = trainer_memory(draft, versions=0 if process.rank else kept) if known else None
        elif process.service == "ref_model":
            memory[process] = reference_memory(draft) if known else None
        elif process.service == "store" and not kept:  # two snapshots in the host's memory
            memory[process] = Memory(held={"weights": 2.0 * snapshot}) if known else None
    gpus = {engine.where for engine in engines if engine.gpu is not None}
    beside = [[found for process, found in memory.items() if found and process.where == gpu] for gpu in gpus]
    others = max((sum(found.total for found in each) for each in beside), default=0.0)
    at_rest = max((sum(found.at_rest for found in each) for each in beside), default=0.0)
    on_card = max(Counter(engine.where for engine in engines if engine.gpu is not None).values(), default=1)
    engine, about = plan_engine(draft, others=others, at_rest=at_rest, on_card=on_card)
    received = snapshot if store and store.received else 0
    memory |= dict.fromkeys(engines, engine_memory(draft, engine, received=received) if known else None)
    return MemoryPlan(engine, about, list(memory.items()))


def check_fit(draft: Draft, memory: MemoryPlan) -> None:
    """Check that each GPU has room for its processes, as far as the sizes of model and GPU are known."""
    fullest, card = max(cards(memory.processes), key=lambda usage: usage.worst, default=None), draft.card
    if card is not None and fullest is not None and fullest.worst > card:
        fit = _settings_that_fit(draft, card)
        raise UserError(f"a GPU has {gib(card)} GiB, and the estimate is more: {fullest}; {fit}")


def _settings_that_fit(draft: Draft, card: float) -> str:
    """The end of a sentence: the remedies up to the first with which a GPU of `card` bytes suffices, less idle ones."""

    def needed(remedies: Sequence[Remedy]) -> float:
        """Bytes of the fullest GPU; infinite if the processes or the store cannot be."""
        tried = replace(draft, config=with_values(draft.config, reduce(or_, remedies, {})))
        try:
            found = find_store(tried)
        except UserError:
            return math.inf
        if tried.placement.gpus_needed > tried.placement.num_hosts * tried.placement.gpus_per_host:
            return math.inf
        return max(usage.worst for usage in cards(plan_memory(tried, found and found[0]).processes))

    per_host, larger = draft.placement.gpus_per_host, (draft.services.trainer.procs << power for power in range(7))
    for gpus in (per_host, *(procs for procs in larger if per_host < procs <= MOST_GPUS)):
        machine = {"launcher.gpus_per_host": gpus, **_trainers(gpus)} if gpus > per_host else {}
        chosen, least = [machine], needed([machine])
        for remedy in _remedies(draft, gpus):
            if least > card and (now := needed([*chosen, remedy])) <= least:
                chosen, least = [*chosen, remedy], now
        if least > card:
            continue
        for remedy in reversed(chosen[1:]):
            without = [other for other in chosen if other is not remedy]
            chosen = without if needed(without) <= card else chosen
        options = (
            f"--{name} {str(value).lower() if value is True else value}"
            for name, value in reduce(or_, chosen).items()
            if with_values(draft.config, {name: value}) != draft.config
        )
        return f"it fits {f'on {gpus} such GPUs ' if machine else ''}with {' '.join(options)}"
    return "no setting that was tried makes it fit: take a larger card, or a smaller model"


def _remedies(draft: Draft, gpus: int) -> list[Remedy]:
    """With `gpus` of a host, by their cost in speed; one that changes nothing, or that cannot be, does no harm."""
    training, services, tokens = draft.training, draft.services, draft.training.max_tokens_per_micro_batch
    halves = [tokens >> power for power in range(1, 32) if tokens >> power >= draft.env.max_tokens]
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
        *([{"training.optimizer_state": "8bit"}] if find_spec("torchao") and not draft.lora else []),
        *({"training.max_tokens_per_micro_batch": half} for half in halves),
        *({"training.activation_checkpoint": mode} for mode in ("selective", "attention", "full")),
        {"weights.store": "shared_memory"},  # in the host's memory, which may have no room
        *map(_trainers, trainers),
        *({"services.generator.procs": procs} for procs in engines if draft.sizes.num_key_value_heads % procs == 0),
        *([{"launcher.share_gpus": "no"}] if draft.config.launcher.share_gpus == "yes" else []),
        *([] if draft.lora else [offload, offload | {"training.offload_sums": True}]),  # an 8B step took twice as long
    ]


def _trainers(procs: int) -> Remedy:
    """`procs` processes, and no `parallelism.data_parallel_shard_degree` that was set for fewer."""
    return {"services.trainer.procs": procs, "parallelism.data_parallel_shard_degree": -1}
