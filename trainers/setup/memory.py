"""How much memory each process of a run will need: estimates, from the sizes of the model and the config alone.

What is counted: weights, gradients, optimizer state, activations of one micro-batch, a chunk of the output layer, the
engine's key-value cache and buffers, and a flat amount for CUDA and NCCL. What is not: compiled graphs of the trainer,
what its allocator cannot use, and Python itself. An estimate that fits with a tenth to spare may be expected to run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from agents.generator.lora_slot import slot_rank
from trainers.lora import Lora, published_parameters, target_sizes
from trainers.model.shape import ModelShape
from trainers.setup.memory_fsdp import Moment, fsdp_moments

GIB = 2**30
FLOAT32, BFLOAT16 = 4, 2
BYTES = {"float32": FLOAT32, "bfloat16": BFLOAT16}
"""Of a number, by the dtype's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one process, by what they are for."""

    held: dict[str, float] = field(default_factory=dict)
    """What is there all the time."""
    phases: tuple[dict[str, float], ...] = ()
    """What comes and goes; one of them at a time."""
    resting: float | None = None
    """Bytes on a shared GPU while another process is at work there; None where the process gives nothing back."""

    @property
    def total(self) -> float:
        """Bytes at the worst moment."""
        return sum(self.held.values()) + max((sum(phase.values()) for phase in self.phases), default=0.0)

    @property
    def at_rest(self) -> float:
        """Bytes while another process is at work on the same GPU."""
        return self.total if self.resting is None else self.resting

    def __str__(self) -> str:
        """All parts, those that are not there at the same time parted by "or"."""
        groups = [", ".join(f"{name} {gib(value)}" for name, value in part.items()) for part in self.phases]
        held = ", ".join(f"{name} {gib(value)}" for name, value in self.held.items())
        return " + ".join(part for part in (held, " or ".join(groups)) if part)


def gib(count: float) -> str:
    """Bytes in GiB, to three digits or so: "0.004", "1.25", "89.1"."""
    value = count / GIB
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


MOMENTS = {"float32": 8.0, "bfloat16": 4.0, "8bit": 2 * (1 + FLOAT32 / 256)}
"""Bytes of AdamW's two moments of a parameter; of 8 bits, with a scale in float32 for each block of 256 numbers."""


def state_bytes(shape: ModelShape, optimizer: str = "float32") -> float:
    """Weights and gradients of all parameters in float32, and AdamW's moments as `MOMENTS` says.

    Moments of 8 bits leave out the embedding, whose stay in float32.
    """
    wide = shape.vocab_size * shape.hidden_size if optimizer == "8bit" else 0
    moments = MOMENTS[optimizer] * (shape.parameters - wide) + MOMENTS["float32"] * wide
    return 2 * FLOAT32 * shape.parameters + moments


def adapter_state_bytes(
    shape: ModelShape, lora: Lora, optimizer: str, *, compute: int, in_head: int, shard: int, tensor: int
) -> float:
    """What one rank holds where adapters are trained: frozen weights, and of adapters what `state_bytes` has.

    - frozen: P / (shard x tensor) in the dtype that the model computes in, the output layer's in its own
    - adapters: (8 bytes + moments) / shard of each; tensor parallelism cuts only one half of an adapter, so none counts
    """
    head = shape.vocab_size * shape.hidden_size
    frozen = compute * (shape.parameters - head) + in_head * head
    return frozen / (shard * tensor) + (2 * FLOAT32 + MOMENTS[optimizer]) * lora.parameters(shape) / shard


