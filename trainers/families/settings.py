"""What the settings of config.json are to the trainer, for every family that says nothing else of them.

tests/trainers/families/test_settings.py walks what transformers and vLLM read: each name is in one of these sets, or
in a family's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SIZES = (
    *("num_attention_heads", "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"),
    "max_position_embeddings",
)
"""Whole numbers above 0 that every config has."""
OPTIONAL_SIZES = ("num_key_value_heads", "head_dim")


def names(text: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(text.split())


COMPUTED = names("architectures model_type tie_word_embeddings rms_norm_eps layer_types").union(
    SIZES,
    OPTIONAL_SIZES,
    names("rope_parameters rope_scaling rope_theta partial_rotary_factor original_max_position_embeddings"),
)
"""Settings that the trainer computes as both packages do, or checks by `Family.uncomputed`."""
# In this order: of training in transformers, of its outputs, of tokens, of classification and embedding, names, dtypes.
HARMLESS = names(
    """initializer_range attention_dropout use_cache router_aux_loss_coef
    output_hidden_states output_router_logits return_dict chunk_size_feed_forward
    bos_token_id eos_token_id pad_token_id
    id2label label2id problem_type use_pad_token use_sep_token is_matryoshka matryoshka_dimensions embedding_size
    transformers_version pretraining_tp model_max_length dtype torch_dtype"""
)
"""Settings that change nothing of a token's logits in a run."""
# In this order: of attention and MLPs, of weights, RoPE in the names of old folders, what vLLM asks every config for.
REFUSED = names(
    """attention_bias mlp_bias bias qkv_bias qk_norm dual_chunk_attention_config attention_chunk_size sliding_window
    use_sliding_window shared_expert_intermediate_size mlp_only_layers target_layer_count
    quantization_config compression_config head_dtype
    rotary_emb_base rotary_pct rotary_emb_fraction mrope_section xdrope_section
    is_encoder_decoder attn_type_list block_configs canvas_length kv_lora_rank layers_block_type mamba_chunk_size
    chunk_size position_embedding_type hidden_size_per_head is_mm_prefix_lm
    rswa_window text_config vision_config encoder_config thinker_config compress_ratios model qk_nope_head_dim
    num_experts_per_tok num_experts_per_token moe_top_k moe_topk top_k_experts projection_dim projection_size
    ada_rms_norm_t_cond ada_rms_norm_t_cond_dim llama_4_scaling"""
)
"""Settings that must be absent, or say nothing: null, false, 0 or an empty list."""
ONLY: Mapping[str, Any] = {"hidden_act": "silu", "is_causal": True, "logit_scale": 1.0}
"""Settings with the one value that is computed."""
