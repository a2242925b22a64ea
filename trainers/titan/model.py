"""A TorchTitan model behind a few methods. Only this file knows its internals.

It reads a Hugging Face folder (config.json and safetensors), builds the model on the meta device, shards it, and loads
the weights. builder.py builds the architectures; hf_weights.py loads the weights and gives them back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# First of all TorchTitan imports: it settles the device for the others.
from trainers.titan.device import SPMD_BACKEND, device  # isort: skip
from torch.distributed.fsdp import FSDPModule
from torch.func import functional_call
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.common import Decoder, RoPE
from torchtitan.models.common.attention import (
    VarlenMetadata,
    get_efficient_causal_mask_mod_for_packed_document,
    get_sliding_window_mask_mod,
)

from agents.model_weights import check_head
from trainers.families.family import Experts
from trainers.families.table import read_config
from trainers.titan.adapter_files import AdapterWeights, load_adapter
from trainers.titan.attention import AttentionAC, MatrixAC, document_mask
from trainers.titan.builder import builder_of
from trainers.titan.context import Context
from trainers.titan.fused_qkv import split_shards_on_save
from trainers.titan.hf_weights import HFWeights
from trainers.titan.lm_head import Head
from trainers.titan.lora import Adapters, adapter_modules, build_with_adapters
from trainers.titan.settings import TitanSettings
from trainers.titan.sums import keep_sums
from trainers.titan.weight_files import WeightFiles
from trainers.titan.wide_head import head_modules, round_embedding, shard

# TorchTitan's settings of activation checkpointing.
ACTIVATION_CHECKPOINTS = {
    "none": None,
    "selective": MatrixAC.Config(),
    "attention": AttentionAC.Config(),
    "full": FullAC.Config(),
}


class TitanModel:
    """A sharded model with the weights of a Hugging Face folder.

    Args:
        folder: holds config.json and model.safetensors, or model.safetensors.index.json with its shards.
        parallel: TorchTitan's meshes; the process group must be up.
        settings: of the trainer; adapters are in float32. On the CPU there is nothing to offload.
        dtype: "float32", or "bfloat16" to compute in bfloat16 over float32 master weights.
        weights: "float32", or "bfloat16" for weights that are not trained.
    """

    def __init__(
        self,
        folder: Path,
        parallel: ParallelDims,
        settings: TitanSettings,
        *,
        dtype: str,
        attention: str,
        weights: str = "float32",
    ) -> None:
        lora = settings.lora
        self.folder = folder
        self.hf_config = read_config(folder)
        self.parallel = parallel
        self.context = Context.of(parallel)
        self.device = device()
        fuse_qkv = self.device.type != "cpu" and lora is None
        self.builder = builder_of(self.hf_config)(self.hf_config, attention=attention, fuse_qkv=fuse_qkv)
        self.attention = self.builder.attention
        self.config = self.builder.decoder()
        self.shape = self.builder.family.shape(self.hf_config)
        settings.check_model(self.shape)
        self.is_offloaded = settings.cpu_offload and self.device.type != "cpu"
        self._has_wide_head = settings.head_dtype(dtype) != dtype
        self._lora = lora
        files = WeightFiles.of_folder(folder, self.builder.family.parts)
        check_head(folder)
        self.module = self._build(settings, dtype, weights)
        kept_logit_bytes = settings.keep_logits_gib * 2**30 if self.device.type != "cpu" else 0
        split_shards_on_save(self.module)
        self._head = Head(self.module.get_submodule("lm_head"), kept_logit_bytes)
        adapter = self.builder.adapter(self.config, None)
        self.weights = HFWeights(self.module, adapter, ties_head=bool(self.config.enable_weight_tying))
        self.weights.load(files)
        self.adapters: Adapters | None = None
        if lora is not None:
            self.adapters = Adapters(self.module, lora)
            self.adapters.initialise(settings.seed)
            if lora.adapter:
                load_adapter(self, Path(lora.adapter))
                self.adapters.keep_as_reference()

    @property
    def published_weights(self) -> HFWeights | AdapterWeights:
        """The weights, or the adapters, that the engine gets."""
        return AdapterWeights(self) if self._lora is not None and self._lora.publish == "adapter" else self.weights

    @property
    def experts(self) -> Experts | None:
        """The experts of each layer; None for a dense model."""
        return self.builder.family.experts(self.hf_config)

    @property
    def max_length(self) -> int:
        """The longest row that the position embedding covers."""
        return self.config.max_seq_len

    def logits(self, tokens: Tensor, positions: Tensor | None, selected: Tensor) -> Tensor:
        """Run the model and return the logits of the selected places.

        Places are selected before the output layer, which is most of the work of a small model and most of the memory
        of a large one.

        Args:
            tokens: (B, L) int64.
            positions: (B, L) int64 that restart at 0 with each packed row; None when each sequence is one row.
            selected: (N,) int64 places in the flattened (B, L); with context parallelism, all places of this rank's
                part.

        Returns:
            (N, vocabulary) in the dtype the model computes in, with gradient.
        """
        self._head.ask_logits(self._places(tokens, selected))
        return self._run(tokens, positions, None)

    def logprobs(
        self,
        tokens: Tensor,
        positions: Tensor | None,
        selected: Tensor,
        targets: Tensor,
        temperature: float,
        *,
        with_entropy: bool = False,
        routes: Tensor | None = None,
        rows: tuple[Tensor, int] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Logprobs of targets (N,) or (N, K) int64 at the places `selected`, without holding all logits at once.

        Args, in addition to those of `logits`:
            temperature: above 0; logits are divided by it.
            with_entropy: also return the entropy at each place.
            rows: `starts` and `longest` of the micro-batch; without them varlen finds them on the GPU, and waits for
                it.

        Returns:
            Logprobs as targets, and entropies (N,) in nats or None: float32, with gradient, the same on tensor ranks.
        """
        self._head.ask_logprobs(self._places(tokens, selected), targets, temperature, with_entropy)
        return self._run(tokens, positions, routes, rows)

    def top_logprobs(
        self, tokens: Tensor, positions: Tensor | None, selected: Tensor, temperature: float, count: int
    ) -> tuple[Tensor, Tensor]:
        """The `count` largest logprobs (N, count) at the places `selected`, float32, and their token ids."""
        self._head.ask_top(self._places(tokens, selected), count, temperature)
        return self._run(tokens, positions, None)

    @property
    def replay_counts(self) -> Tensor:
        """(2,) int64, over all layers of this rank's part in the last forward pass with routes: tokens with given
        experts, and the number of them for which the router would have chosen others."""
        counts: Tensor = self.module.replay_counts
        return counts

    def complete_gradients(self, now: bool) -> None:
        """Whether the next backward passes sum gradients over the replicas of HSDP, and give them to the host if they
        are offloaded.

        Until then FSDP keeps sums over the ranks of one replica on the GPU, in the place of the gradients.
        """
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_all_reduce(now)

    def abandon_pass(self) -> None:
        """Forget a forward or backward pass that raised, and the sums that wait for `complete_gradients`."""
        if isinstance(self.module, FSDPModule):
            self.module.reset_iter_state()

    def _build(self, settings: TitanSettings, dtype: str, weights: str) -> Decoder:
        parallelism = ParallelismConfig(
            data_parallel_replicate_degree=self.parallel.dp_replicate,
            data_parallel_shard_degree=self.parallel.dp_shard,
            tensor_parallel_degree=self.parallel.tp,
            context_parallel_degree=self.parallel.cp,
            expert_parallel_degree=self.parallel.ep,
            fsdp_reshard_after_forward=settings.reshard_after_forward,
            spmd_backend=SPMD_BACKEND,
        )
        if self.parallel.tp_enabled or self.parallel.ep_enabled:
            is_cut, is_spread = parallelism.enable_sequence_parallel, self.parallel.ep_enabled
            self.builder.shard(self.config, enable_sp=is_cut, enable_ep=is_spread)
        with torch.device("meta"):
            module: Decoder = (
                self.config.build() if self._lora is None else build_with_adapters(self.config, self._lora)
            )
        exact = [*(head_modules(module) if self._has_wide_head else []), *adapter_modules(module)]
        # Cast all weights, on the meta device, except the weights of some modules.
        exceptions = {parameter for part in exact for parameter in part.parameters()}
        for parameter in module.parameters():
            if parameter not in exceptions:
                parameter.data = parameter.data.to(getattr(torch, weights))
        if self.parallel.tp_enabled and self.config.enable_weight_tying:
            _keep_tied(module)
        # One process has nothing to shard. If it has nothing to offload either, plain tensors are faster.
        is_cast = not dtype == weights == ("float32" if self._lora else weights)
        is_plain = self.parallel.world_size == 1 and not self.is_offloaded
        is_plain &= not is_cast or settings.casts_whole(self.shape, self._lora)
        self._computes_in = getattr(torch, dtype) if is_plain and is_cast else None
        module = self.builder.parallelize(
            module,
            parallel_dims=self.parallel,
            training=TrainingConfig(mixed_precision_param=dtype, enable_cpu_offload=self.is_offloaded),
            parallelism=parallelism,
            compile_config=CompileConfig(enable=settings.compile),
            ac_config=ACTIVATION_CHECKPOINTS[settings.activation_checkpoint],
            dump_folder="",
            skip_dp=is_plain or self._has_wide_head,
        )
        if settings.compile and self.parallel.tp_enabled:
            _complete_embedding(module)
        if self._has_wide_head:
            compute = getattr(torch, dtype)
            round_embedding(module, compute)
            if not is_plain:
                shard(
                    module,
                    self.parallel,
                    dtype=compute,
                    head_dtype=torch.float32,
                    cpu_offload=self.is_offloaded,
                    reshard_after_forward=settings.reshard_after_forward,
                )
        if self.is_offloaded and not settings.offload_sums:
            keep_sums(module)
        if self.device.type == "cpu":
            for part in module.modules():
                if isinstance(part, FSDPModule):  # gloo has neither averages nor pre-multiplied sums
                    part.set_force_sum_reduction_for_comms(True)
        module.to_empty(device="cpu" if self.is_offloaded else self.device)
        with torch.no_grad():
            module.init_weights(buffer_device=self.device if self.is_offloaded else None)
        # Let all layers use one table of positions: 28 copies of Qwen3's would take 1.2 GB.
        ropes = [part for part in module.modules() if isinstance(part, RoPE)]
        for rope in ropes[1:]:
            rope.cache = ropes[0].cache
        return module

    def _places(self, tokens: Tensor, selected: Tensor) -> Tensor:
        """The selected places as the output layer sees them: with context parallelism it has this rank's part of the
        tokens."""
        return selected if self.context.ranks == 1 else self.context.local_places(selected, tokens.shape[1])

    def _run(
        self, tokens: Tensor, positions: Tensor | None, routes: Tensor | None, rows: tuple[Tensor, int] | None = None
    ) -> Any:
        masks = {window: self._mask(tokens, positions, window, rows) for window in self.builder.windows}
        arguments = {"attention_masks": masks if len(masks) > 1 else next(iter(masks.values()))}
        if self.context.ranks > 1:
            # Only padding lies beyond the last position of the model.
            whole = _positions(tokens) if positions is None else positions
            positions = self.context.cut(whole).clamp(max=self.max_length - 1)
            tokens = self.context.cut(tokens)
            routes = None if routes is None else self.context.cut(routes)
        arguments |= {"positions": positions} | ({} if routes is None else {"routes": routes})
        if self._computes_in is None:
            return self.module(tokens, **arguments)
        exact = {part.weight for part in head_modules(self.module)} if self._has_wide_head else set()
        parameters = {name: weight for name, weight in self.module.named_parameters() if weight not in exact}
        cast = {name: weight.to(self._computes_in) for name, weight in parameters.items()}
        return functional_call(self.module, cast, (tokens,), arguments)

    def _mask(
        self, tokens: Tensor, positions: Tensor | None, window: int | None, rows: tuple[Tensor, int] | None = None
    ) -> Any:
        """The mask of layers that attend to a window. Every rank gets full sequences, which are small beside
        activations."""
        if self.attention == "sdpa" and self.context.ranks == 1 and positions is None and window is None:
            return None
        positions = _positions(tokens) if positions is None else positions
        if self.attention == "sdpa":
            return document_mask(positions, window) if self.context.ranks == 1 else self.context.mask(positions, window)
        attention = self.config.first_attention
        if self.context.ranks > 1:
            return self.context.block_mask(positions, window, attention.inner_attention.block_size)
        if self.attention == "varlen" and rows is not None:
            starts, longest = rows
            return VarlenMetadata(starts, starts, longest, longest)
        if self.attention == "varlen" or window is None:  # the kernel of varlen knows its window
            return self.module.get_attention_masks(positions)
        in_row = get_efficient_causal_mask_mod_for_packed_document(positions)
        return self.module._create_flex_attention_mask(
            positions, attention, [get_sliding_window_mask_mod(window), in_row]
        )


def _positions(tokens: Tensor) -> Tensor:
    """(B, L) int64, of sequences with one row each."""
    return torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)


def _keep_tied(module: Decoder) -> None:
    """Tie embedding and output layer again after tensor parallelism has cut each separately, and before FSDP wraps
    them.

    Otherwise FSDP would gather two weights, sum two gradients, and hold twice the memory.
    """
    cut = module.parallelize

    def cut_and_tie(parallel: ParallelDims) -> None:
        cut(parallel)
        embedding, head = module.get_submodule("tok_embeddings"), module.get_submodule("lm_head")
        embedding.weight = head.weight

    module.parallelize = cut_and_tie


def _complete_embedding(module: Decoder) -> None:
    """Make the embedding wait for the communication of its output between tensor ranks.

    The blocks share their compiled code. With tensor parallelism the embedding returns an AsyncCollectiveTensor. The
    code of the first block would expect this type, and fail on the plain tensors of the other blocks.
    """

    def complete(embedding: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        return output.clone()

    module.get_submodule("tok_embeddings").register_forward_hook(complete)
