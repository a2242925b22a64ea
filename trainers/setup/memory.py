"""How much memory each process of a run will need: estimates, from the sizes of the model and the config alone.

What is counted: weights, gradients, optimizer state, activations of one micro-batch, a chunk of the output layer, the
engine's key-value cache. What is not: CUDA's and NCCL's own buffers (1 to 2 GiB a GPU), compiled graphs, what the
allocator cannot use, and Python itself. An estimate that fits with a fifth to spare may be expected to run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trainers.model.shape import ModelShape

GIB = 2**30
FLOAT32, BFLOAT16 = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one process, by what they are for."""

    held: dict[str, float] = field(default_factory=dict)
    """What is there all the time."""
    phases: tuple[dict[str, float], ...] = ()
    """What comes and goes; one of them at a time."""

    @property
    def total(self) -> float:
        """Bytes at the worst moment."""
        return sum(self.held.values()) + max((sum(phase.values()) for phase in self.phases), default=0.0)

    def __str__(self) -> str:
        """All parts, those that are not there at the same time parted by "or"."""
        groups = [", ".join(f"{name} {gib(value)}" for name, value in part.items()) for part in self.phases]
        held = ", ".join(f"{name} {gib(value)}" for name, value in self.held.items())
        return " + ".join(part for part in (held, " or ".join(groups)) if part)


def gib(count: float) -> str:
    """Bytes in GiB, to three digits or so: "0.004", "1.25", "89.1"."""
    value = count / GIB
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def trainer_memory(
    shape: ModelShape,
    *,
    shard: int,
    tensor: int,
    tokens: int,
    compute: int,
    checkpointing: str,
    compiled: bool = False,
    context: int = 1,
    kept_logits: float = 0,
    versions: int = 0,
) -> Memory:
    """One rank of the trainer.

    - state: P / (shard x tensor) parameters, each with a float32 weight, gradient and two Adam moments: 16 bytes.
    - gathered: what FSDP holds whole in the compute dtype: the output layer and embedding and two blocks (the one at
      work and the next), cut by tensor parallelism: (embedding + 2 layer) x bytes / tensor. Nothing where one process
      computes in float32; a second copy in bfloat16 otherwise.
    - activations: see `activation_bytes`.
    - logits: tokens x V x bytes / tensor, where that is no more than `kept_logits`; otherwise the output layer works
      on an eighth at a time: tokens / 8 x V x 4 bytes / tensor.
    - published: a copy of the full weights in float32 for the engines, between two steps; where the weights are cut,
      they are gathered before they are copied.
    - versions: of the full weights in float32, kept for the engines where these have them from this GPU; the copy above
      is then one of them.

    Args:
        shape: the model.
        shard: ranks that weights are sharded over by FSDP, those of context parallelism among them.
        tensor: ranks that each matrix is cut over.
        tokens: of one micro-batch, which `context` ranks share.
        compute: bytes of a number in the forward pass, 2 or 4.
        checkpointing: "none", "selective" or "full".
        compiled: whether the blocks are.
        context: ranks that each sequence is cut over.
        kept_logits: bytes of logits up to which they are kept for the backward pass.
        versions: that this rank keeps.
    """
    ranks = shard * tensor
    step = {}
    if shard > 1 or compute != FLOAT32:
        gathered = shape.embedding_parameters + 2 * shape.layer_parameters
        step["gathered"] = compute * min(gathered, shape.parameters) / tensor
    tokens = -(-tokens // context)
    kept_of_blocks = activation_bytes(
        shape, tokens, compute=compute, checkpointing=checkpointing, compiled=compiled, context=context
    )
    step["activations"] = kept_of_blocks / tensor
    logits = tokens * shape.vocab_size / tensor
    kept = compute * logits <= kept_logits
    step["logits"] = compute * logits if kept else FLOAT32 * logits / 8
    whole = float(FLOAT32) * shape.parameters
    held = {"state": 16.0 * shape.parameters / ranks}
    if versions:
        held["versions"] = versions * whole
    published = ((ranks > 1) + (versions == 0)) * whole
    return Memory(held=held, phases=(step, {"published": published}) if published else (step,))


def activation_bytes(
    shape: ModelShape, tokens: int, *, compute: int, checkpointing: str, compiled: bool = False, context: int = 1
) -> float:
    """What the backward pass finds kept of one micro-batch, over all layers.

    `tokens` are those of this rank, one of `context` that share the sequences.

    Counted as in "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198, section 4), for
    this architecture: attention is flash attention, which keeps nothing quadratic, there is no dropout, and the MLP has
    a gate. With h = hidden_size, q and k = the sizes of queries and of keys, m = intermediate_size, a block keeps, in
    numbers for each token:

    - none: 4h (both norms, in and out) + 2q + 2k (before and after rotation) + k (values) + q (attention's output)
      + 4m (gate, up, the activated gate, the product) = 4h + 3q + 3k + 4m
    - none, compiled: 3h + 3q + 3k + 3m: a norm and the activated gate are made again inside the kernels that read them
    - selective (the outputs of matrix products and of attention): 2h + 2q + 2k + 2m
    - full: h, the block's input; one block at a time is computed again in whole, and counted once.

    Attention keeps the keys and values that it has gathered from the other ranks: 2k for each token of theirs, where
    all is kept, and in the block that is computed again.
    """
    h, q, k, m = shape.hidden_size, shape.query_size, shape.key_value_size, shape.intermediate_size
    gathered = 2 * k * (context - 1)
    everything = 4 * h + 3 * q + 3 * k + 4 * m + gathered
    fused = 3 * h + 3 * q + 3 * k + 3 * m + gathered
    kept = {"none": fused if compiled else everything, "selective": 2 * h + 2 * q + 2 * k + 2 * m, "full": h}[
        checkpointing
    ]
    again = 0 if checkpointing == "none" else everything
    return float(compute * tokens * (shape.num_hidden_layers * kept + again))


def generator_memory(shape: ModelShape, *, tensor: int, compute: int, cache: float, receives: bool = False) -> Memory:
    """One rank of the engine: its share of the weights, and the `cache` bytes of keys and values.

    vLLM takes the cache as one block at its start, and queues requests for which there is no room.

    Args:
        receives: whether it keeps memory into which the full weights come, in float32.
    """
    held = {"weights": compute * shape.parameters / tensor, "cache": cache}
    return Memory(held=held | _received(shape, receives))


def reference_memory(shape: ModelShape, *, tokens: int, compute: int, receives: bool = False) -> Memory:
    """The frozen reference model: its weights, and one block's activations and an eighth of the logits of a batch.

    Args:
        receives: as that of `generator_memory`.
    """
    h, q, k, m = shape.hidden_size, shape.query_size, shape.key_value_size, shape.intermediate_size
    forward = compute * tokens * (4 * h + 3 * q + 3 * k + 4 * m) + tokens * shape.vocab_size * FLOAT32 / 8
    held = {"weights": float(compute * shape.parameters), "forward": forward}
    return Memory(held=held | _received(shape, receives))


def _received(shape: ModelShape, receives: bool) -> dict[str, float]:
    return {"received": float(FLOAT32) * shape.parameters} if receives else {}


def store_memory(shape: ModelShape) -> Memory:
    """The weight store: two versions of the full weights, in float32, in the host's memory."""
    return Memory(held={"weights": 2.0 * FLOAT32 * shape.parameters})
