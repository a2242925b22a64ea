"""Estimates of the memory that each process of a run needs, from the sizes of the model and from the config alone.

Not counted: compiled graphs of the trainer, and Python itself. benchmarks/results/gpu.md has measured peaks. In
the formulas, of one block: h = hidden_size, q and k = sizes of queries and of keys, m = size of the MLP or of the
experts that compute a token. P = all parameters, V = vocabulary, c = bytes of a number in the compute dtype.
"""

from __future__ import annotations

import math

from agents.generator.lora_slot import slot_rank
from agents.generator.settings import EngineSettings
from trainers.families.shape import LinearAttention, ModelShape
from trainers.lora import Lora, target_sizes
from trainers.settings.services import ServiceConfig
from trainers.setup.card import GIB, Memory
from trainers.setup.run_plan import RunPlan

FLOAT32 = 4
BYTES = {"float32": FLOAT32, "bfloat16": 2}
"""Bytes of a number, by its dtype."""
MOMENTS = {"float32": 8.0, "bfloat16": 4.0, "8bit": 2 * (1 + FLOAT32 / 256)}
"""Bytes of AdamW's two moments of a parameter. In 8 bits, each block of 256 numbers has a float32 scale."""
WORKSPACES = 1.5 * GIB
"""What a step of the trainer or of a frozen model takes on a GPU beside its tensors: workspaces of matrix
products, and memory that torch's allocator cannot reuse. Measured on an H200 with 8k tokens: 1.4 and 1.6 GiB."""
OFFLOADED = "offloaded weights, gradients and optimizer state"
COPIED = "a copy of the sleeping engine's weights"


def runtime_bytes(ranks: int) -> float:
    """Bytes of a process on a GPU beside its tensors: CUDA's context, libraries, and the NCCL buffers of several ranks.

    1.8 GiB by the driver on an H200 (benchmarks/results/gpu_large_*.json): engines of three sizes had 0.9 to 1.5 GiB
    and trainers at rest 1.2 GiB above tensors, CUDA graphs and 0.6 GiB of context.
    """
    return GIB * (1.8 + 0.5 * (ranks > 1))


def state_bytes(shape: ModelShape, optimizer: str = "float32") -> float:
    """Float32 weights and gradients, and AdamW's moments by a key of `MOMENTS`; "8bit" keeps an embedding's wide."""
    wide = shape.vocab_size * shape.hidden_size if optimizer == "8bit" else 0
    moments = MOMENTS[optimizer] * (shape.parameters - wide) + MOMENTS["float32"] * wide
    return 2 * FLOAT32 * shape.parameters + moments


def host_bytes(shape: ModelShape, optimizer: str = "float32", *, ranks: int) -> float:
    """Bytes of offloaded weights and gradients, which FSDP pins, and of moments, on the host of `ranks` processes."""
    pinned_size = pinned_bytes(shape, FLOAT32, ranks=ranks)
    return 2 * pinned_size + state_bytes(shape, optimizer) - 2 * FLOAT32 * shape.parameters


