"""Where the trainer runs: the process group, how its ranks share the work, and the abilities of each device."""

from __future__ import annotations

import os

import torch.distributed as dist

# First of all TorchTitan imports: it settles the device for the others.
from trainers.titan.device import SPMD_BACKEND, titan_utils  # isort: skip
from torchtitan.config import CommConfig
from torchtitan.config import ParallelismConfig as TitanParallelism
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as titan_dist

from trainers.titan.settings import ParallelismConfig

_GROUP_SECONDS = 86_400  # the caller of the ranks has deadlines; the first rank alone may write for an hour


def init_process_group() -> bool:
    """Bring up the process group if there is none; returns whether it was made here."""
    if dist.is_initialized():
        return False
    if titan_utils.device_type != "cpu":
        titan_utils.device_module.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # No flight recorder: it leaves a folder in the working directory.
        settings = CommConfig(trace_buf_size=0, init_timeout_seconds=_GROUP_SECONDS)
        titan_dist.init_distributed(settings, enable_cpu_backend=titan_utils.device_type != "cpu")
    else:  # a single process needs no port and no other rank
        backend = "gloo" if titan_utils.device_type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return True


def parallel_dims(settings: ParallelismConfig) -> ParallelDims:
    """TorchTitan's meshes over all ranks.

    Raises:
        UserError: the degrees are not those of so many ranks.
    """
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
