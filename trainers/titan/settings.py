"""How a model is trained."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.lora import Lora
from trainers.titan.schedule import check_schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class TitanSettings:
    """How to train, e.g. `TitanSettings(learning_rate=3e-4, threads=2)`."""

    learning_rate: float = 1e-6
    """Learning rate of AdamW after the warm-up."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the first and second moment."""
    eps: float = 1e-8
    """AdamW's epsilon."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay, on every parameter."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this global 2-norm."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly."""
    lr_schedule: str = "constant"
    """What the learning rate does after the warm-up: "constant", or "linear" or "cosine" down to 0."""
    total_steps: int = 0
    """Optimizer steps after which "linear" and "cosine" have reached 0."""
    seed: int = 0
    """Seed of torch's generator."""
    dtype: str = ""
    """"float32", or "bfloat16" for bfloat16 compute over float32 weights; "" is float32 on CPU, bfloat16 on GPU."""
    max_tokens_per_micro_batch: int = 16384
    """Tokens of one forward pass at most, padding included; a longer row has a pass of its own. The `cp` ranks of
    a sequence share these tokens."""
    pack_length: int = 0
    """Pack rows into sequences of this many tokens; 0 pads each row instead."""
    dp_replicate: int = 1
    """Groups of ranks that each hold all weights, sharded over the group's ranks (HSDP)."""
    dp_shard: int = -1
    """Ranks to shard data and weights over (FSDP), weights also over the `cp` ranks; -1 is all that the other degrees
    leave."""
    tp: int = 1
    """Ranks to cut each matrix over."""
    cp: int = 1
    """Ranks to cut each sequence over; see context.py."""
    ep: int = 1
    """Ranks to spread the experts of each layer over; it divides dp_shard times tp times cp, whose ranks they are."""
    threads: int = 0
    """CPU threads of torch; 0 leaves them as they are."""
    deterministic: bool = False
    """Let torch use deterministic algorithms only, in this process from now on."""
    compile: bool = False
    """Compile each transformer block; costs minutes at the start, pays on a GPU."""
    compile_full: bool = False
    """On GPU, with `pack_length`: compile for a full micro-batch, too, before the first step. It takes the memory of a
    step."""
    activation_checkpoint: str = "none"
    """Which activations the backward pass computes again instead of keeping them: "none", "selective" or "full"."""
    keep_logits_gib: float = 10.0
    """On GPU, a micro-batch's logits up to this size are kept for the backward pass; larger ones are computed again."""
    cpu_offload: bool = False
    """On GPU, keep weights, gradients and optimizer state in the host's memory; the optimizer then runs on the CPU."""
    reshard_after_forward: str = "default"
    """When FSDP frees gathered weights after the forward pass: "always", "never", or "default", which is always but
    for the output layer."""
    optimizer_state: str = "float32"
    """What AdamW's moments are kept in: "float32", "bfloat16" or "8bit"; see `trainers.titan.optimizer`."""
    fp32_head: bool = False
    """Compute the output layer in float32 with float32 weights, where the rest of the model computes in bfloat16."""
    replay: bool = True
    """In a model with experts: compute tokens with the experts that the engine chose, where rows have their `routes`.
    """
    lora: Lora | None = None
    """Adapters to train in the place of all weights, which are then frozen in the dtype that the model computes in."""
    gpu_memory_gib: float = 0.0
    """What this process may take of its GPU's memory; 0 is all of it."""
    attention: str = ""
    """"sdpa", "flex" or "varlen"; "" is sdpa on CPU; on GPU varlen, or flex in float32 and with `cp`."""

    def __post_init__(self) -> None:
        check_schedule(self.lr_schedule, warmup_steps=self.warmup_steps, total_steps=self.total_steps)
