"""The device that TorchTitan runs on. Import this before any module of TorchTitan, which copies these settings."""

from __future__ import annotations

import torch
import torchtitan.tools.utils as titan_utils

from trainers.titan.flash_attention import choose, register

# Without an accelerator TorchTitan assumes "cuda". Its other modules copy these two names when they are imported, so
# they are set before anything else of TorchTitan is loaded.
if not torch.accelerator.is_available():
    titan_utils.device_type, titan_utils.device_module = "cpu", torch.cpu

# TorchTitan goes by the GPU alone, and asks for packages that may not be there.
titan_utils.get_cuda_flash_attention_impl = lambda: choose(torch.cuda.get_device_capability())
register()

SPMD_BACKEND = "partial_dtensor"  # the default, "spmd_types", wants fused QKV weights and every parameter on a mesh


def limit_memory(gib: float) -> None:
    """Limit the GPU memory of this process to `gib`; 0 means no limit. A CPU has no limit."""
    if gib and titan_utils.device_type == "cuda":
        total = torch.cuda.get_device_properties(device()).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, gib * 2**30 / total), device())


def release_memory() -> None:
    """Return the memory that torch's allocator holds and does not use to the device."""
    if titan_utils.device_type == "cuda":
        torch.cuda.empty_cache()


def device() -> torch.device:
    """The device of this process: the accelerator of its local rank, else the CPU."""
    if titan_utils.device_type == "cpu":
        return torch.device("cpu")
    return torch.device(titan_utils.device_type, titan_utils.device_module.current_device())