def pinned_bytes(shape: ModelShape, of_number: int, *, ranks: int) -> float:
    """Bytes of all matrices in pinned memory of the host, with `of_number` bytes a number, over all `ranks`.

    Torch rounds each rank's part of a matrix up to a power of two bytes (ATen/core/CachingHostAllocator.h). Queries,
    keys and values are one matrix, and so are all experts.
    """
    h = shape.hidden_size
    dense = shape.dense_layers if shape.num_experts else shape.num_hidden_layers
    inner, shared = h * shape.num_experts * shape.moe_intermediate_size, [h * shape.shared_size] * 3
    experts = [2 * inner, inner] if shape.gate_up else [inner] * 3
    of_experts = [*experts, h * shape.num_experts, *(shared if shape.shared_size else [])]
    of_experts += [h] * shape.shared_gate
    of_mlps = [h * shape.intermediate_size] * 3 * dense + of_experts * (shape.num_hidden_layers - dense)
    embeddings = [shape.vocab_size * h] * (1 if shape.tie_word_embeddings else 2)
    matrices = [h * size for size in _attention_outputs(shape)] + of_mlps + embeddings
    parts = (-(-of_number * size // ranks) for size in matrices)
    return float(ranks * sum(1 << (part - 1).bit_length() for part in parts))


def _attention_outputs(shape: ModelShape) -> list[int]:
    """Numbers a token that each matrix of attention is as high or as wide as, over all layers."""
    q, k, linear = shape.query_size, shape.key_value_size, shape.linear
    of_keys = [2 * q, k, k, q] if shape.gated_attention else [q + 2 * k, q]
    of_rule = [linear.mixed_size, linear.value_size, linear.value_size] if linear else []
    return of_keys * shape.attention_layers + of_rule * (linear.layers if linear else 0)


def _attention_numbers(shape: ModelShape) -> tuple[float, float, float]:
    """Numbers a token of attention, the mean of all layers: all of its forward pass, the outputs of every second matrix
    product and attention's own, and attention's own.

    2q + 2k (before and after rotation) + k (values) + q (attention's output); 2q more of a gate. A gated delta rule of
    mixed size x and value size v has 2x (projected, convolved and activated), 3v (output, gate, their product), and 4 a
    head (of decay and rate). These were counted, not measured.
    """
    q, k, linear = shape.query_size, shape.key_value_size, shape.linear
    gate = 2 * q * shape.gated_attention
    of_keys = 3 * q + 3 * k + gate, 2 * q + 2 * k + gate, q
    if linear is None:
        return of_keys
    x, v = linear.mixed_size, linear.value_size
    of_rule = 2 * x + 3 * v + 4 * linear.value_heads, x + v, 0
    part = shape.attention_layers / shape.num_hidden_layers
    everything, outputs, own = (part * a + (1 - part) * b for a, b in zip(of_keys, of_rule, strict=True))
    return everything, outputs, own


def _rule_numbers(linear: LinearAttention) -> int:
    """Numbers a token while a gated delta rule of x mixed and v values has its gradients, with fla 0.6 in chunks of 64.

    It computes again, with k numbers of the keys of all value heads: normed queries and keys (x - v), 64 a head,
    k + 2v, and a state of each chunk. The gradients are 4k + 3v, another state, and x + v of the two that come and go.
    """
    x, v, heads = linear.mixed_size, linear.value_size, linear.value_heads
    keys, states = heads * linear.key_dim, 2 * v * linear.key_dim // 64
    return 2 * x + 5 * v + 5 * keys + 64 * heads + states


def trainer_memory(plan: RunPlan, *, versions: float = 0.0) -> Memory:
    """One rank of the trainer, which keeps `versions` bytes of published weights for engines on its GPU.

    - state: `state_bytes`, divided by the ranks of FSDP and of tensor parallelism; on the host if it is offloaded. With
      LoRA: frozen weights, and the state of whole adapters, for tensor parallelism cuts only one half of each.
    - gathered, gradients, activations and logits: the worst of `step_moments`. Sums of gradients that are offloaded
      stay on the GPU until the step ends, 4 P of each replica (HSDP), but with `training.offload_sums` and one replica.
    - published: between steps, weights are published one by one in the engine's dtype: the largest one, and its pieces
      once more if it is sharded. A LoRA trainer merges a weight from float32 copies of it and of the sum, or publishes
      only the adapter, from one half in float32 and its scaled copy.
    """
    training, shape, lora, service = plan.config.training, plan.sizes, plan.lora, plan.config.services.trainer
    (shard, tensor, replicas), is_offloaded = _ranks(plan), plan.is_offloaded
    ranks, compute, engine_bytes = shard * tensor, BYTES[plan.trainer_dtype], BYTES[plan.engine_dtype]
    moments = step_moments(plan)
    if ranks * replicas == 1 and compute == FLOAT32 and not is_offloaded:  # without FSDP
        moments = [(0.0, 0.0, activations, logits) for _, _, activations, logits in moments]
    parts = dict(zip(("gathered", "gradients", "activations", "logits"), max(moments, key=sum), strict=True))
    if is_offloaded and (replicas > 1 or not training.offload_sums):
        parts["gradients"] += FLOAT32 * shape.parameters / shard
    step = {name: size / tensor for name, size in parts.items() if size}

    weights_here, state = shape.parameters / ranks, state_bytes(shape, training.optimizer_state) / ranks
    largest = float(engine_bytes * shape.largest_matrix) * (2 if ranks > 1 else 1)
    if lora:
        weights_here, of_number = lora.parameters(shape) / shard, 2 * FLOAT32 + engine_bytes
        state = (
            _frozen_bytes(plan, shape, compute)[0] / ranks
            + (2 * FLOAT32 + MOMENTS[training.optimizer_state]) * weights_here
        )
        sizes = [target_sizes(shape)[name] for name in lora.targets]
        half, merged_size = of_number * lora.rank * max(map(max, sizes)), of_number * max(map(math.prod, sizes))
        largest = float(half if lora.publish == "adapter" else max(largest, merged_size))
    elif ranks == 1 and engine_bytes == FLOAT32 and not is_offloaded:
        largest = 0.0  # the weights that it has are published
    always = ({} if is_offloaded else {"state": state}) | ({"versions": float(versions)} if versions else {})
    if service.with_gpus:
        always["runtime"], step["workspaces"] = runtime_bytes(service.procs), WORKSPACES
    return Memory(
        always=always,
        phases=(step, {"published": largest}) if largest else (step,),
        resting=sum(always.values())
        - (0 if is_offloaded else FLOAT32 * weights_here),  # between steps there are no gradients
        on_host={OFFLOADED: host_bytes(shape, training.optimizer_state, ranks=ranks) / ranks} if is_offloaded else {},
    )


def _ranks(plan: RunPlan) -> tuple[int, int, int]:
    """Ranks of FSDP (with the ranks of context parallelism), ranks of tensor parallelism, and replicas (HSDP)."""
    parallelism = plan.config.parallelism
    tensor, replicas = parallelism.tensor_parallel_degree, parallelism.data_parallel_replicate_degree
    return max(1, plan.config.services.trainer.procs // (tensor * replicas)), tensor, replicas


def _micro_batch(plan: RunPlan) -> int:
    """Tokens of one forward pass: an episode may be split over several passes, a row may not."""
    return max(plan.config.training.max_tokens_per_micro_batch, plan.config.env.max_tokens)


def _frozen_bytes(plan: RunPlan, shape: ModelShape, compute: int) -> tuple[int, int]:
    """All weights in the compute dtype, and the output layer alone, which `training.fp32_head` keeps in float32."""
    head = shape.vocab_size * shape.hidden_size
    of_head = (FLOAT32 if plan.config.training.fp32_head else compute) * head
    return compute * (shape.parameters - head) + of_head, of_head


def step_moments(plan: RunPlan) -> list[tuple[float, float, float, float]]:
    """Gathered weights, gradients, activations and logits of a rank, at the moments of a micro-batch with the most.

    In bytes, over all ranks of tensor parallelism, as in `FSDPParamGroup` of torch.distributed.fsdp._fully_shard. FSDP
    works on one unit after the other: the output layer, each block, the embedding. If embedding and output layer are
    tied, they are one unit. A unit of U parameters has:

    - c U: its gathered weights. Several ranks also gather the next unit meanwhile.
    - c U: its gradients, whole.
    - 4 U: a float32 buffer in which gradients are summed. It is kept until the next unit has its gradients.
    - 4 U / ranks: this rank's part of the sum, before it is added to the shard's gradient. A single process has twice
      4 U: it divides the whole buffer into a third one.

    A tied unit adds the gradients of both layers; with tensor parallelism, in a new tensor. A rank gathers only its own
    experts. With LoRA, only adapters have gradients. A process without FSDP (`TrainerSettings.casts_whole`) has c P:
    copies, in the place of which gradients come; these are cast one by one after the last block. Logits take tokens x V
    numbers if they are kept for the backward pass; if they exceed `training.keep_logits_gib`, an eighth of them is
    computed at a time, in float32.
    """
    training, shape, lora, parallelism = plan.config.training, plan.sizes, plan.lora, plan.config.parallelism
    (shard, tensor, _), expert, ties_head = _ranks(plan), parallelism.expert_parallel_degree, shape.tie_word_embeddings
    compute, head = BYTES[plan.trainer_dtype], shape.vocab_size * shape.hidden_size
    _, of_head = _frozen_bytes(plan, shape, compute)
    tokens = -(-_micro_batch(plan) // parallelism.context_parallel_degree)
    activations, at_work = activation_bytes(plan, tokens)
    limit = training.keep_logits_gib * GIB if plan.config.services.trainer.with_gpus else 0
    logits: float = tokens * of_head // shape.hidden_size
    if logits / tensor > limit:
        logits = tokens * shape.vocab_size * FLOAT32 / 8
    # Of a teacher's tokens: ids, logprobs of both models, and the gradient.
    logits += tokens * plan.config.distill.top_k * (8 + 3 * FLOAT32)

    def sum_bytes(unit: float, of_unit: float) -> float:
        """Bytes while the gradients of a unit of `unit` parameters are summed."""
        return FLOAT32 * unit + max(of_unit, FLOAT32 * unit * (2 if shard == 1 else 1 / shard))

    adapter = lora.parameters_of_layer(shape) if lora else 0
    elsewhere = shape.expert_parameters * (1 - tensor / expert) if expert > 1 else 0  # experts of other ranks
    block = shape.layer_parameters - elsewhere + adapter
    of_block = compute * block
    coming = of_block if shard > 1 else 0
    stays = of_head if ties_head else 0  # a tied unit stays until the embedding has its gradients, and is summed last
    at_head, in_block, after_head, after_block = of_head + coming, of_block + coming + stays, coming, coming + stays
    if plan.config.services.trainer.procs == 1 and not plan.is_offloaded and training.casts_whole(shape, lora):
        copies = compute * (lora.parameters(shape) if lora else shape.parameters - head * training.fp32_head)
        at_end = copies + FLOAT32 * (0 if lora else shape.largest_matrix)
        if ties_head and not lora:  # the embedding adds its gradients, and is cast last
            at_end = max(copies + of_head * (1 + training.fp32_head), (compute + FLOAT32) * head)
        of_head, stays = (0, 0) if lora else (of_head, stays)
        return [
            (copies, of_head, activations, logits),
            (copies, stays, activations + at_work, 0.0),
            (0.0, at_end, 0.0, 0.0),
        ]
    if training.reshard_after_forward == "never":  # a unit is freed when its own gradients are there
        whole = shape.parameters + (adapter - elsewhere) * shape.num_hidden_layers
        at_head = compute * (whole - head) + of_head
        in_block = at_head if lora else at_head - (of_head - stays)
        after_head, after_block = (0 if ties_head else in_block), in_block - of_block
    if lora:  # the output layer has no gradients, but the buffer in which its weights came
        gradients = max((compute + FLOAT32) * adapter, sum_bytes(adapter, compute * adapter))
        came = of_head if shard > 1 else 0
        return [(at_head, came, activations, logits), (in_block, gradients, activations + at_work, 0.0)]
    before = block if ties_head else max(head, block)
    moments = [
        (at_head, of_head, activations, logits),
        (after_head, sum_bytes(head, of_head), 0.0 if ties_head else activations, 0.0),
        (in_block, of_block + FLOAT32 * before + stays, activations + at_work, 0.0),
        (after_block, sum_bytes(block, of_block) + stays, activations, 0.0),
    ]
    return [*moments, (stays, 3 * of_head + FLOAT32 * block, 0.0, 0.0)] if ties_head and tensor > 1 else moments


def activation_bytes(plan: RunPlan, tokens: int) -> tuple[float, float]:
    """Activations of `tokens` tokens kept for the backward pass, and what comes on top while it is in one block.

    Counted as in "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198, section 4), for
    flash attention, no dropout and a gated MLP. A block keeps, in numbers a token:

    - none: all of `_block_numbers`; compiled, without h and, if dense, m: kernels compute a norm and the gate again
    - selective: h, the block's input; attention's output, q; the outputs of every second matrix product,
      q + 2k + m + h. K experts have in the place of m + h only their choice: K float32 scores and K int64 indices; m
      is then that of a shared expert
    - attention: h, the block's input, and q, attention's output
    - full: h, the block's input

    All but "none" compute the block at work again. LoRA keeps each adapter's rank, and m more of the block at
    work. Context parallelism gathers 2k for each token of the other ranks.
    """
    shape, lora, mode = plan.sizes, plan.lora, plan.config.training.activation_checkpoint
    context, compute = plan.config.parallelism.context_parallel_degree, BYTES[plan.trainer_dtype]
    h, k, m = shape.hidden_size, shape.key_value_size, shape.mlp_size
    _, outputs, attention_numbers = _attention_numbers(shape)
    of_block, at_work = _block_numbers(shape, compute)
    of_adapters = lora.rank * len(lora.targets) if lora else 0
    everything = of_block + 2 * k * (context - 1) + of_adapters
    dense = shape.shared_size if shape.num_experts else shape.intermediate_size  # of the MLP that computes all tokens
    of_mlp = shape.num_experts_per_tok * 12 / compute + (dense + h if dense else 0)
    numbers = {
        "none": everything - (h + (0 if shape.num_experts else m)) * plan.config.training.compile,
        "selective": h + outputs + of_mlp + of_adapters,
        "attention": h + attention_numbers,
        "full": h,
    }[mode]
    at_work += m * (lora is not None) + (0 if mode == "none" else everything)
    return float(compute * tokens * shape.num_hidden_layers * numbers), float(compute * tokens * at_work)


def _block_numbers(shape: ModelShape, compute: int) -> tuple[float, float]:
    """Numbers a token of a block's forward pass, and of the gradients of its activations.

    4h (both norms, in and out; one more for each further norm) + `_attention_numbers` + 4m (gate, up, the activated
    gate, the product; see `ModelShape.mlp_numbers`). Gradients are at most 2m + h (the block's output, the product, the
    gate and its factor, less the product itself), or `_rule_numbers`. For each expert that computes it, a token also
    has the h of the input and, in float32, the h of the output; the router has float32 scores of all experts, and the
    gate of a shared expert keeps its output, h. Norms in plain torch keep what they take and what they make of it in
    float32, see `ModelShape.plain_norms`.
    """
    h, m, attention = shape.hidden_size, shape.mlp_size, _attention_numbers(shape)[0]
    of_experts = shape.num_experts_per_tok * h * (1 + FLOAT32 / compute)
    norms = (2 + shape.norms) * h + (2 * FLOAT32 / compute - 1) * shape.plain_norms
    of_gates = shape.num_experts * FLOAT32 / compute + h * shape.shared_gate
    of_mlp = shape.mlp_numbers * m + of_experts + of_gates
    of_rule = _rule_numbers(shape.linear) if shape.linear else 0
    return norms + attention + of_mlp, max(2 * m + h + of_experts, of_rule)


def frozen_memory(plan: RunPlan, service: ServiceConfig, shape: ModelShape) -> Memory:
    """One process of a reference model or teacher: weights, activations of one block, and an eighth of the logits.

    If the weights are sharded, it gathers the output layer and two blocks.
    """
    tokens, compute = _micro_batch(plan), BYTES[plan.config.training.dtype_on(service.with_gpus)]
    weights, of_head = _frozen_bytes(plan, shape, compute)
    always = {"weights": weights / service.procs}
    always["forward"] = compute * tokens * _block_numbers(shape, compute)[0] + tokens * shape.vocab_size * FLOAT32 / 8
    if service.procs > 1:
        always["gathered"] = float(min(of_head + compute * 2 * shape.layer_parameters, weights))
    if not service.with_gpus:
        return Memory(always=always)
    return Memory(always=always | {"runtime": runtime_bytes(service.procs)}, phases=({"workspaces": WORKSPACES},))


def engine_memory(plan: RunPlan, engine: EngineSettings, *, snapshot: float = 0.0) -> Memory:
    """One process of the engine, with `snapshot` bytes for a snapshot that comes.

    On a GPU it has buffers, too: its runtime and captured CUDA graphs, which it keeps when it sleeps; activations of
    one step, which are the residual stream in and out, each expert's output, and the widest of MLP and attention; and
    the float32 logits and logprobs of one token of each request. While it sleeps, an engine of adapters has its weights
    in pinned memory of the host: 20.9 GiB for the shape of an 8B model; 21.4 GiB were measured.
    """
    generator, shape, lora = plan.config.services.generator, plan.sizes, plan.lora
    tensor, compute = generator.procs, BYTES[plan.engine_dtype]
    always = {"weights": compute * shape.parameters / tensor, "cache": engine.kv_cache_gib * GIB}
    adapter = adapter_bytes(shape, lora, compute=compute, tensor=tensor) if lora and engine.lora_rank else 0.0
    asleep, on_host = None, {}
    if generator.with_gpus:
        h, q, k, m = shape.hidden_size, shape.query_size, shape.key_value_size, shape.mlp_size
        tokens = engine.engine_args.get("max_num_batched_tokens") or engine.step_tokens
        width = 2 * h + shape.num_experts_per_tok * h + max(3 * m, 2 * q + 2 * k) / tensor
        residue = runtime_bytes(tensor) + 0.6 * GIB * engine.cuda_graphs
        always["buffers"] = residue + compute * tokens * width + 2 * FLOAT32 * engine.max_requests * shape.vocab_size
        asleep = residue + adapter if engine.sleep else None
        if engine.sleep and adapter:
            on_host[COPIED] = pinned_bytes(shape, compute, ranks=tensor) / tensor
    always |= {name: size for name, size in {"adapter": adapter, "received": float(snapshot)}.items() if size}
    return Memory(always=always, resting=asleep, on_host=on_host)


def adapter_bytes(shape: ModelShape, lora: Lora, *, compute: int, tensor: int) -> float:
    """A LoRA adapter in one process of the engine: the whole adapter, and the slot that it is copied into.

    The slot has A and B of all `TARGETS`, with the rank of vLLM's kernels. Tensor parallelism cuts A of o_proj and
    down_proj, and B of the others.
    """
    sizes = (size if name in ("o_proj", "down_proj") else size[::-1] for name, size in target_sizes(shape).items())
    slot = slot_rank(lora.rank) * shape.num_hidden_layers * sum(whole + cut / tensor for cut, whole in sizes)
    return compute * (slot + lora.parameters(shape))
