"""Where the trainer runs: the process group, how its ranks share the work, and the abilities of each device."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from trainers.titan.device import SPMD_BACKEND, titan_utils  # isort: skip
from torchtitan.config import CommConfig
from torchtitan.config import ParallelismConfig as TitanParallelism
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as titan_dist

from trainers.titan.settings import ParallelismConfig

_GROUP_SECONDS = 86_400  # the caller of the ranks has deadlines; the first rank alone may write for an hour


def _gloo(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    """A group of gloo's with one worker thread.

    By default it has two, and in torch 2.13 both write the name of a collective that has ended into one std::string,
    without a lock (`ProcessGroupGloo::runLoop`). Two gathers that end at once, such as those of keys and values,
    corrupt the heap.
    """
    gloo: Any = dist.ProcessGroupGloo  # the types that torch declares lack the names of its options
    options = gloo._Options()
    # Only the constructor that makes its own options reads the variable.
    names = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    options._devices = [gloo.create_device(interface=name) for name in names] or [gloo.create_default_device()]
    options._threads = 1
    options._timeout = timeout
    group: dist.ProcessGroupGloo = gloo(store, rank, size, options)
    return group


_GLOO = "gloo_of_one_thread"
if titan_utils.device_type == "cpu":
    dist.Backend.register_backend(_GLOO, _gloo, devices=["cpu"])
    dist.Backend.default_device_backend_map["cpu"] = _GLOO  # what TorchTitan takes


def init_process_group() -> bool:
    """Bring up the process group if there is none; returns whether it was made here."""
    if dist.is_initialized():
        return False
    on_cpu = titan_utils.device_type == "cpu"
    if not on_cpu:
        titan_utils.device_module.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # No flight recorder: it leaves a folder in the working directory.
        settings = CommConfig(trace_buf_size=0, init_timeout_seconds=_GROUP_SECONDS)
        titan_dist.init_distributed(settings, enable_cpu_backend=not on_cpu)
    else:  # a single process needs no port and no other rank
        backend = _GLOO if on_cpu else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return True


def parallel_dims(settings: ParallelismConfig) -> ParallelDims:
    """TorchTitan's meshes over all ranks."""
    world = dist.get_world_size()
    settings.check_procs(world)
    titan_dist.set_spmd_backend(SPMD_BACKEND)
    return ParallelDims.from_config(
        TitanParallelism(
            data_parallel_replicate_degree=settings.data_parallel_replicate_degree,
            data_parallel_shard_degree=settings.shards(world),
            tensor_parallel_degree=settings.tensor_parallel_degree,
            context_parallel_degree=settings.context_parallel_degree,
            expert_parallel_degree=settings.expert_parallel_degree,
            spmd_backend=SPMD_BACKEND,
        ),
        world,
    )
