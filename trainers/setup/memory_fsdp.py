"""What FSDP holds on one rank beside its shards: weights gathered whole, and gradients on their way to the shards.

FSDP works on one unit after the other: the output layer, each block, the embedding; the output layer and the embedding
are one unit where they are tied. Of a unit with U parameters it holds, as in torch.distributed.fsdp._fully_shard
(`FSDPParamGroup`, and `foreach_reduce` of _fsdp_collectives.py), with c bytes of a number in the compute dtype:

- c U: its weights, gathered. With several ranks also those of the next unit, in the buffer that they come in.
- c U: its gradients, whole.
- 4 U: the float32 buffer that they are summed from. It is kept until the next unit has its gradients.
- 4 U / ranks: this rank's part of the sum, before it is added to the shard's gradient. One process has that twice: it
  divides the whole buffer into a third one.

Of a tied unit the output layer's and the embedding's gradients are added; with tensor parallelism, out of place.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainers.model.shape import ModelShape

REDUCED = 4
"""Bytes of a number in the buffers that gradients are summed in: float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment of a micro-batch at which a rank may hold the most."""

    gathered: float = 0.0
    """Bytes of weights."""
    gradients: float = 0.0
    """Bytes of gradients that the shards do not have yet."""
    has_activations: bool = True
    has_logits: bool = False
    is_in_block: bool = False
    """Whether the backward pass is in a block: it has gradients of activations, and computes activations again."""


def fsdp_moments(
    shape: ModelShape,
    *,
    shard: int,
    compute: int,
    in_head: int,
    reshard: str,
    tensor: int = 1,
    adapter: int = 0,
    expert: int = 1,
) -> list[Moment]:
    """The moments of a micro-batch, in bytes over all `tensor` ranks that each matrix is cut over.

    Args:
        shape: the model.
        shard: ranks that the weights are sharded over.
        compute: bytes of a number in the forward pass, 2 or 4.
        in_head: likewise in the output layer.
        reshard: as `training.reshard_after_forward`.
        tensor: ranks that each matrix is cut over.
        adapter: parameters of the adapters of a block, which alone have gradients then; 0 where all weights have.
        expert: ranks that the experts of a layer are spread over: of these a rank gathers its own.
    """
    head, tied = shape.vocab_size * shape.hidden_size, shape.tie_word_embeddings
    # Parameters of a block that other ranks gather.
    elsewhere = shape.expert_parameters * (1 - tensor / expert) if expert > 1 else 0
    block, whole = shape.layer_parameters - elsewhere, shape.parameters - elsewhere * shape.num_hidden_layers
    if adapter:
        return _moments_of_adapters(
            shape,
            shard=shard,
            compute=compute,
            of_head=in_head * head,
            reshard=reshard,
            adapter=adapter,
            elsewhere=elsewhere,
        )
    of_head, of_block = in_head * head, compute * block
    # A tied unit stays until the embedding has its gradients, and is summed last.
    stays = of_head if tied else 0
    before = block if tied else max(head, block)
    if reshard == "never":  # each unit is freed when its own gradients are there
        at_head = compute * (whole - head) + of_head
        in_block = at_head - (of_head - stays)
        summing_head, summing_block = (0 if tied else in_block), in_block - of_block
    else:
        coming = of_block if shard > 1 else 0
        at_head, in_block = of_head + coming, of_block + coming + stays
        summing_head, summing_block = coming, coming + stays
    moments = [
        # The output layer's gradients, or before them the buffer in which its weights came.
        Moment(gathered=at_head, gradients=of_head, has_logits=True),
        Moment(gathered=summing_head, gradients=_summed(head, shard, in_head), has_activations=not tied),
        Moment(gathered=in_block, gradients=of_block + REDUCED * before + stays, is_in_block=True),
        Moment(gathered=summing_block, gradients=_summed(block, shard, compute) + stays),
    ]
    if tied and tensor > 1:
        added = 3 * of_head + REDUCED * block
        moments.append(Moment(gathered=stays, gradients=added, has_activations=False))
    return moments


def _moments_of_adapters(
    shape: ModelShape, *, shard: int, compute: int, of_head: int, reshard: str, adapter: int, elsewhere: float
) -> list[Moment]:
    """The same where all weights but adapters are frozen: gathered as ever, and without gradients."""
    of_block = compute * (shape.layer_parameters - elsewhere + adapter)
    coming = of_block if shard > 1 else 0
    head, in_block = of_head + coming, of_block + coming + of_head * shape.tie_word_embeddings
    if reshard == "never":
        whole = compute * (shape.parameters + (adapter - elsewhere) * shape.num_hidden_layers)
        head = in_block = whole + of_head - compute * shape.vocab_size * shape.hidden_size
    gradients = max(compute * adapter + REDUCED * adapter, _summed(adapter, shard, compute))
    buffer = of_head if shard > 1 else 0  # in which the output layer's weights came
    return [
        Moment(gathered=head, gradients=buffer, has_logits=True),
        Moment(gathered=in_block, gradients=gradients, is_in_block=True),
    ]


def _summed(unit: float, shard: int, compute: int) -> float:
    """Bytes while the gradients of a unit of so many parameters are summed."""
    return REDUCED * unit + max(compute * unit, REDUCED * unit * (2 if shard == 1 else 1 / shard))
