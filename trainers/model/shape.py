"""The sizes of a model, read from its config.json without loading or downloading anything; enough for a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.model_folder import check_hub_id, find_model
from forge_env.core.errors import UserError
from trainers.model.families import FAMILIES, head_sizes, read_config, read_experts
from trainers.model.sizes import MODEL_SIZES


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder such as Qwen3, Qwen2.5 or Llama 3, dense or with experts, in Hugging Face's names."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    qk_norm: bool = False
    """Whether queries and keys are normalised, as in Qwen3."""
    qkv_bias: bool = False
    """Whether the projections of queries, keys and values have a bias, as in Qwen2.5."""
    thinks: bool = False
    """Whether models of the family may think before they answer, as Qwen3 does."""
    num_experts: int = 0
    """Experts of each layer, instead of one MLP of `intermediate_size`; 0 for a dense model."""
    num_experts_per_tok: int = 0
    """Experts that compute a token."""
    moe_intermediate_size: int = 0
    """Width of one expert's MLP."""

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Size of the keys alone, or of the values alone."""
        return self.num_key_value_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Parameters of one transformer block: attention, two norms, and a gated MLP, or a router and its experts."""
        width, query, key = self.hidden_size, self.query_size, self.key_value_size
        attention = 2 * width * query + 2 * width * key
        attention += 2 * self.head_dim * self.qk_norm + (query + 2 * key) * self.qkv_bias
        mlp = self.num_experts * width + self.expert_parameters if self.num_experts else 3 * width * self.mlp_size
        return attention + mlp + 2 * width

    @property
    def expert_parameters(self) -> int:
        """Parameters of all experts of one transformer block."""
        return 3 * self.hidden_size * self.moe_intermediate_size * self.num_experts

    @property
    def active_layer_parameters(self) -> int:
        """Parameters of one transformer block that a token is multiplied with."""
        idle = self.num_experts - self.num_experts_per_tok
        return self.layer_parameters - 3 * self.hidden_size * self.moe_intermediate_size * idle

    @property
    def mlp_size(self) -> int:
        """Hidden numbers of a token in the MLP of a block, or in the experts that compute it."""
        return self.num_experts_per_tok * self.moe_intermediate_size if self.num_experts else self.intermediate_size

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding and of the output layer. If they are tied, they are one matrix."""
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)

    @property
    def largest_matrix(self) -> int:
        """Parameters of the largest matrix: the embedding, the MLP's, the stack of all experts, or the fused
        projection."""
        mlp = self.num_experts * self.moe_intermediate_size or self.intermediate_size
        return self.hidden_size * max(self.vocab_size, mlp, self.query_size + 2 * self.key_value_size)

    def check_cut(self, option: str, degree: int, *, cuts_experts: bool = True) -> None:
        """Check that every matrix can be cut into `degree` parts."""
        sizes = {"num_attention_heads": self.num_attention_heads, "num_key_value_heads": self.num_key_value_heads}
        if self.num_experts and cuts_experts:
            sizes["moe_intermediate_size"] = self.moe_intermediate_size
        for name, size in sizes.items():
            if size % degree:
                raise UserError(
                    f"--{option} is {degree}, which does not divide the model's {name}, {size}: choose "
                    f"{divisors(*sizes.values())}"
                )

    @property
    def parameters(self) -> int:
        return self.embedding_parameters + self.num_hidden_layers * self.layer_parameters + self.hidden_size


def divisors(*numbers: int) -> str:
    """The common divisors in words, such as "1, 2 or 4"."""
    common = math.gcd(*numbers)
    *most, last = [str(number) for number in range(1, common + 1) if common % number == 0]
    return f"{', '.join(most)} or {last}" if most else last


def _known(
    model_type: str,
    sizes: tuple[int, ...],
    *,
    tie_word_embeddings: bool = False,
    experts: tuple[int, int, int] = (0, 0, 0),
) -> ModelShape:
    family = FAMILIES[model_type]
    width, inner, layers, heads, key_value_heads, head_dim, vocabulary, context = sizes
    return ModelShape(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        vocab_size=vocabulary,
        max_position_embeddings=context,
        tie_word_embeddings=tie_word_embeddings,
        qk_norm=family.qk_norm,
        qkv_bias=family.qkv_bias,
        thinks=family.thinks,
        num_experts=experts[0],
        num_experts_per_tok=experts[1],
        moe_intermediate_size=experts[2],
    )


KNOWN_SHAPES: dict[str, ModelShape] = {
    "Qwen/Qwen3-0.6B": _known("qwen3", (1024, 3072, 28, 16, 8, 128, 151936, 40960), tie_word_embeddings=True),
    "Qwen/Qwen3-1.7B": _known("qwen3", (2048, 6144, 28, 16, 8, 128, 151936, 40960), tie_word_embeddings=True),
    "Qwen/Qwen3-4B": _known("qwen3", (2560, 9728, 36, 32, 8, 128, 151936, 40960), tie_word_embeddings=True),
    "Qwen/Qwen3-8B": _known("qwen3", (4096, 12288, 36, 32, 8, 128, 151936, 40960)),
    "Qwen/Qwen3-14B": _known("qwen3", (5120, 17408, 40, 40, 8, 128, 151936, 40960)),
    "Qwen/Qwen3-32B": _known("qwen3", (5120, 25600, 64, 64, 8, 128, 151936, 40960)),
    "Qwen/Qwen3-30B-A3B": _known("qwen3_moe", (2048, 6144, 48, 32, 4, 128, 151936, 40960), experts=(128, 8, 768)),
    "Qwen/Qwen2.5-7B-Instruct": _known("qwen2", (3584, 18944, 28, 28, 4, 128, 152064, 32768)),
    "Qwen/Qwen2.5-14B-Instruct": _known("qwen2", (5120, 13824, 48, 40, 8, 128, 152064, 32768)),
    "Qwen/Qwen2.5-32B-Instruct": _known("qwen2", (5120, 27648, 64, 40, 8, 128, 152064, 32768)),
    "meta-llama/Llama-3.1-8B": _known("llama", (4096, 14336, 32, 32, 8, 128, 128256, 131072)),
    "meta-llama/Llama-3.1-8B-Instruct": _known("llama", (4096, 14336, 32, 32, 8, 128, 128256, 131072)),
}
"""The published sizes of the recipes' models, for a plan before they are downloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """Where a model is, as far as this is known without a network."""

    shape: ModelShape | None
    """None if there is no config.json here, and the name is not in `KNOWN_SHAPES`."""
    where: str
    """For a person: "a tiny Qwen3, made at the start", "the folder ...", "the hub's cache, ..."."""
    missing: str = ""
    """What the start will have to download, if anything."""
    path: str = ""
    """The folder or the hub id that the user names; "" for a model made on the spot."""
    size: str = "tiny"
    """The size of a model made on the spot."""
    untrained: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Tokens of the template with rows that were never trained, by matrix; see `trainers.model.new_rows`."""
    template: Sequence[str] = ()
    """What the run does otherwise than the model's chat template, and when a row begins; see `Renderer.notes`."""
    tools_problem: str = ""
    """Why the chat template cannot be used with tools; "" if it can, or if the folder is not here yet."""
    tokenizer: str = ""
    """How programs that serve the model tokenise otherwise; "" if they do not, or if the folder is not here yet."""

    @property
    def folder(self) -> Path | None:
        """The folder that the user names; None for a hub id, or for a model made on the spot."""
        folder = Path(self.path).expanduser()
        return folder if self.path and folder.exists() else None


