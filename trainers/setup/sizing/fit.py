"""Checks that a run fits on its GPUs; where it does not, finds the nearest settings that fit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from agents.generator.start import EngineSettings
from forge_env.core.errors import UserError
from forge_env.runtime.weights import WeightStore
from trainers.config import RunConfig
from trainers.metrics.gpus import Gpus
from trainers.model.shape import ModelShape
from trainers.setup.memory import GIB, Memory, gib
from trainers.setup.placement import Placement, Process, make_placement
from trainers.setup.sizing.card import Card, Processes, cards
from trainers.setup.sizing.engine import plan_engine, why_awake
from trainers.setup.sizing.estimates import estimate_memory, snapshot_bytes
from trainers.setup.weight_store import find_store

MOST_GPUS = 64  # of one host: the search for settings that fit ends there


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Inputs of the memory plan that are known before it."""

    card: float | None
    """Bytes that the run may use of each GPU; None where that is not known."""
    old_logprobs: str
    """As `RunPlan.old_logprobs`."""
    engine_args: Mapping[str, Any]
    """Of vLLM, from `services.generator.engine`."""


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


def card_size(config: RunConfig, placement: Placement) -> float | None:
    """Bytes that the run may use of each of its GPUs: the smallest of them counts. None where they are not known.

    Raises:
        UserError: when `launcher.gpu_memory_gib` is more than a GPU of this machine has.
    """
    if not placement.gpus_wanted:
        return None
    gpus = Gpus(placement.gpus_of_this_machine)
    sizes = gpus.sizes()
    gpus.close()
    cap = config.launcher.gpu_memory_gib * GIB
    for number, size in sizes.items():
        if cap > size:
            raise UserError(
                f"--launcher.gpu_memory_gib is {config.launcher.gpu_memory_gib:g}, and GPU {number} has {gib(size)} "
                "GiB: set it to that or less, or to 0 for all of it"
            )
    return cap or min(sizes.values(), default=None)


def plan_memory(
    config: RunConfig,
    placement: Placement,
    shape: ModelShape | None,
    store: WeightStore | None,
    given: Given,
) -> MemoryPlan:
    """Size the engine by what the other processes on its GPU need, and estimate the memory of all."""
    memory: dict[Process, Memory | None] = {
        process: estimate_memory(config, process, shape, None, store)
        for process in placement.processes
        if process.service != "generator"
    }
    if not has_engine(config):
        memory |= {process: Memory() for process in placement.processes if process.service == "generator"}
    others, at_rest = _beside_engine(placement.processes, memory) if has_engine(config) else (0.0, 0.0)
    engine, about = plan_engine(
        config,
        shape,
        given.engine_args,
        card=given.card,
        others=others,
        others_at_rest=at_rest,
        hindrance=why_awake(config, given.old_logprobs, given.engine_args),
    )
    processes = [
        (process, memory[process] if process in memory else estimate_memory(config, process, shape, engine, store))
        for process in placement.processes
    ]
    return MemoryPlan(engine=engine, about_engine=about, processes=processes)


def has_engine(config: RunConfig) -> bool:
    """Whether an engine is started: supervised training without an environment has none."""
    return bool(config.env.name) or config.algorithm is not None


def _beside_engine(processes: Sequence[Process], memory: Mapping[Process, Memory | None]) -> tuple[float, float]:
    """Bytes of the other processes on the fullest GPU of an engine: their peak, and at rest."""
    worst, at_rest = 0.0, 0.0
    for gpu in {process.where for process in processes if process.service == "generator" and process.gpu is not None}:
        here = [estimate for process, estimate in memory.items() if process.where == gpu and estimate is not None]
        worst = max(worst, sum(estimate.total for estimate in here))
        at_rest = max(at_rest, sum(estimate.at_rest for estimate in here))
    return worst, at_rest


def check_sleep(config: RunConfig, placement: Placement, given: Given) -> None:
    """Check that `services.generator.sleep: yes` is possible, and that a trainer uses the memory meanwhile.

    Raises:
        UserError: otherwise.
    """
    generator = config.services.generator
    if generator.sleep != "yes":
        return
    if hindrance := why_awake(config, given.old_logprobs, given.engine_args):
        raise UserError(f"--services.generator.sleep is yes, and {hindrance}: leave it out")
    taken = {process.where for process in placement.processes if process.service == "trainer"}
    engines = [process for process in placement.processes if process.service == "generator"]
    if generator.with_gpus and not any(process.where in taken for process in engines):
        raise UserError(
            "--services.generator.sleep is yes, and no trainer is on the engine's GPU to use its memory meanwhile: "
            "leave it out, or share the GPUs with --launcher.share_gpus yes"
        )


def check_speculation(config: RunConfig, given: Given) -> None:
    """Check that speculative decoding is used on GPUs only.

    Raises:
        UserError: on a CPU, where logprobs of vLLM 0.32 were measured to be off by up to 10 nats, and NaN.
    """
    if given.engine_args.get("speculative_config") and not config.services.generator.with_gpus:
        raise UserError(
            "--services.generator.engine.speculative_config is refused on a CPU: vLLM's logprobs are then not those of "
            "the sampled tokens; leave it out, or use --generator.with_gpus true"
        )


