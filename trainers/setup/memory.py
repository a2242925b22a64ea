"""Estimates of the memory that each process of a run needs, from the sizes of the model and from the config alone.

Not counted: compiled graphs of the trainer, and Python itself. docs/gpu.md has measured peaks beside planned ones. In
the formulas, of one block: h = hidden_size, q and k = sizes of queries and of keys, m = size of the MLP or of the
experts that compute a token. P = all parameters, V = vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from agents.generator.lora_slot import slot_rank
from agents.generator.settings import EngineSettings
from trainers.lora import Lora, target_sizes
from trainers.model.shape import ModelShape
from trainers.setup.draft import Draft

GIB = 2**30
FLOAT32 = 4
BYTES = {"float32": FLOAT32, "bfloat16": 2}
"""Bytes of a number, by its dtype."""
MOMENTS = {"float32": 8.0, "bfloat16": 4.0, "8bit": 2 * (1 + FLOAT32 / 256)}
"""Bytes of AdamW's two moments of a parameter. In 8 bits, each block of 256 numbers has a float32 scale."""
OFFLOADED = "offloaded weights, gradients and optimizer state"
COPIED = "a copy of the sleeping engine's weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one process, by purpose."""

    held: dict[str, float] = field(default_factory=dict)
    """What is there all the time."""
    phases: tuple[dict[str, float], ...] = ()
    """What is there in one phase of the work; phases follow each other."""
    resting: float | None = None
    """Bytes while another process uses the same GPU; None if the process gives nothing back."""
    on_host: dict[str, float] = field(default_factory=dict)
    """Memory that a process on a GPU has on its host, in bytes, by purpose."""

    @property
    def total(self) -> float:
        """Bytes in the fullest phase."""
        return sum(self.held.values()) + max((sum(phase.values()) for phase in self.phases), default=0.0)

    @property
    def at_rest(self) -> float:
        """Bytes while another process uses the same GPU."""
        return self.total if self.resting is None else self.resting

    def __str__(self) -> str:
        """All parts in GiB, such as "state 2.00 + activations 1.00, logits 1.00 or published 3.00"."""
        held, *phases = (
            ", ".join(f"{name} {gib(size)}" for name, size in part.items()) for part in (self.held, *self.phases)
        )
        return " + ".join(text for text in (held, " or ".join(phases)) if text)


def gib(count: float) -> str:
    """Bytes as GiB with about three digits: "0.004", "1.25", "89.1"."""
    value = count / GIB
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def state_bytes(shape: ModelShape, optimizer: str = "float32") -> float:
    """Weights and gradients of all parameters in float32, and AdamW's moments; `optimizer` is a key of `MOMENTS`.

    With "8bit", the moments of the embedding stay in float32.
    """
    wide = shape.vocab_size * shape.hidden_size if optimizer == "8bit" else 0
    moments = MOMENTS[optimizer] * (shape.parameters - wide) + MOMENTS["float32"] * wide
    return 2 * FLOAT32 * shape.parameters + moments


def host_bytes(shape: ModelShape, optimizer: str = "float32", *, ranks: int) -> float:
    """Bytes of offloaded weights, gradients and moments on the host, over all `ranks` that share them.

    FSDP keeps each rank's part of a weight and of a gradient in pinned memory, see `pinned_bytes`. Moments are in
    ordinary memory. Vectors are left out.
    """
    h, q, k = shape.hidden_size, shape.query_size, shape.key_value_size
    # All experts are one matrix. Queries, keys and values are one matrix, too.
    mlp = h * (shape.num_experts * shape.moe_intermediate_size or shape.intermediate_size)
    router = [h * shape.num_experts] if shape.num_experts else []
    of_layer = [h * (q + 2 * k), h * q, mlp, mlp, mlp, *router]
    embeddings = [shape.vocab_size * h] * (1 if shape.tie_word_embeddings else 2)
    pinned = pinned_bytes(FLOAT32, of_layer * shape.num_hidden_layers + embeddings, ranks=ranks)
    return 2 * pinned + state_bytes(shape, optimizer) - 2 * FLOAT32 * shape.parameters


