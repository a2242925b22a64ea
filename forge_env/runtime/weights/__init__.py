"""The weight stores: one protocol, `WeightStore`, and four ways to carry weights. `choose_store` chooses one of them.

- one_host/shared_memory.py: shared memory, for the processes of one host.
- one_host/cuda_ipc.py: from GPU to GPU, for the processes of one host.
- nccl/: from GPU to GPU, for several hosts, and for GPUs of one host that cannot read each other's memory.
- torchstore.py: TorchStore, for several hosts, through the memory of the hosts.
"""

from forge_env.runtime.weights.choice import choose_store
from forge_env.runtime.weights.nccl.store import NcclStore
from forge_env.runtime.weights.one_host.cuda_ipc import CudaIpcStore
from forge_env.runtime.weights.one_host.shared_memory import SharedMemoryStore
from forge_env.runtime.weights.store import WeightStore
from forge_env.runtime.weights.tensor_layout import TensorLayout
from forge_env.runtime.weights.torchstore import TorchStoreWeights
from forge_env.runtime.weights.weight_stream import WeightStream

__all__ = [
    "CudaIpcStore",
    "NcclStore",
    "SharedMemoryStore",
    "TensorLayout",
    "TorchStoreWeights",
    "WeightStore",
    "WeightStream",
    "choose_store",
]
