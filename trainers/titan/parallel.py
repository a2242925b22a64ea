"""Where the trainer runs: the process group, how its ranks share the work, and the abilities of each device."""

from __future__ import annotations

import os

import torch.distributed as dist

# First of all TorchTitan imports: it settles the device for the others.
from trainers.titan.device import SPMD_BACKEND, titan_utils  # isort: skip
from torchtitan.config import CommConfig, ParallelismConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as titan_dist

from forge_env.core.errors import UserError

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


def parallel_dims(dp_shard: int, tp: int, cp: int = 1, dp_replicate: int = 1, ep: int = 1) -> ParallelDims:
    """TorchTitan's meshes over all ranks; `dp_shard` -1 is all ranks that the other degrees leave.

    Raises:
        UserError: the product of the degrees is not the number of ranks, or `ep` does not divide the ranks of one
            replica.
    """
    world = dist.get_world_size()
    shard = max(1, world // (dp_replicate * tp * cp)) if dp_shard == -1 else dp_shard
    if dp_replicate * shard * tp * cp != world:
        raise UserError(
            f"dp_replicate={dp_replicate} times dp_shard={dp_shard} times tp={tp} times cp={cp} must be the number of "
            f"ranks, {world}."
        )
    if shard * tp * cp % ep:
        raise UserError(
            f"ep={ep} must divide the number of ranks that hold the weights together, dp_shard times tp times cp, "
            f"{shard * tp * cp}."
        )
    titan_dist.set_spmd_backend(SPMD_BACKEND)
    return ParallelDims.from_config(
        ParallelismConfig(
            data_parallel_replicate_degree=dp_replicate,
            data_parallel_shard_degree=shard,
            tensor_parallel_degree=tp,
            context_parallel_degree=cp,
            expert_parallel_degree=ep,
            spmd_backend=SPMD_BACKEND,
        ),
        world,
    )