def host_bytes(shape: ModelShape, optimizer: str = "float32", *, ranks: int) -> float:
    """What the host holds of offloaded weights, gradients and moments, over all ranks that share them.

    FSDP keeps the weights and gradients in pinned memory, each rank's part of a matrix by itself, and torch rounds each
    of them up to a power of two bytes (ATen/core/CachingHostAllocator.h): a quarter more as a rule, and more for an
    embedding. The moments are in ordinary memory. Vectors are left out.
    """
    h, q, k = shape.hidden_size, shape.query_size, shape.key_value_size
    # A matrix of all experts is one. Queries, keys and values are one, too.
    mlp = h * (shape.num_experts * shape.moe_intermediate_size or shape.intermediate_size)
    router = [h * shape.num_experts] if shape.num_experts else []
    of_layer = [h * (q + 2 * k), h * q, mlp, mlp, mlp, *router]
    embeddings = [shape.vocab_size * h] * (1 if shape.tie_word_embeddings else 2)
    pinned = sum(_power_of_two(-(-FLOAT32 * size // ranks)) for size in of_layer * shape.num_hidden_layers + embeddings)
    return 2 * ranks * pinned + state_bytes(shape, optimizer) - 2 * FLOAT32 * shape.parameters


def _power_of_two(size: int) -> int:
    """The smallest power of two that is no less."""
    return 1 << max(0, size - 1).bit_length()


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
    published: int = FLOAT32,
    versions: int = 0,
    optimizer: str = "float32",
    offloaded: bool = False,
    reshard: str = "default",
    fp32_head: bool = False,
    replicas: int = 1,
    lora: Lora | None = None,
    expert: int = 1,
) -> Memory:
    """One rank of the trainer.

    - state: `state_bytes` / (shard x tensor), which with float32 moments is 16 bytes a parameter; nothing where it is
      offloaded to the host.
    - gathered and gradients: what FSDP holds of whole units at the worst moment, cut by tensor parallelism: see
      memory_fsdp.py. Nothing where one process computes in float32. Replicas are summed over at the end of a step:
      until then the sums of one replica's ranks stand in the place of its gradients, 4 P / (shard x tensor), and they
      are on the GPU also where the gradients are offloaded.
    - activations: see `activation_bytes`.
    - logits: tokens x V x bytes / tensor, where that is no more than `kept_logits`; otherwise the output layer works
      on an eighth at a time: tokens / 8 x V x 4 bytes / tensor.
    - published: between two steps the weights are published one tensor at a time, in the engine's dtype: the largest
      one whole, and where it is cut its pieces once more. Nothing where one process publishes its own float32.
    - adapters: with `lora` state is `adapter_state_bytes`, only they have gradients, each keeps rank more numbers of a
      token, and a weight is published by way of a float32 copy and its sum with the adapter; or the adapters alone are
      published, one half after the other.
    - versions: of what is published in the engine's dtype, kept for the engines where these have them from this GPU.

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
        published: bytes of a number in the published weights, 2 or 4.
        versions: of the published weights that this rank keeps.
        optimizer: a key of `MOMENTS`.
        offloaded: whether weights, gradients and moments are on the host.
        reshard: as `training.reshard_after_forward`.
        fp32_head: as `training.fp32_head`.
        replicas: groups of ranks that each hold all weights.
        lora: the adapters, where only these are trained.
        expert: ranks that the experts of a layer are spread over, which are among `shard` x `tensor`.
    """
    ranks = shard * tensor
    in_head = FLOAT32 if fp32_head else compute
    found = [Moment(has_logits=True), Moment(is_in_block=True)]
    if ranks * replicas > 1 or compute != FLOAT32 or offloaded:
        adapter = lora.parameters_of_layer(shape) if lora else 0
        found = fsdp_moments(
            shape,
            shard=shard,
            compute=compute,
            in_head=in_head,
            reshard=reshard,
            tensor=tensor,
            adapter=adapter,
            expert=expert,
        )
    waiting = FLOAT32 * shape.parameters / ranks if offloaded and replicas > 1 else 0
    tokens = -(-tokens // context)
    kept, at_work = (
        size / tensor
        for size in activation_bytes(
            shape, tokens, compute=compute, checkpointing=checkpointing, compiled=compiled, context=context, lora=lora
        )
    )
    logits = tokens * shape.vocab_size / tensor
    logits *= in_head if in_head * logits <= kept_logits else FLOAT32 / 8
    steps = [
        {
            "gathered": moment.gathered / tensor,
            "gradients": moment.gradients / tensor + waiting,
            "activations": moment.has_activations * (kept + moment.is_in_block * at_work),
            "logits": moment.has_logits * logits,
        }
        for moment in found
    ]
    worst = max(steps, key=lambda parts: sum(parts.values()))
    step = {name: size for name, size in worst.items() if size}
    state, of_gradients = state_bytes(shape, optimizer) / ranks, FLOAT32 * shape.parameters / ranks
    if lora:
        dtypes = {"compute": compute, "in_head": in_head}
        state = adapter_state_bytes(shape, lora, optimizer, shard=shard, tensor=tensor, **dtypes)
        of_gradients = FLOAT32 * lora.parameters(shape) / shard
    held = {} if offloaded else {"state": state}
    if versions:
        held["versions"] = float(versions * published * published_parameters(lora, shape))
    # Between two steps there are no gradients.
    resting = sum(held.values()) - (0 if offloaded else of_gradients)
    if ranks == 1 and published == FLOAT32 and not offloaded and not lora:
        return Memory(held=held, phases=(step,), resting=resting)
    one = float(published * shape.largest_matrix) * (2 if ranks > 1 else 1)
    sizes = [target_sizes(shape)[name] for name in lora.targets] if lora else []
    if lora and lora.publish == "adapter":  # a half in float32, and its product with the scaling, and that cast
        one = float((2 * FLOAT32 + published) * lora.rank * max(max(size) for size in sizes))
    elif lora:  # the weight and the sum with its adapter in float32, and that cast
        one = max(one, float((2 * FLOAT32 + published) * max(math.prod(size) for size in sizes)))
    return Memory(held=held, phases=(step, {"published": one}), resting=resting)


def activation_bytes(
    shape: ModelShape,
    tokens: int,
    *,
    compute: int,
    checkpointing: str,
    compiled: bool = False,
    context: int = 1,
    lora: Lora | None = None,
) -> tuple[float, float]:
    """What the backward pass finds kept of one micro-batch, over all layers; and what comes on top while it is in one.

    `tokens` are those of this rank, one of `context` that share the sequences.

    Counted as in "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198, section 4), for
    this architecture: attention is flash attention, which keeps nothing quadratic, there is no dropout, and the MLP has
    a gate. With h = hidden_size, q and k = the sizes of queries and of keys, m = intermediate_size, a block keeps, in
    numbers for each token:

    - none: 4h (both norms, in and out) + 2q + 2k (before and after rotation) + k (values) + q (attention's output)
      + 4m (gate, up, the activated gate, the product) = 4h + 3q + 3k + 4m
    - none, compiled: 3h + 3q + 3k + 3m: a norm and the activated gate are made again inside the kernels that read them
    - selective: h, the block's input; the outputs of every second matrix product, which are the fused queries, keys and
      values, the gate, and the MLP's last, q + 2k + m + h; attention's output, q: 2h + 2q + 2k + m in all
    - full: h, the block's input

    With selective and full, the block at work is computed again in whole. Gradients of its activations are at their
    most in the MLP: those of the block's output, the product, the gate and its factor, less the product itself, 2m + h.

    Attention keeps the keys and values that it has gathered from the other ranks: 2k for each token of theirs, where
    all is kept, and in the block that is computed again. An adapter keeps its rank more of each token, where its
    block does not keep its input alone, and what it adds to the MLP is there while the block is at work: m.

    Experts in the place of the MLP: see `_mlp_numbers`.
    """
    h, q, k, m = shape.hidden_size, shape.query_size, shape.key_value_size, shape.mlp_size
    mlp = _mlp_numbers(shape, compute)
    gathered = 2 * k * (context - 1)
    low = lora.rank * len(lora.targets) if lora else 0
    everything = 4 * h + 3 * q + 3 * k + mlp.everything + gathered + low
    fused = 3 * h + 3 * q + 3 * k + mlp.compiled + gathered + low
    selective = h + 2 * q + 2 * k + mlp.selective + low
    kept = {"none": fused if compiled else everything, "selective": selective, "full": h}[checkpointing]
    at_work = mlp.gradients + m * (lora is not None) + (0 if checkpointing == "none" else everything)
    return float(compute * tokens * shape.num_hidden_layers * kept), float(compute * tokens * at_work)


class _MlpNumbers(NamedTuple):
    """Numbers of the compute dtype that the MLP of a block keeps for each token."""

    everything: float
    """Without checkpointing."""
    compiled: float
    """Without checkpointing, in a compiled block."""
    selective: float
    gradients: float
    """At work, of its activations."""


def _mlp_numbers(shape: ModelShape, compute: int) -> _MlpNumbers:
    """What `activation_bytes` counts for the MLP, or for the experts, of which K compute a token.

    With m = K x moe_intermediate_size, experts keep the MLP's 4m, and h of their input and h of their output, in
    float32, for each of the K; the router keeps its scores of all experts, in float32. "selective" computes all of it
    again but the choice of the experts, K scores in float32 and K indices in int64.
    """
    h, m, chosen = shape.hidden_size, shape.mlp_size, shape.num_experts_per_tok
    if not shape.num_experts:
        return _MlpNumbers(4 * m, 3 * m, m + h, 2 * m + h)
    routed = chosen * h * (1 + FLOAT32 / compute)
    everything = 4 * m + routed + shape.num_experts * FLOAT32 / compute
    return _MlpNumbers(everything, everything, chosen * 12 / compute, 2 * m + h + routed)


def generator_memory(
    shape: ModelShape,
    *,
    tensor: int,
    compute: int,
    cache: float,
    received: float = 0.0,
    adapter: float = 0.0,
    buffers: float = 0.0,
    asleep: float | None = None,
) -> Memory:
    """One rank of the engine: its share of the weights, and the `cache` bytes of keys and values.

    vLLM takes the cache as one block at its start, and queues requests for which there is no room.

    Args:
        received: bytes of memory that it keeps for the snapshot that comes in.
        adapter: bytes of an adapter that it computes with, see `adapter_bytes`.
        buffers: bytes of everything else, see `engine_buffers`.
        asleep: bytes that it keeps while it sleeps; None for an engine that does not.
    """
    held = {"weights": compute * shape.parameters / tensor, "cache": cache}
    held |= {"buffers": buffers} if buffers else {}
    held |= {"adapter": adapter} if adapter else {}
    held |= {"received": received} if received else {}
    return Memory(held=held, resting=asleep)


def adapter_bytes(shape: ModelShape, lora: Lora, *, compute: int, tensor: int) -> float:
    """What an adapter takes in one process of the engine: the slot, and the adapter that is copied into it.

    - the slot: A and B of all `TARGETS`, with the rank of vLLM's kernels. The one of the two that lies along the cut of
      the matrix is cut by tensor parallelism: B of queries, keys, values, gate and up, and A of the other two.
    - the adapter itself, whole.
    """
    slot = 0.0
    for name, (inputs, outputs) in target_sizes(shape).items():
        whole, cut = (outputs, inputs) if name in ("o_proj", "down_proj") else (inputs, outputs)
        slot += slot_rank(lora.rank) * shape.num_hidden_layers * (whole + cut / tensor)
    return compute * (slot + lora.parameters(shape))


def engine_buffers(shape: ModelShape, *, tensor: int, compute: int, requests: int, graphs: bool, tokens: int) -> float:
    """What an engine on a GPU needs beside its weights and its cache, in bytes for each process.

    - what it keeps when it sleeps, see `engine_residue`
    - activations of one step: the residual stream in and out, and of the layer at work the MLP's gate, up and product,
      or the queries, keys, values and attention's output: tokens x (2h + max(3m, 2q + 2k) / tensor) x compute; and
      the outputs of the experts that compute a token, h of each
    - logits and logprobs of one token of each request, in float32: requests x V x 2 x 4
    """
    h, q, k, m = shape.hidden_size, shape.query_size, shape.key_value_size, shape.mlp_size
    routed = shape.num_experts_per_tok * h
    activations = compute * tokens * (2 * h + routed + max(3 * m, 2 * q + 2 * k) / tensor)
    logits = 2 * FLOAT32 * requests * shape.vocab_size
    return engine_residue(tensor=tensor, graphs=graphs) + activations + logits


def engine_residue(*, tensor: int, graphs: bool) -> float:
    """Bytes that an engine's process keeps on its GPU while it sleeps: its runtime and the captured CUDA graphs."""
    return runtime_bytes(tensor) + 0.6 * GIB * graphs


def runtime_bytes(ranks: int) -> float:
    """What a process on a GPU takes beside its tensors: CUDA's context, kernels and libraries, and NCCL's buffers where
    several ranks exchange tensors.

    1.8 GiB by the driver on an H200 (benchmarks/results/gpu_large_*.json): engines of three sizes had 0.9 to 1.5 GiB
    and trainers at rest 1.2 GiB above tensors, CUDA graphs and 0.6 GiB of context.
    """
    return GIB * (1.8 + 0.5 * (ranks > 1))


WORKSPACES = 1.5 * GIB
"""What a trainer's or a reference model's step takes on a GPU beside its tensors: workspaces of matrix products, and
memory that torch's allocator holds and cannot use. Measured on an H200 with rows of 8k tokens: 1.4 and 1.6 GiB."""


def reference_memory(
    shape: ModelShape, *, tokens: int, compute: int, shard: int = 1, fp32_head: bool = False
) -> Memory:
    """One process of the frozen reference model.

    - weights: P / shard in the dtype that it computes in; the output layer's in float32 with `fp32_head`.
    - gathered, where they are sharded: the output layer and two blocks (the one at work and the next).
    - forward: one block's activations, and an eighth of the logits of a batch.

    Args:
        shape: the model.
        tokens: of one batch.
        compute: bytes of a number in the forward pass, 2 or 4.
        shard: processes that the weights are sharded over.
        fp32_head: as `training.fp32_head`.
    """
    h, q, k = shape.hidden_size, shape.query_size, shape.key_value_size
    of_block = 4 * h + 3 * q + 3 * k + _mlp_numbers(shape, compute).everything
    forward = compute * tokens * of_block + tokens * shape.vocab_size * FLOAT32 / 8
    head = float((FLOAT32 if fp32_head else compute) * shape.vocab_size * h)
    weights = head + compute * (shape.parameters - shape.vocab_size * h)
    held = {"weights": weights / shard, "forward": forward}
    if shard > 1:
        held["gathered"] = min(head + compute * 2 * shape.layer_parameters, weights)
    return Memory(held=held)


def store_memory(size: int) -> Memory:
    """The weight store: two snapshots of `size` bytes in the host's memory."""
    return Memory(held={"weights": 2.0 * size})
