"""The tensors that a config.json asks for, in Hugging Face's names, against the tensors of the folder's files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agents.model_weights import EMBEDDING, HEAD
from forge_env.core.errors import UserError
from trainers.model.shape import ModelShape

OLD = "rotary_emb.inv_freq"
"""Old folders have a weight with this end of its name, which no model reads."""
Shapes = Mapping[str, tuple[int, ...]]


def weight_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """The name and the shape of every tensor of a model; an output layer that is the embedding is listed once."""
    width, query, keys, head = shape.hidden_size, shape.query_size, shape.key_value_size, shape.head_dim
    outputs = {"q_proj": query, "k_proj": keys, "v_proj": keys}
    layer: dict[str, tuple[int, ...]] = {f"self_attn.{name}.weight": (size, width) for name, size in outputs.items()}
    layer |= {"self_attn.o_proj.weight": (width, query)}
    layer |= {f"self_attn.{name}.bias": (size,) for name, size in outputs.items() if shape.qkv_bias}
    layer |= {f"self_attn.{name}.weight": (head,) for name in ("q_norm", "k_norm") if shape.qk_norm}
    layer |= {f"{name}.weight": (width,) for name in ("input_layernorm", "post_attention_layernorm")}
    inner, mlps = shape.intermediate_size, ["mlp"]
    if shape.num_experts:
        inner, mlps = shape.moe_intermediate_size, [f"mlp.experts.{i}" for i in range(shape.num_experts)]
        layer |= {"mlp.gate.weight": (shape.num_experts, width)}
    for mlp in mlps:
        layer |= {f"{mlp}.{name}.weight": (inner, width) for name in ("gate_proj", "up_proj")}
        layer |= {f"{mlp}.down_proj.weight": (width, inner)}
    layers = range(shape.num_hidden_layers)
    return {
        EMBEDDING: (shape.vocab_size, width),
        **{f"model.layers.{i}.{name}": size for i in layers for name, size in layer.items()},
        "model.norm.weight": (width,),
        **({} if shape.tie_word_embeddings else {HEAD: (shape.vocab_size, width)}),
    }


def check_weights(where: Path, expected: Shapes, present: Shapes) -> None:
    """Check names and shapes of tensors.

    Args:
        where: the folder or the file, for errors.
        expected: of the model. Without an output layer, that is the embedding, and the files may have a copy.
        present: in the files.
    """
    ignored = {name for name in present if name.endswith(OLD)} | ({HEAD} - expected.keys())
    for name in sorted(expected.keys() | (present.keys() - ignored)):
        if name not in present or name not in expected:
            state = "lacks" if name not in present else "has a superfluous"
            raise UserError(f"{where} does not fit its config.json: it {state} weight {name}.")
        if expected[name] != present[name]:
            raise UserError(
                f"{where} does not fit its config.json: weight {name} has shape {present[name]} where {expected[name]} "
                "is expected."
            )
