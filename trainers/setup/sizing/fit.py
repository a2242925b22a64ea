"""Checks that a run fits on its GPUs; if it does not, names settings that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from agents.generator.settings import EngineSettings
from forge_env.core.errors import UserError
from forge_env.runtime.weights import WeightStore
from forge_env.utils.settings import with_values
from trainers.config import RunConfig
from trainers.setup.draft import Draft
from trainers.setup.memory import Memory, gib
from trainers.setup.placement import Process
from trainers.setup.sizing.card import Card, Processes, cards
from trainers.setup.sizing.engine import SharedGpu, cannot_sleep_reason, plan_engine
from trainers.setup.sizing.estimates import estimate_memory, find_store

MOST_GPUS = 64  # of one host, that a remedy may name
Remedy = dict[str, Any]
"""Settings by their dotted names, e.g. `{"training.optimizer_state": "bfloat16"}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The engine of a run, and the memory of all processes beside it."""

    engine: EngineSettings
    about_engine: str
    """A sentence on the engine's cache and sleep; "" for an engine on a CPU that does not sleep."""
    processes: Processes

    @property
    def cards(self) -> list[Card]:
        return cards(self.processes)


def plan_memory(draft: Draft, store: WeightStore | None) -> MemoryPlan:
    """Estimate the memory of all processes, and give the engine what the others on its GPU leave."""
    memory: dict[Process, Memory | None] = {
        process: Memory() if process.service == "generator" else estimate_memory(draft, process, None, store)
        for process in draft.placement.processes
    }
    engines = [process for process in memory if process.service == "generator" and draft.has_engine]
    others, at_rest = _beside_engine(engines, memory)
    no_sleep = cannot_sleep_reason(draft)
    gpu = SharedGpu(card=draft.card, others=others, others_at_rest=at_rest, no_sleep=no_sleep)
    engine, about = plan_engine(draft, gpu)
    memory |= {process: estimate_memory(draft, process, engine, store) for process in engines}
    return MemoryPlan(engine=engine, about_engine=about, processes=list(memory.items()))


def _beside_engine(engines: Sequence[Process], memory: Mapping[Process, Memory | None]) -> tuple[float, float]:
    """Bytes of the other processes on the fullest GPU of an engine: their peak, and at rest."""
    worst, at_rest = 0.0, 0.0
    for gpu in {engine.where for engine in engines if engine.gpu is not None}:
        estimates = [estimate for process, estimate in memory.items() if process.where == gpu and estimate is not None]
        worst = max(worst, sum(estimate.total for estimate in estimates))
        at_rest = max(at_rest, sum(estimate.at_rest for estimate in estimates))
    return worst, at_rest


def check_fit(draft: Draft, memory: MemoryPlan) -> None:
    """Check that each GPU has room for its processes, as far as the sizes of model and GPU are known.

    Raises:
        UserError: otherwise, with settings that fit.
    """
    fullest = max(memory.cards, key=lambda usage: usage.worst, default=None)
    card = draft.card
    if card is None or fullest is None or fullest.worst <= card:
        return

    def fits(changed: RunConfig) -> bool:
        tried = replace(draft, config=changed)
        placement = tried.placement
        if placement.gpus_needed > placement.num_hosts * placement.gpus_per_host:
            return False
        try:
            found = find_store(tried)
        except UserError:
            return False
        return all(usage.worst <= card for usage in plan_memory(tried, found[0] if found else None).cards)

    fit = nearest_settings(draft.config, fits)
    raise UserError(f"a GPU has {gib(card)} GiB, and the estimate is more: {fullest}; {fit}")


def nearest_settings(config: RunConfig, fits: Callable[[RunConfig], bool]) -> str:
    """Which settings fit, as the end of a sentence: on the GPUs of the run, else on more of them.

    Args:
        config: of the run, which does not fit.
        fits: tells whether a config fits.
    """
    if remedies := _remedies_that_fit(config, fits):
        return f"it fits with {remedies}"
    count = max(1, config.launcher.gpus_per_host)
    while count < MOST_GPUS:
        count *= 2
        larger = with_values(config, {"services.trainer.procs": count, "launcher.gpus_per_host": count})
        remedies = "" if fits(larger) else _remedies_that_fit(larger, fits)
        if remedies or fits(larger):
            further = f" and {remedies}" if remedies else ""
            return f"it fits on {count} such GPUs with --services.trainer.procs {count}{further}"
    return "no setting that was tried makes it fit: take a larger card, or a smaller model"


def _remedies_that_fit(config: RunConfig, fits: Callable[[RunConfig], bool]) -> str:
    """Up to three remedies in the order of their cost in speed; "" if none fits.

    Each remedy is tried alone. Until one is enough alone, it is also tried together with all cheap ones before it.
    """

    def helps(remedy: Remedy) -> bool:
        changed = with_values(config, remedy)
        is_refused = changed.training.cpu_offload and changed.training.optimizer_state == "bfloat16"
        return not is_refused and fits(changed)

    cheap = list(_cheap_remedies(config))
    enough: list[Remedy] = []
    together: Remedy = {}
    for remedy in (*cheap, *_costly_remedies(config)):
        if helps(remedy):
            enough.append(remedy)
        elif not enough and helps(together | remedy):
            enough.append(together | remedy)
        together |= remedy if remedy in cheap else {}
    mildest: dict[str, Remedy] = {}  # the first that changes these settings
    for remedy in enough:
        for name in reversed(remedy):  # leave out what is not needed, and of the rest take the mildest value
            without = {other: value for other, value in remedy.items() if other != name}
            milder = [remedy | other for other in cheap if name in other]
            remedy = next(filter(helps, (without, *milder)), remedy)
        mildest.setdefault(" ".join(remedy), remedy)
    return " or with ".join(" ".join(map(_option, remedy.items())) for remedy in list(mildest.values())[:3])


def _cheap_remedies(config: RunConfig) -> Iterator[Remedy]:
    """Remedies that always work together, by their cost in speed; of several values of a setting the mildest first."""
    services, training = config.services, config.training
    if services.generator.sleep == "no":
        yield {"services.generator.sleep": "auto"}
    if services.generator.kv_cache_gib:
        yield {"services.generator.kv_cache_gib": 0.0}
    if services.trainer.with_gpus and not training.cpu_offload:
        if training.optimizer_state == "float32":
            yield {"training.optimizer_state": "bfloat16"}
        if training.optimizer_state != "8bit" and not config.lora.is_on and find_spec("torchao"):
            yield {"training.optimizer_state": "8bit"}
    tokens = training.max_tokens_per_micro_batch
    while tokens // 2 >= config.env.max_tokens:
        tokens //= 2
        yield {"training.max_tokens_per_micro_batch": tokens}
    modes = ["none", "selective", "attention", "full"]
    for mode in modes[modes.index(training.activation_checkpoint) + 1 :]:
        yield {"training.activation_checkpoint": mode}


def _costly_remedies(config: RunConfig) -> Iterator[Remedy]:
    """Another store, more of the GPUs that there are, and at last offloading (an 8B step took twice as long)."""
    if config.weights.store in ("auto", "cuda_ipc"):  # in the host's memory, which may have no room
        yield {"weights.store": "shared_memory"}
    if config.launcher.share_gpus != "no":
        yield {"launcher.share_gpus": "no"}
    for name in ("trainer", "generator"):
        procs = getattr(config.services, name).procs
        while procs * 2 <= config.launcher.gpus_per_host:
            procs *= 2
            yield {f"services.{name}.procs": procs}
    if not config.lora.is_on:
        state = config.training.optimizer_state  # the host updates no moments in bfloat16
        offload = {"training.cpu_offload": True, "training.optimizer_state": "8bit" if state == "8bit" else "float32"}
        if not config.training.cpu_offload:
            yield offload
        if not config.training.offload_sums:
            yield offload | {"training.offload_sums": True}


def _option(change: tuple[str, Any]) -> str:
    name, value = change
    return f"--{name} {str(value).lower() if isinstance(value, bool) else value}"