def find_shape(path: str, size: str = "tiny") -> FoundModel:
    """Find the sizes of `model.path`, in a local folder, the hub's cache or the known names; without a path those of
    `size`. Nothing is downloaded, and a local folder is complete.
    """
    if not path:
        return FoundModel(shape=made_shape(size), where=f"{made_model(size)}, made at the start", size=size)
    if size != "tiny":
        raise UserError(
            f"--model.size is {size}, which is for a model made on the spot, and --model is {path}: leave one of them "
            "out"
        )
    if Path(path).expanduser().exists():
        return FoundModel(shape=read_shape(find_model(path)), where=f"the folder {path}", path=path)
    check_hub_id(path)
    cached = _cached_config(path)
    if cached is not None:
        return FoundModel(shape=read_shape(cached), where=f"the hub's cache on this machine, {path}", path=path)
    return FoundModel(
        shape=KNOWN_SHAPES.get(path),
        where=f"the hub, {path}",
        missing=f"the model {path} is neither a folder nor in the hub's cache here: the start downloads it",
        path=path,
    )


def made_model(size: str) -> str:
    """The name of a model made on the spot, for a person."""
    return {"tiny": "a tiny Qwen3", "tiny-moe": "a tiny Qwen3 with experts"}.get(size, f"a Qwen3 of size {size}")


def made_shape(size: str) -> ModelShape:
    """The sizes of a model that is made on the spot; its vocabulary may turn out smaller."""
    made = MODEL_SIZES[size]
    return ModelShape(
        hidden_size=made.hidden_size,
        intermediate_size=made.intermediate_size,
        num_hidden_layers=made.num_hidden_layers,
        num_attention_heads=made.num_attention_heads,
        num_key_value_heads=made.num_key_value_heads,
        head_dim=made.head_dim,
        vocab_size=made.vocab_size,
        max_position_embeddings=made.max_position_embeddings,
        tie_word_embeddings=made.tie_word_embeddings,
        qk_norm=FAMILIES[made.model_type].qk_norm,
        thinks=FAMILIES[made.model_type].thinks,
        num_experts=made.num_experts,
        num_experts_per_tok=made.num_experts_per_tok,
        moe_intermediate_size=made.moe_intermediate_size,
    )


def read_shape(folder: Path) -> ModelShape:
    """The sizes in the config.json of a folder."""
    return shape_of(read_config(folder))


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """The sizes in a config, as `trainers.model.families.read_config` returns it."""
    family, experts = FAMILIES[config["model_type"]], read_experts(config)
    heads, key_value_heads, head_dim = head_sizes(config)
    return ModelShape(
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_hidden_layers=config["num_hidden_layers"],
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        vocab_size=config["vocab_size"],
        max_position_embeddings=config.get("max_position_embeddings") or 0,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qk_norm=family.qk_norm,
        qkv_bias=family.qkv_bias,
        thinks=family.thinks,
        num_experts=experts.count if experts else 0,
        num_experts_per_tok=experts.active if experts else 0,
        moe_intermediate_size=experts.size if experts else 0,
    )


def _cached_config(hub_id: str) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    try:
        cached = try_to_load_from_cache(hub_id, "config.json")
    except HFValidationError:
        raise UserError(f"{hub_id!r} is neither a folder nor a hub id, which looks like Qwen/Qwen3-1.7B") from None
    return Path(cached).parent if isinstance(cached, str) else None
