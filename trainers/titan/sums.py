"""Gradients of several micro-batches that are summed on the device before FSDP hands them to the host.

FSDP adds an offloaded gradient to the one of the micro-batch before on the host: the device waits for the copy, and for
one thread that adds. With replicas (HSDP) FSDP keeps the sums of a replica on the device until all replicas are asked
for. Here each rank is the only replica, so that FSDP keeps its sums, and copies them once.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

import trainers.titan.device  # noqa: F401  # isort: skip
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import DDPMeshInfo, HSDPMeshInfo


def keep_sums(module: nn.Module) -> None:
    """Let `FSDPModule.set_requires_all_reduce` say when gradients leave the device; every rank calls it.

    Args:
        module: wrapped in FSDP, before its first pass. With replicas nothing changes.
    """
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    for part in module.modules():
        for group in part._get_fsdp_state()._fsdp_param_groups if isinstance(part, FSDPModule) else ():
            if not isinstance(group.mesh_info, DDPMeshInfo):
                # The same shards; HSDPMeshInfo's constructor would want a mesh, which opens connections of its own.
                info = HSDPMeshInfo.__new__(HSDPMeshInfo)
                replica = {"replicate_process_group": alone, "replicate_mesh_size": 1, "replicate_mesh_rank": 0}
                info.__dict__.update(group.mesh_info.__dict__ | replica)
                # FSDP gathers a block again from other shards, if this differs from that.
                if group.post_forward_mesh_info == group.mesh_info:
                    group.post_forward_mesh_info = info
                group.mesh_info = info