def pinned_bytes(of_number: int, matrices: Iterable[int], *, ranks: int) -> float:
    """Bytes of pinned memory for matrices that `ranks` processes share, with `of_number` bytes a number.

    Torch rounds the part of each rank up to a power of two bytes (ATen/core/CachingHostAllocator.h).
    """
    parts = (-(-of_number * size // ranks) for size in matrices)
    return float(ranks * sum(1 << (part - 1).bit_length() for part in parts))


def trainer_memory(draft: Draft, *, versions: float = 0.0) -> Memory:
    """One rank of the trainer, which keeps `versions` bytes of published weights for engines on its GPU.

    - state: `state_bytes`, divided by the ranks of FSDP and of tensor parallelism; on the host if it is offloaded. With
      LoRA: frozen weights in the compute dtype, and `state_bytes` of the adapters, which tensor parallelism cuts only
      in half, so that its share is not counted.
    - gathered, gradients, activations and logits: at the worst moment of a micro-batch, see `step_moments`. Sums of
      gradients that are offloaded stay on the GPU until the step ends, 4 P of each replica (HSDP), but with
      `training.offload_sums` and one replica. Without offloading they take the place of the gradients.
    - published: between steps, weights are published one by one in the engine's dtype: the largest one, and its pieces
      once more if it is sharded. A LoRA trainer merges a weight from float32 copies of it and of the sum, or publishes
      only the adapter, from one half in float32 and its scaled copy.
    """
    training, shape, lora, is_offloaded = draft.training, draft.sizes, draft.lora, draft.is_offloaded
    shard, tensor, replicas = _ranks(draft)
    ranks = shard * tensor
    compute, published = BYTES[draft.trainer_dtype], BYTES[draft.services.generator.dtype]
    moments = step_moments(draft)
    if ranks * replicas == 1 and compute == FLOAT32 and not is_offloaded:  # without FSDP
        moments = [moment._replace(gathered=0.0, gradients=0.0) for moment in moments]
    worst = max(moments, key=sum)
    if is_offloaded and (replicas > 1 or not training.offload_sums):
        worst = worst._replace(gradients=worst.gradients + FLOAT32 * shape.parameters / shard)
    step = {name: size / tensor for name, size in worst._asdict().items() if size}

    state, gradients = state_bytes(shape, training.optimizer_state) / ranks, FLOAT32 * shape.parameters / ranks
    if lora:
        trained = lora.parameters(shape) / shard
        state = _frozen_bytes(draft, compute) / ranks
        state += (2 * FLOAT32 + MOMENTS[training.optimizer_state]) * trained
        gradients = FLOAT32 * trained
    held = ({} if is_offloaded else {"state": state}) | ({"versions": float(versions)} if versions else {})
    resting = sum(held.values()) - (0 if is_offloaded else gradients)  # between steps there are no gradients
    on_host = {}
    if is_offloaded:
        on_host[OFFLOADED] = host_bytes(shape, training.optimizer_state, ranks=ranks) / ranks
    if ranks == 1 and published == FLOAT32 and not is_offloaded and not lora:  # publishes the weights that it has
        return Memory(held=held, phases=(step,), resting=resting)
    largest = float(published * shape.largest_matrix) * (2 if ranks > 1 else 1)
    if lora:
        sizes = [target_sizes(shape)[name] for name in lora.targets]
        merged = max(largest, (2 * FLOAT32 + published) * max(math.prod(size) for size in sizes))
        half = (2 * FLOAT32 + published) * lora.rank * max(max(size) for size in sizes)
        largest = float(half if lora.publish == "adapter" else merged)
    return Memory(held=held, phases=(step, {"published": largest}), resting=resting, on_host=on_host)


def _ranks(draft: Draft) -> tuple[int, int, int]:
    """Ranks that FSDP shards weights over (also with context parallelism), ranks of tensor parallelism, and
    replicas."""
    parallelism = draft.config.parallelism
    tensor, replicas = parallelism.tensor_parallel_degree, parallelism.data_parallel_replicate_degree
    return max(1, draft.services.trainer.procs // (tensor * replicas)), tensor, replicas


def _micro_batch(draft: Draft) -> int:
    """Tokens of one forward pass: an episode may be split over several passes, a row may not."""
    return max(draft.training.max_tokens_per_micro_batch, draft.env.max_tokens)


def _frozen_bytes(draft: Draft, compute: int) -> float:
    """All weights in the compute dtype; the output layer in float32 with `training.fp32_head`."""
    head = draft.sizes.vocab_size * draft.sizes.hidden_size
    return compute * (draft.sizes.parameters - head) + (FLOAT32 if draft.training.fp32_head else compute) * head


class Moment(NamedTuple):
    """Bytes at a moment of a micro-batch at which a rank may hold the most, over all ranks of tensor parallelism."""

    gathered: float
    """Whole weights that FSDP has gathered."""
    gradients: float
    """Gradients that the shards do not have yet."""
    activations: float = 0.0
    logits: float = 0.0


def step_moments(draft: Draft) -> list[Moment]:
    """What a rank holds beside its shards, as in `FSDPParamGroup` of torch.distributed.fsdp._fully_shard.

    FSDP works on one unit after the other: the output layer, each block, the embedding. If embedding and output layer
    are tied, they are one unit. With c = bytes of a number in the compute dtype, a unit of U parameters has:

    - c U: its gathered weights. Several ranks also gather the next unit meanwhile.
    - c U: its gradients, whole.
    - 4 U: a float32 buffer in which gradients are summed. It is kept until the next unit has its gradients.
    - 4 U / ranks: this rank's part of the sum, before it is added to the shard's gradient. A single process has twice
      4 U: it divides the whole buffer into a third one.

    A tied unit adds the gradients of both layers; with tensor parallelism, in a new tensor. A rank gathers only its own
    experts. With LoRA, only adapters have gradients. Logits take tokens x V numbers if they are kept for the backward
    pass; if they exceed `training.keep_logits_gib`, an eighth of them is computed at a time, in float32.
    """
    training, shape, lora, parallelism = draft.training, draft.sizes, draft.lora, draft.config.parallelism
    (shard, tensor, _), expert, tied = _ranks(draft), parallelism.expert_parallel_degree, shape.tie_word_embeddings
    compute = BYTES[draft.trainer_dtype]
    in_head = FLOAT32 if training.fp32_head else compute
    tokens = -(-_micro_batch(draft) // parallelism.context_parallel_degree)
    kept, at_work = activation_bytes(draft, tokens)
    limit = training.keep_logits_gib * GIB if draft.services.trainer.with_gpus else 0
    logits = (
        tokens * shape.vocab_size * (in_head if in_head * tokens * shape.vocab_size / tensor <= limit else FLOAT32 / 8)
    )

    adapter = lora.parameters_of_layer(shape) if lora else 0
    elsewhere = shape.expert_parameters * (1 - tensor / expert) if expert > 1 else 0  # experts of other ranks
    head, block = shape.vocab_size * shape.hidden_size, shape.layer_parameters - elsewhere + adapter
    of_head, of_block = in_head * head, compute * block
    coming = of_block if shard > 1 else 0
    stays = of_head if tied else 0  # a tied unit stays until the embedding has its gradients, and is summed last
    at_head, in_block, after_head, after_block = of_head + coming, of_block + coming + stays, coming, coming + stays
    if training.reshard_after_forward == "never":  # a unit is freed when its own gradients are there
        whole = shape.parameters + (adapter - elsewhere) * shape.num_hidden_layers
        at_head = compute * (whole - head) + of_head
        in_block = at_head if lora else at_head - (of_head - stays)
        after_head, after_block = (0 if tied else in_block), in_block - of_block
    if lora:  # the output layer has no gradients, but the buffer in which its weights came
        gradients = max((compute + FLOAT32) * adapter, _summed(adapter, shard, compute))
        return [
            Moment(at_head, of_head if shard > 1 else 0, kept, logits),
            Moment(in_block, gradients, kept + at_work),
        ]
    before = block if tied else max(head, block)
    moments = [
        Moment(at_head, of_head, kept, logits),
        Moment(after_head, _summed(head, shard, in_head), 0.0 if tied else kept),
        Moment(in_block, of_block + FLOAT32 * before + stays, kept + at_work),
        Moment(after_block, _summed(block, shard, compute) + stays, kept),
    ]
    return [*moments, Moment(stays, 3 * of_head + FLOAT32 * block)] if tied and tensor > 1 else moments


def _summed(unit: float, shard: int, compute: int) -> float:
    """Bytes while the gradients of a unit of `unit` parameters are summed."""
    return FLOAT32 * unit + max(compute * unit, FLOAT32 * unit * (2 if shard == 1 else 1 / shard))


def activation_bytes(draft: Draft, tokens: int) -> tuple[float, float]:
    """Activations of `tokens` tokens kept for the backward pass, and what comes on top while it is in one block.

    Counted as in "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198, section 4), for
    flash attention, no dropout and a gated MLP. A block keeps, in numbers a token:

    - none: 4h (both norms, in and out) + 2q + 2k (before and after rotation) + k (values) + q (attention's output)
      + 4m (gate, up, the activated gate, the product) = 4h + 3q + 3k + 4m
    - none, compiled: 3h + 3q + 3k + 3m; kernels compute a norm and the activated gate again when they read them
    - selective: h, the block's input; the outputs of every second matrix product, q + 2k + m + h; attention's output, q
    - attention: h, the block's input, and q, attention's output
    - full: h, the block's input

    All but "none" compute the block at work again in whole. Gradients of its activations are at most 2m + h:
    the block's output, the product, the gate and its factor, less the product itself. LoRA keeps each adapter's rank,
    and m more while the block is at work. Context parallelism gathers 2k for each token of the other ranks.
    """
    training, shape, lora = draft.training, draft.sizes, draft.lora
    context, compute = draft.config.parallelism.context_parallel_degree, BYTES[draft.trainer_dtype]
    h, q, k, m = shape.hidden_size, shape.query_size, shape.key_value_size, shape.mlp_size
    mlp, compiled_mlp, selective_mlp, gradients = _mlp_numbers(shape, compute)
    adapter_width = lora.rank * len(lora.targets) if lora else 0
    more = 2 * k * (context - 1) + adapter_width
    everything = 4 * h + 3 * q + 3 * k + mlp + more
    numbers = {
        "none": 3 * h + 3 * q + 3 * k + compiled_mlp + more if training.compile else everything,
        "selective": h + 2 * q + 2 * k + selective_mlp + adapter_width,
        "attention": h + q,
        "full": h,
    }[training.activation_checkpoint]
    at_work = gradients + m * (lora is not None) + (0 if training.activation_checkpoint == "none" else everything)
    return float(compute * tokens * shape.num_hidden_layers * numbers), float(compute * tokens * at_work)


def _mlp_numbers(shape: ModelShape, compute: int) -> tuple[float, float, float, float]:
    """Numbers a token of a block's MLP: kept without checkpointing, if compiled, if "selective"; and of its gradients.

    K experts that compute a token keep the MLP's 4m, and for each the h of its input and, in float32, the h of its
    output. The router keeps its scores of all experts in float32. "selective" keeps only the choice: K float32 scores
    and K int64 indices.
    """
    h, m, chosen = shape.hidden_size, shape.mlp_size, shape.num_experts_per_tok
    if not shape.num_experts:
        return 4 * m, 3 * m, m + h, 2 * m + h
    routed = chosen * h * (1 + FLOAT32 / compute)
    everything = 4 * m + routed + shape.num_experts * FLOAT32 / compute
    return everything, everything, chosen * 12 / compute, 2 * m + h + routed


def reference_memory(draft: Draft) -> Memory:
    """One process of the frozen reference model: its share of the weights, and a forward pass.

    The pass has the activations of one block and an eighth of the logits. If the weights are sharded, it gathers the
    output layer and two blocks.
    """
    training, shape, service = draft.training, draft.sizes, draft.services.ref_model
    h, q, k, shard = shape.hidden_size, shape.query_size, shape.key_value_size, service.procs
    compute, tokens = BYTES[training.dtype_on(service.with_gpus)], _micro_batch(draft)
    of_block = 4 * h + 3 * q + 3 * k + _mlp_numbers(shape, compute)[0]
    weights = _frozen_bytes(draft, compute)
    held = {"weights": weights / shard}
    held["forward"] = compute * tokens * of_block + tokens * shape.vocab_size * FLOAT32 / 8
    if shard > 1:
        head = (FLOAT32 if training.fp32_head else compute) * shape.vocab_size * h
        held["gathered"] = min(float(head + compute * 2 * shape.layer_parameters), weights)
    return Memory(held=held)


def engine_memory(draft: Draft, engine: EngineSettings, *, cache: float, received: float = 0.0) -> Memory:
    """One process of the engine, with `cache` bytes of keys and values and `received` bytes for a snapshot that comes.

    On a GPU it has buffers, too: what it keeps when it sleeps (`engine_residue`); activations of one step, which are
    the residual stream in and out, each expert's output, and the widest of MLP and attention; and the float32 logits
    and logprobs of one token of each request. While it sleeps, an engine of adapters has its weights in pinned memory
    of the host: 20.9 GiB for the shape of an 8B model; 21.4 GiB were measured.
    """
    generator, shape, lora = draft.services.generator, draft.sizes, draft.lora
    tensor, compute = generator.procs, BYTES[generator.dtype]
    adapter = adapter_bytes(shape, lora, compute=compute, tensor=tensor) if lora and engine.lora_rank else 0.0
    buffers, asleep, copied = 0.0, None, 0.0
    if generator.with_gpus:
        h, q, k, m = shape.hidden_size, shape.query_size, shape.key_value_size, shape.mlp_size
        tokens = engine.engine_args.get("max_num_batched_tokens") or engine.step_tokens
        width = 2 * h + shape.num_experts_per_tok * h + max(3 * m, 2 * q + 2 * k) / tensor
        residue = engine_residue(tensor=tensor, graphs=engine.cuda_graphs)
        buffers = residue + compute * tokens * width + 2 * FLOAT32 * engine.max_requests * shape.vocab_size
        asleep = residue + adapter if engine.sleep else None
        if engine.sleep and engine.lora_rank:  # each of these is one tensor in vLLM
            mlp, embeddings = h * shape.intermediate_size, 1 if shape.tie_word_embeddings else 2
            matrices = [h * (q + 2 * k), h * q, 2 * mlp, mlp] * shape.num_hidden_layers
            matrices += [shape.vocab_size * h] * embeddings
            copied = pinned_bytes(compute, matrices, ranks=tensor) / tensor
    held = {"weights": compute * shape.parameters / tensor, "cache": cache}
    optional = {"buffers": buffers, "adapter": adapter, "received": float(received)}
    held |= {name: size for name, size in optional.items() if size}
    return Memory(held=held, resting=asleep, on_host={COPIED: copied} if copied else {})


def adapter_bytes(shape: ModelShape, lora: Lora, *, compute: int, tensor: int) -> float:
    """A LoRA adapter in one process of the engine: the whole adapter, and the slot that it is copied into.

    The slot has A and B of all `TARGETS`, with the rank of vLLM's kernels. Tensor parallelism cuts the one that lies
    along the cut of the matrix: A of o_proj and down_proj, B of the others.
    """
    slot = 0.0
    for name, (inputs, outputs) in target_sizes(shape).items():
        whole, cut = (outputs, inputs) if name in ("o_proj", "down_proj") else (inputs, outputs)
        slot += slot_rank(lora.rank) * shape.num_hidden_layers * (whole + cut / tensor)
    return compute * (slot + lora.parameters(shape))


def engine_residue(*, tensor: int, graphs: bool) -> float:
    """Bytes that an engine's process keeps on its GPU while it sleeps: its runtime, and captured CUDA graphs."""
    return runtime_bytes(tensor) + 0.6 * GIB * graphs


def runtime_bytes(ranks: int) -> float:
    """Bytes of a process on a GPU beside its tensors: CUDA's context, libraries, and the NCCL buffers of several ranks.

    1.8 GiB by the driver on an H200 (benchmarks/results/gpu_large_*.json): engines of three sizes had 0.9 to 1.5 GiB
    and trainers at rest 1.2 GiB above tensors, CUDA graphs and 0.6 GiB of context.
    """
    return GIB * (1.8 + 0.5 * (ranks > 1))
