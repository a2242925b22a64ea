"""What a family of models is to a plan: its settings in config.json, its sizes and its weights.

Nothing of torch is needed here. `Family.builder` names the class that builds the model, in `trainers/titan/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.model_weights import EMBEDDING, HEAD
from forge_env.core.errors import UserError
from trainers.families.rope import uncomputed
from trainers.families.settings import COMPUTED, HARMLESS, ONLY, OPTIONAL_SIZES, REFUSED, SIZES
from trainers.families.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts of each layer of a mixture-of-experts model."""

    count: int
    active: int
    """The number of experts that the router chooses for a token."""
    size: int
    """The width of one expert's MLP."""
    normalised: bool
    """Whether the router's scores of the chosen experts are divided by their sum."""
    setting: str = "num_experts"
    """The name of their number in config.json."""

    def check(self, path: Path) -> None:
        """Check the numbers; `path` is the config.json that says them."""
        count, active = self.count, self.active
        sizes = {self.setting: count, "num_experts_per_tok": active, "moe_intermediate_size": self.size}
        for name, size in sizes.items():
            check_size(size, name, path)
        if active > count:
            raise UserError(
                f"{path} has num_experts_per_tok={active}, which cannot be more than {self.setting}={count}."
            )


@dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture of Hugging Face: a decoder with grouped queries and gated MLPs, unless a subclass says more."""

    model_type: str
    """Its model_type in config.json."""
    architecture: str
    """Its name among the architectures in config.json."""
    builder: str
    """The class that builds its models, as "module:name"; a `Builder` of trainers/titan/builder.py."""
    sizes: tuple[str, ...] = SIZES
    """Whole numbers above 0 that every config has."""
    rope_types: tuple[str, ...] = ("default",)
    rope_fields: frozenset[str] = frozenset()
    """Further fields of its position embedding that it computes, or that change nothing of text."""
    qk_norm: bool = False
    """Whether queries and keys are normalised."""
    qkv_bias: bool = False
    """Whether the projections of queries, keys and values have a bias."""
    thinks: bool = False
    """Whether its models may think before they answer; the renderer tells this of a folder."""
    computed: frozenset[str] = frozenset()
    """Settings that it computes beside `COMPUTED`, or instead of refusing them."""
    harmless: frozenset[str] = frozenset()
    """Settings that change nothing, and would be refused in another family."""
    only: Mapping[str, Any] = field(default_factory=dict)
    """Further settings with the one value that is computed."""
    left_out: frozenset[str] = frozenset()
    """Settings of weights that it does not read, which an export has not."""
    gpu_packages: Mapping[str, str] = field(default_factory=dict)
    """Modules that its trainer needs on a GPU, with the name under which each is installed."""
    dequantizer: str = ""
    """What writes a folder with a `quantization` as one in bfloat16: "module:function" of it and the new folder."""
    published_sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Sizes of published models in the names of config.json, by hub id, for a plan before they are downloaded."""

    def check(self, config: Mapping[str, Any], path: Path) -> None:
        """Check that every setting of a config is computed."""
        for name in (*self.sizes, *(name for name in OPTIONAL_SIZES if config.get(name) is not None)):
            check_size(config.get(name), name, path)
        heads, kv_heads, _ = head_sizes(config)
        if heads % kv_heads:
            raise UserError(
                f"{path} has num_key_value_heads={kv_heads}, which must divide num_attention_heads={heads}."
            )
        if (experts := self.experts(config)) is not None:
            experts.check(path)
        for what in self.uncomputed(config):
            raise UserError(f"{path} asks for {what}, which the trainer does not support for {self.architecture}.")

    @property
    def settings(self) -> frozenset[str]:
        """Every setting with a known meaning."""
        return COMPUTED | HARMLESS | REFUSED | self.computed | self.harmless | ONLY.keys() | self.only.keys()

    def uncomputed(self, config: Mapping[str, Any]) -> list[str]:
        """What a config asks for, in words, and the trainer does not compute."""
        refused_names = REFUSED - self.computed - self.harmless
        only = {name: value for name, value in {**ONLY, **self.only}.items() if name in config}
        windows = [window for window in self.windows(config) if not (window is None or is_size(window))]
        return [
            *(what for part in self.ropes(config) for what in uncomputed(part, self.rope_types, self.rope_fields)),
            *(f"{name} {config[name]!r}" for name in config if name in refused_names and config[name]),
            *(f"{name} {config[name]!r} instead of {value!r}" for name, value in only.items() if config[name] != value),
            *self.uncomputed_windows(config),
            *(f"sliding_window {window!r}" for window in windows[:1]),
        ]

    def ropes(self, config: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
        """The config with the rope settings of each kind of layers."""
        return [config]

    def windows(self, config: Mapping[str, Any]) -> Sequence[int | None]:
        """For each layer the most tokens that one attends to, itself among them; None means no bound."""
        return [None] * config["num_hidden_layers"]

    def uncomputed_windows(self, config: Mapping[str, Any]) -> list[str]:
        """What a config says of windows, in words, and the trainer does not compute."""
        if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
            return [f"layer_types {config['layer_types']} with windows"]
        return []

    def experts(self, config: Mapping[str, Any]) -> Experts | None:
        """The experts of a config; None for a dense model."""
        return None

    def shape(self, config: Mapping[str, Any]) -> ModelShape:
        """The sizes in a config that was checked."""
        experts = self.experts(config)
        heads, key_value_heads, head_dim = head_sizes(config)
        return ModelShape(
            hidden_size=config["hidden_size"],
            intermediate_size=config.get("intermediate_size", 0),
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=key_value_heads,
            head_dim=head_dim,
            vocab_size=config["vocab_size"],
            max_position_embeddings=config.get("max_position_embeddings") or 0,
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            vectors_of_layer=2 * head_dim * self.qk_norm + (heads + 2 * key_value_heads) * head_dim * self.qkv_bias,
            thinks=self.thinks,
            num_experts=experts.count if experts else 0,
            num_experts_per_tok=experts.active if experts else 0,
            moe_intermediate_size=experts.size if experts else 0,
        )

    def quantization(self, config: Mapping[str, Any]) -> str:
        """What of a folder is written in bfloat16 before it is trained, such as "experts in MXFP4"; "" is nothing."""
        return ""

    def parts(self, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """The tensors of `weights` that a tensor of a folder holds one after the other; none if no one reads it."""
        return {name: shape}

    def weights(self, config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """The name and the shape of every tensor in Hugging Face's form; an output layer that is the embedding is
        listed once."""
        shape = self.shape(config)
        head = {} if shape.tie_word_embeddings else {HEAD: (shape.vocab_size, shape.hidden_size)}
        return {
            EMBEDDING: (shape.vocab_size, shape.hidden_size),
            **head,
            "model.norm.weight": (shape.hidden_size,),
            **{
                f"model.layers.{layer}.{name}": size
                for layer in range(shape.num_hidden_layers)
                for name, size in self.weights_of_layer(config, layer).items()
            },
        }

    def weights_of_layer(self, config: Mapping[str, Any], layer: int) -> dict[str, tuple[int, ...]]:
        """The name in its block and the shape of every tensor of a layer."""
        shape = self.shape(config)
        width, query, keys = shape.hidden_size, shape.query_size, shape.key_value_size
        outputs = {"q_proj": query, "k_proj": keys, "v_proj": keys}
        weights: dict[str, tuple[int, ...]] = {f"self_attn.{name}.weight": (n, width) for name, n in outputs.items()}
        weights |= {"self_attn.o_proj.weight": (width, query)}
        weights |= {f"self_attn.{name}.bias": (size,) for name, size in outputs.items() if self.qkv_bias}
        weights |= {f"self_attn.{name}.weight": (shape.head_dim,) for name in ("q_norm", "k_norm") if self.qk_norm}
        weights |= {f"{name}.weight": (width,) for name in ("input_layernorm", "post_attention_layernorm")}
        return weights | self.mlp_weights(shape)

    def mlp_weights(self, shape: ModelShape) -> dict[str, tuple[int, ...]]:
        """The tensors of a layer's MLP, or of its router and experts."""
        width = shape.hidden_size
        if not shape.num_experts:
            return gated_mlp("mlp", width, shape.intermediate_size)
        weights: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (shape.num_experts, width)}
        for expert in range(shape.num_experts):
            weights |= gated_mlp(f"mlp.experts.{expert}", width, shape.moe_intermediate_size)
        return weights


def gated_mlp(name: str, width: int, inner: int) -> dict[str, tuple[int, ...]]:
    """The tensors of one gated MLP of this name."""
    return {
        f"{name}.gate_proj.weight": (inner, width),
        f"{name}.up_proj.weight": (inner, width),
        f"{name}.down_proj.weight": (width, inner),
    }


def check_size(value: Any, name: str, path: Path) -> None:
    """Check that a setting is a whole number above 0."""
    if not is_size(value):
        raise UserError(f"{path} says {name} = {value!r}: a language model has a whole number above 0 there")


def experts_of(config: Mapping[str, Any], *spellings: str, normalised: bool) -> Experts:
    """The experts of a config. Their number has one of the spellings of transformers' versions.

    `normalised` is the default of norm_topk_prob.
    """
    value: Any = config.get
    setting = next((name for name in spellings if config.get(name)), spellings[0])
    active, size = value("num_experts_per_tok"), value("moe_intermediate_size")
    normalised = bool(value("norm_topk_prob", normalised))
    return Experts(setting=setting, count=value(setting), active=active, size=size, normalised=normalised)


def is_size(value: Any) -> bool:
    """Whether a setting is a whole number above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def head_sizes(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Number of query heads, number of key and value heads, and size of one head."""
    heads = config["num_attention_heads"]
    return heads, config.get("num_key_value_heads") or heads, config.get("head_dim") or config["hidden_size"] // heads


def sizes(
    *numbers: int, tie_word_embeddings: bool = False, experts: tuple[int, int, int] = (0, 0, 0)
) -> dict[str, Any]:
    """The sizes of a published model in the names of config.json.

    Args:
        numbers: width, MLP, layers, heads, key and value heads, size of a head, vocabulary, context.
        experts: their number, the number that computes a token, and the width of one.
    """
    width, inner, layers, heads, key_value_heads, head_dim, vocabulary, context = numbers
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "head_dim": head_dim,
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "tie_word_embeddings": tie_word_embeddings,
        "num_experts": experts[0],
        "num_experts_per_tok": experts[1],
        "moe_intermediate_size": experts[2],
    }
