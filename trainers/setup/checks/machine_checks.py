"""Checks of the trainer, memory, GPUs and hosts against the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from forge_env.core.errors import UserError
from trainers.metrics.gpus import Gpus
from trainers.setup.card import GIB, gib, host_parts
from trainers.setup.memory import COPIED, OFFLOADED
from trainers.setup.placement import Placement, gpus_available
from trainers.setup.run_plan import RunPlan

_GROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = float("inf")


def check_trainer(plan: RunPlan) -> None:
    """Check what the trainer can do on its device, and that the plan has room for the mask of its attention."""
    trainer, with_gpus = plan.trainer, plan.config.services.trainer.with_gpus
    if trainer.cpu_offload and not with_gpus:
        raise UserError(
            "--training.cpu_offload is true, which is for a trainer on GPU, and this one is on the CPU, whose memory "
            "has the weights already: leave it out, or use --trainer.with_gpus true"
        )
    trainer.check_state(is_on_gpu=with_gpus)
    trainer.choose_attention(is_on_gpu=with_gpus)
    degree = trainer.context_parallel_degree
    if with_gpus and trainer.attention == "sdpa" and (trainer.pack_length or degree > 1):
        cause = (
            "training.packing is true" if trainer.pack_length else f"parallelism.context_parallel_degree is {degree}"
        )
        raise UserError(
            f"--training.attention is sdpa and --{cause}: for rows that share a sequence, or are shared, sdpa builds a "
            "mask of tokens x tokens, which the plan of the GPU's memory has no room for: set it to flex, or leave it "
            "out"
        )


def check_host_memory(plan: RunPlan, host: float | None = None) -> None:
    """Check that the host has room for the processes on its CPU, and for parts that processes on GPUs keep there.

    `host` is bytes of another machine's memory; 0 is not checked.
    """
    parts = host_parts(plan.processes)
    on_gpus = "put trainer and generator on GPUs with --trainer.with_gpus true --generator.with_gpus true"
    remedies = ["take a smaller model", on_gpus]
    if OFFLOADED in parts:
        remedies = ["leave --training.cpu_offload out", "make them smaller with --training.optimizer_state 8bit"]
    elif COPIED in parts:
        remedies = ["take a smaller model", "let the engine have weights without adapters with --lora.publish merged"]
    elif not plan.lora and plan.config.model.path:
        remedies.insert(1, "train adapters with --lora.rank 16")
    total, host = sum(parts.values()), host_memory(plan.placement) if host is None else host
    if 0 < host < total:
        each = " + ".join(f"{name} {gib(size)}" for name, size in parts.items())
        raise UserError(
            f"this machine has {gib(host)} GiB of memory, and the estimate of what the run needs there is "
            f"{gib(total)}: {each}; {', '.join(remedies[:-1])}, or {remedies[-1]}"
        )


def host_memory(placement: Placement) -> float:
    """Bytes of memory that this machine has, or that the control groups of this process leave it.

    0 for a run that is on several machines, or on GPUs that this machine does not have.
    """
    if placement.num_hosts > 1 or placement.gpus_needed > gpus_available():
        return 0.0
    return min(float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")), *_group_limits(), _NO_LIMIT)


def _group_limits() -> Iterator[float]:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (_GROUPS / "memory", "memory.limit_in_bytes") if controllers else (_GROUPS, "memory.max")
        folder = top / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(top) and (group / name).is_file():
                limit = (group / name).read_text().strip()
                yield float(limit) if limit.isdigit() else _NO_LIMIT


def card_size(plan: RunPlan) -> float | None:
    """Bytes that the run may use of each of its GPUs: the smallest of them counts. None if they are not known."""
    if not plan.placement.gpus_wanted:
        return None
    gpus = Gpus(plan.placement.gpus_of_this_machine)
    sizes = gpus.sizes()
    gpus.close()
    gib_of_user = plan.config.launcher.gpu_memory_gib
    cap = gib_of_user * GIB
    for number, size in sizes.items():
        if cap > size:
            raise UserError(
                f"--launcher.gpu_memory_gib is {gib_of_user:g}, and GPU {number} has {gib(size)} "
                "GiB: set it to that or less, or to 0 for all of it"
            )
    return cap or min(sizes.values(), default=None)
