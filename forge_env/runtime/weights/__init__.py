"""The weight stores: one protocol, `WeightStore`, and ways to carry weights. `choose_store` chooses one of them.

- one_host/shared_memory.py: shared memory, for the processes of one host.
- one_host/cuda_ipc.py: from GPU to GPU, for the processes of one host.
- others, by folders of contrib in their table `stores`.
"""

from forge_env.runtime.weights.choice import choose_store
from forge_env.runtime.weights.one_host.cuda_ipc import CudaIpcStore
from forge_env.runtime.weights.one_host.shared_memory import SharedMemoryStore
from forge_env.runtime.weights.store import StoreRequest, WeightStore
from forge_env.runtime.weights.tensor_layout import TensorLayout, WeightStream

__all__ = [
    "CudaIpcStore",
    "SharedMemoryStore",
    "StoreRequest",
    "TensorLayout",
    "WeightStore",
    "WeightStream",
    "choose_store",
]