def check_fit(
    config: RunConfig, memory: MemoryPlan, shape: ModelShape | None, given: Given, *, has_reference: bool
) -> None:
    """Check that each GPU has room for its processes, as far as the sizes of model and GPU are known.

    Raises:
        UserError: with the nearest settings that fit.
    """
    full = max(memory.cards, key=lambda usage: usage.worst, default=None)
    card = given.card
    if card is None or full is None or full.worst <= card:
        return

    def fits(changed: RunConfig) -> bool:
        placement = make_placement(changed, has_reference=has_reference)
        if placement.gpus_needed > placement.num_hosts * placement.gpus_per_host:
            return False
        try:
            store, _ = find_store(changed, placement, snapshot_bytes(changed, shape) if shape else 0, card)
        except UserError:
            return False
        plan = plan_memory(changed, placement, shape, store, given)
        return all(usage.worst <= card for usage in plan.cards)

    raise UserError(f"a GPU has {gib(card)} GiB, and the estimate is more: {full}; {nearest_settings(config, fits)}")


def nearest_settings(config: RunConfig, fits: Callable[[RunConfig], bool]) -> str:
    """Which settings fit, as the end of a sentence: on the GPUs that there are, else on more of them.

    Args:
        config: of the run, which does not fit.
        fits: tells whether a config fits.
    """
    if settings := _fitting(config, fits):
        return f"it fits with {settings}"
    count = max(1, config.launcher.gpus_per_host)
    while count < MOST_GPUS:
        count *= 2
        more = [("services.trainer.procs", count), ("launcher.gpus_per_host", count)]
        larger = _with(config, more)
        settings = "" if fits(larger) else _fitting(larger, fits)
        if settings or fits(larger):
            return f"it fits on {count} such GPUs with {_option(more[0])}{' and ' if settings else ''}{settings}"
    return "no setting that was tried makes it fit: take a larger card, or a smaller model"


def _fitting(config: RunConfig, fits: Callable[[RunConfig], bool]) -> str:
    """Settings that fit: those that cost the least speed, then others that are enough alone; "" if there are none."""
    cheap, placements, offload = list(_changes(config)), list(_placements(config)), list(_offload(config))
    offloaded = offload and [*offload, *(change for change in cheap if change[0] != "training.optimizer_state")]
    orders = [cheap, *([placement, *cheap] for placement in placements), offloaded]
    enough = (order[: end + 1] for order in orders for end in range(len(order)))
    least = next((dict(changes) for changes in enough if fits(_with(config, changes))), {})
    for name in reversed(list(least)):  # leave out what is not needed, and of the rest take the mildest value
        rest = {other: value for other, value in least.items() if other != name}
        instead = [rest, *({**least, name: value} for other, value in cheap if other == name), least]
        least = next(changes for changes in instead if fits(_with(config, changes.items())))
    alone = [(name, value) for name, value in (*cheap, *placements, *offload) if fits(_with(config, [(name, value)]))]
    mildest = {name: {name: value} for name, value in reversed(alone) if list(least) != [name]}
    remedies = [least, *reversed(mildest.values())] if least else []
    return " or with ".join(" ".join(map(_option, remedy.items())) for remedy in remedies[:3])


def _changes(config: RunConfig) -> Iterator[tuple[str, Any]]:
    """Settings to try, those that cost no speed first; several values of one setting begin with the mildest."""
    services, training = config.services, config.training
    if services.generator.sleep == "no":
        yield "services.generator.sleep", "auto"
    if services.generator.kv_cache_gib:
        yield "services.generator.kv_cache_gib", 0.0
    if services.trainer.with_gpus and not training.cpu_offload:
        if training.optimizer_state == "float32":
            yield "training.optimizer_state", "bfloat16"
        if training.optimizer_state != "8bit" and not config.lora.rank and find_spec("torchao"):
            yield "training.optimizer_state", "8bit"
    tokens = training.max_tokens_per_micro_batch
    while tokens // 2 >= config.env.max_tokens:
        tokens //= 2
        yield "training.max_tokens_per_micro_batch", tokens
    modes = ["none", "selective", "full"]
    for mode in modes[modes.index(training.activation_checkpoint) + 1 :]:
        yield "training.activation_checkpoint", mode
    if config.weights.store in ("auto", "cuda_ipc"):  # in the host's memory, which may have no room
        yield "weights.store", "shared_memory"


def _placements(config: RunConfig) -> Iterator[tuple[str, Any]]:
    """Other uses of the GPUs that there are."""
    if config.launcher.share_gpus != "no":
        yield "launcher.share_gpus", "no"
    for name in ("trainer", "generator"):
        procs = getattr(config.services, name).procs
        while procs * 2 <= config.launcher.gpus_per_host:
            procs *= 2
            yield f"services.{name}.procs", procs


def _offload(config: RunConfig) -> Iterator[tuple[str, Any]]:
    """What is tried last: with offloading a step of 8B took about twice as long."""
    if not config.training.cpu_offload and not config.lora.rank:
        if config.training.optimizer_state == "bfloat16":
            yield "training.optimizer_state", "float32"  # the host updates no moments in bfloat16
        yield "training.cpu_offload", True


def _with(config: RunConfig, changes: Iterable[tuple[str, Any]]) -> RunConfig:
    changed = copy.deepcopy(config)
    for name, value in changes:
        *sections, field = name.split(".")
        section: Any = changed
        for part in sections:
            section = getattr(section, part)
        setattr(section, field, value)
    return changed


def _option(change: tuple[str, Any]) -> str:
    name, value = change
    return f"--{name} {str(value).lower() if isinstance(value, bool) else value}"
