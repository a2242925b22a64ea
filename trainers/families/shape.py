"""The sizes of a model, as a plan needs them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from forge_env.core.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """The layers of a model with a gated delta rule (arXiv 2412.06464) in the place of attention to all tokens."""

    layers: int
    """Their number."""
    key_heads: int
    value_heads: int
    """A multiple of `key_heads`: neighbours share a head of queries and keys."""
    key_dim: int
    """Size of one head of queries or keys."""
    value_dim: int
    kernel: int
    """Tokens that the convolution of queries, keys and values reads."""

    @property
    def value_size(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def mixed_size(self) -> int:
        """Size of the queries, keys and values together."""
        return 2 * self.key_heads * self.key_dim + self.value_size

    def memory_bytes(self, size: int) -> int:
        """What an engine keeps of a request for one layer: a float32 matrix a head, and the convolution's last tokens
        with `size` bytes a number."""
        return 4 * self.value_heads * self.key_dim * self.value_dim + size * (self.kernel - 1) * self.mixed_size

    def parameters(self, width: int) -> int:
        """Parameters of one such layer's attention, for a model of this width."""
        projections = width * (self.mixed_size + 2 * self.value_size + 2 * self.value_heads)
        return projections + self.kernel * self.mixed_size + 2 * self.value_heads + self.value_dim


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
    vectors_of_layer: int = 0
    """Parameters of a block beside its matrices and its two norms: biases, norms of queries and keys."""
    shares_by_fsdp_only: bool = False
    """Whether only FSDP shares the model between processes, and it takes no adapters."""
    thinks: bool = False
    """Whether models of the family may think before they answer, as Qwen3 does."""
    num_experts: int = 0
    """Experts of each layer, instead of one MLP of `intermediate_size`; 0 for a dense model."""
    num_experts_per_tok: int = 0
    """Experts that compute a token."""
    moe_intermediate_size: int = 0
    """Width of one expert's MLP."""
    shared_size: int = 0
    """Width of the MLP beside the experts, which computes every token; 0 is none."""
    shared_gate: bool = False
    """Whether that MLP's output is multiplied with a gate of its own."""
    dense_layers: int = 0
    """The first layers, which have an MLP of `intermediate_size` instead of experts."""
    gated_attention: bool = False
    """Whether the projection of queries also gives a gate of attention's output."""
    linear: LinearAttention | None = None
    """Layers without keys of all tokens; None if all layers have such keys."""
    gate_up: bool = False
    """Whether the gates and the ups of all experts are one matrix."""
    norms: int = 2
    """Norms of a block over its whole width."""
    plain_norms: int = 0
    """Numbers a token that norms in plain torch take, which keep their input and what they made of it in float32."""
    mlp_numbers: int = 4
    """Numbers that an MLP keeps for each of its hidden ones: the gate, activated too, the up, and the product."""

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Size of the keys alone, or of the values alone."""
        return self.num_key_value_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """Parameters of one transformer block: attention, two norms, and a gated MLP, or a router and its experts.

        Of two kinds of attention, the larger one counts.
        """
        return self._mlp_parameters + 2 * self.hidden_size + max(self._attention_parameters, self._linear_parameters)

    @property
    def _mlp_parameters(self) -> int:
        """Parameters of an MLP, or of a router, its experts and the MLP beside them with its gate."""
        if not self.num_experts:
            return 3 * self.hidden_size * self.intermediate_size
        return self.hidden_size * (self.num_experts + self.shared_gate + 3 * self.shared_size) + self.expert_parameters

    @property
    def _attention_parameters(self) -> int:
        queries = (2 + self.gated_attention) * self.query_size
        return self.hidden_size * (queries + 2 * self.key_value_size) + self.vectors_of_layer

    @property
    def _linear_parameters(self) -> int:
        return self.linear.parameters(self.hidden_size) if self.linear else 0

    @property
    def attention_layers(self) -> int:
        """Layers that attend to the keys of all tokens, or of a window."""
        return self.num_hidden_layers - (self.linear.layers if self.linear else 0)

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
        if not self.num_experts:
            return self.intermediate_size
        return self.num_experts_per_tok * self.moe_intermediate_size + self.shared_size

    @property
    def largest_matrix(self) -> int:
        """Parameters of the largest matrix: the embedding, the MLP's, the stack of all experts, or the fused
        projection, which gated attention has not."""
        mlp = self.num_experts * self.moe_intermediate_size * (1 + self.gate_up) or self.intermediate_size
        linear = self.linear.mixed_size if self.linear else 0
        qkv_size = 2 * self.query_size if self.gated_attention else self.query_size + 2 * self.key_value_size
        return self.hidden_size * max(self.vocab_size, mlp, linear, qkv_size)

    def check_cut(self, option: str, degree: int, *, cuts_experts: bool = True) -> None:
        """Check that every matrix can be cut into `degree` parts."""
        sizes = {"num_attention_heads": self.num_attention_heads, "num_key_value_heads": self.num_key_value_heads}
        if self.num_experts and cuts_experts:
            sizes["moe_intermediate_size"] = self.moe_intermediate_size
        if self.linear:
            sizes |= {"linear_num_key_heads": self.linear.key_heads, "linear_num_value_heads": self.linear.value_heads}
        for name, size in sizes.items():
            if size % degree:
                raise UserError(
                    f"--{option} is {degree}, which does not divide the model's {name}, {size}: choose "
                    f"{divisors(*sizes.values())}"
                )

    @property
    def parameters(self) -> int:
        attention = self.attention_layers * self._attention_parameters
        if self.linear:
            attention += self.linear.layers * self._linear_parameters
        of_experts = self.num_hidden_layers - self.dense_layers
        mlps = of_experts * self._mlp_parameters + self.dense_layers * 3 * self.hidden_size * self.intermediate_size
        norms = (2 * self.num_hidden_layers + 1) * self.hidden_size
        return self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2) + attention + mlps + norms


def divisors(*numbers: int) -> str:
    """The common divisors in words, such as "1, 2 or 4"."""
    common = math.gcd(*numbers)
    *most, last = [str(number) for number in range(1, common + 1) if common % number == 0]
    return f"{', '.join(most)} or {last}" if most else last
