"""Estimates of memory: numbers worked by hand for a small model, and what sharding does to them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from trainers.model.shape import KNOWN_SHAPES, ModelShape
from trainers.setup.memory import (
    GIB,
    Memory,
    activation_bytes,
    generator_memory,
    gib,
    reference_memory,
    state_bytes,
    store_memory,
    trainer_memory,
)
from trainers.setup.memory_fsdp import Moment, fsdp_moments

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
SMALL = ModelShape(
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    vocab_size=10,
)
# A layer: q 64, k 32, v 32, o 64, three matrices of 128, two norms of 8 = 592. In all 2 x 592 + 2 x 80 + 8 = 1352.
PARAMETERS = 1352


def test_the_parameters_worked_by_hand() -> None:
    assert SMALL.parameters == PARAMETERS


def test_a_trainer_alone_in_float32() -> None:
    memory = trainer_memory(SMALL, shard=1, tensor=1, tokens=16, compute=4, checkpointing="none")
    (step,) = memory.phases  # its own weights are published as they are, one by one
    assert memory.held == {"state": 16.0 * PARAMETERS}
    # 4h + 3q + 3k + 4m = 32 + 24 + 12 + 64 = 132 numbers a token and layer; of one, gradients 2m + h = 40
    assert step == {"activations": 4.0 * 16 * (2 * 132 + 40)}
    large = replace(SMALL, vocab_size=1000)  # its logits, of 2 tokens at a time, are more than those gradients
    (step,) = trainer_memory(large, shard=1, tensor=1, tokens=16, compute=4, checkpointing="none").phases
    assert step == {"activations": 4.0 * 16 * 2 * 132, "logits": 16 * 1000 * 4 / 8}
    assert memory.total == 16 * PARAMETERS + 4.0 * 16 * (2 * 132 + 40)


@pytest.mark.parametrize("result, tokens", [("gpu_trainer", 32768), ("gpu_trainer_16", 16384)])
def test_what_was_measured_on_a_gpu_is_met_to_15_percent(result: str, tokens: int) -> None:
    measured = json.loads((RESULTS / f"{result}.json").read_text())["rl"]["peak_bytes"]
    memory = trainer_memory(
        KNOWN_SHAPES["Qwen/Qwen3-0.6B"], shard=1, tensor=1, tokens=tokens, compute=2, checkpointing="none",
        compiled=True, kept_logits=10 * GIB, versions=1,
    )  # fmt: skip
    assert memory.total - memory.held["versions"] == pytest.approx(measured, rel=0.15)


def test_a_rank_of_many_holds_its_part() -> None:
    shape = KNOWN_SHAPES["Qwen/Qwen3-8B"]
    memory = trainer_memory(
        shape,
        shard=4,
        tensor=2,
        tokens=65536,
        compute=2,
        checkpointing="full",
        kept_logits=65536 * 151936,
        published=2,
    )
    step, publish = memory.phases
    assert memory.held["state"] == 2 * shape.parameters
    # The output layer is at work: it and its gradients, a block that comes next, and nothing computed again yet.
    head, layer = 151936 * 4096, shape.layer_parameters
    assert step["gathered"] == 2 * (head + layer) / 2
    assert step["gradients"] == 2 * head / 2
    assert step["activations"] == activation_bytes(shape, 65536, compute=2, checkpointing="full")[0] / 2
    assert step["logits"] == 65536 * 151936 * 2 / 2
    assert publish == {"published": 2 * 2.0 * 151936 * 4096}  # the embedding, whole and in pieces, in bfloat16
    assert memory.total == memory.held["state"] + max(sum(step.values()), sum(publish.values()))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_that_keeps_the_versions_of_the_engines(ranks: int) -> None:
    memory = trainer_memory(
        SMALL, shard=ranks, tensor=1, tokens=1, compute=4, checkpointing="none", published=2, versions=2
    )
    assert memory.held == {"state": 16.0 * PARAMETERS / ranks, "versions": 4.0 * PARAMETERS}
    # The largest matrix has 8 x 16 parameters: that of the MLP, and the fused one of attention.
    assert memory.phases[1] == {"published": ranks * 2.0 * 128}


def test_ranks_that_share_rows_have_a_part_of_the_activations_and_all_keys_and_values() -> None:
    memory = trainer_memory(SMALL, shard=4, context=4, tensor=1, tokens=16, compute=4, checkpointing="none")
    assert memory.held == {"state": 16.0 * PARAMETERS / 4}
    # 4 tokens of its own, with 132 numbers a layer; keys and values, 2 x 4, of 12 others
    assert memory.phases[0]["activations"] == 4.0 * 2 * (4 * 132 + 12 * 8) + 4 * 4 * 40
    full = activation_bytes(SMALL, 4, compute=4, checkpointing="full", context=4)
    assert full == (4.0 * 4 * 2 * 8, 4.0 * (4 * (132 + 40) + 12 * 8))


def test_checkpointing_keeps_less() -> None:
    shape = replace(SMALL, num_hidden_layers=20)
    none, selective, full = (
        activation_bytes(shape, 16, compute=2, checkpointing=mode) for mode in ("none", "selective", "full")
    )
    compiled = activation_bytes(shape, 16, compute=2, checkpointing="none", compiled=True)
    assert sum(full) < sum(selective) < sum(compiled) < sum(none)
    assert compiled == (2 * 16 * 20 * 3 * (8 + 8 + 4 + 16), 2 * 16 * 40)
    assert selective == (2 * 16 * 20 * (16 + 16 + 8 + 16), 2 * 16 * (132 + 40))
    assert full == (2 * 16 * 20 * 8, 2 * 16 * (132 + 40))


def test_an_engine_holds_weights_and_cache() -> None:
    assert generator_memory(SMALL, tensor=1, compute=2, cache=7.0).held == {"weights": 2 * PARAMETERS, "cache": 7.0}
    assert generator_memory(SMALL, tensor=2, compute=4, cache=7.0).held == {"weights": 2 * PARAMETERS, "cache": 7.0}


def test_who_receives_the_weights_has_memory_for_them() -> None:
    for ranks in (1, 2):
        engine = generator_memory(SMALL, tensor=ranks, compute=2, cache=7.0, received=2.0 * PARAMETERS)
        assert engine.held["received"] == 2.0 * PARAMETERS


def test_offloaded_weights_and_smaller_moments_leave_the_gpu() -> None:
    usual = {"shard": 2, "tensor": 1, "tokens": 16, "compute": 2, "checkpointing": "none"}
    head = SMALL.vocab_size * SMALL.hidden_size
    plain = trainer_memory(SMALL, **usual)
    assert plain.held["state"] == state_bytes(SMALL) / 2 == 8 * PARAMETERS
    assert trainer_memory(SMALL, **usual, optimizer="bfloat16").held["state"] == 6 * PARAMETERS
    small = trainer_memory(SMALL, **usual, optimizer="8bit").held["state"]
    assert small == pytest.approx((8 * PARAMETERS + 2.03125 * (PARAMETERS - head) + 8 * head) / 2)
    offloaded = trainer_memory(SMALL, **usual, offloaded=True)
    assert "state" not in offloaded.held and offloaded.at_rest == 0
    assert offloaded.phases == plain.phases
    # Replicas of offloaded weights: sums wait on the GPU for the end of the step.
    copies = trainer_memory(SMALL, **usual, offloaded=True, replicas=2).phases[0]
    assert copies["gradients"] == plain.phases[0]["gradients"] + 4 * PARAMETERS / 2
    assert trainer_memory(SMALL, **usual, replicas=2) == plain, "in the place of the gradients"


def test_the_moments_of_a_micro_batch_with_sharded_weights() -> None:
    """Of two ranks in bfloat16; a unit's gradients are summed from a buffer in float32 into half of one."""
    head, layer = SMALL.vocab_size * SMALL.hidden_size, SMALL.layer_parameters

    def moments(shape: ModelShape = SMALL, in_head: int = 2, reshard: str = "default") -> list[Moment]:
        return fsdp_moments(shape, shard=2, compute=2, in_head=in_head, reshard=reshard)

    at_head, summing_head, in_block, summing_block = moments()
    assert at_head == Moment(gathered=2 * head + 2 * layer, gradients=2 * head, has_logits=True)
    assert summing_head == Moment(gathered=2 * layer, gradients=4 * head + 2 * head)
    assert in_block == Moment(gathered=4 * layer, gradients=2 * layer + 4 * layer, is_in_block=True)
    assert summing_block == Moment(gathered=2 * layer, gradients=4 * layer + 2 * layer)
    # Tied to the embedding, the output layer's weights and gradients stay until the end.
    tied = moments(replace(SMALL, tie_word_embeddings=True))
    assert tied[2] == Moment(gathered=in_block.gathered + 2 * head, gradients=6 * layer + 2 * head, is_in_block=True)
    assert not tied[1].has_activations and all(moment.has_activations for moment in moments())
    assert moments(in_head=4)[0].gathered == 4 * head + 2 * layer
    assert moments(in_head=4)[1].gradients == 8 * head
    whole = moments(reshard="never")
    assert whole[0].gathered == 2 * PARAMETERS and whole[1].gathered == 2 * (PARAMETERS - head)
    assert whole[3].gathered == 2 * (PARAMETERS - head - layer)


def test_the_reference_and_the_store() -> None:
    assert reference_memory(SMALL, tokens=8, compute=4).held["weights"] == 4 * PARAMETERS
    alone, shared = (reference_memory(SMALL, tokens=8, compute=2, shard=shard).held for shard in (1, 2))
    head, layer = SMALL.vocab_size * SMALL.hidden_size, SMALL.layer_parameters
    assert alone["weights"] == 2 * shared["weights"] == 2 * PARAMETERS and "gathered" not in alone
    assert shared["gathered"] == 2 * min(head + 2 * layer, PARAMETERS)
    wide = reference_memory(SMALL, tokens=8, compute=2, fp32_head=True).held
    assert wide["weights"] == alone["weights"] + 2 * head
    assert [store_memory(size * PARAMETERS).total for size in (2, 4)] == [4 * PARAMETERS, 8 * PARAMETERS]


@pytest.mark.parametrize(("value", "text"), [(12.34, "12.3"), (1.234, "1.23"), (0.0123, "0.012"), (0.0, "0.000")])
def test_gibibytes_are_short(value: float, text: str) -> None:
    assert gib(value * GIB) == text


def test_parts_are_told_apart() -> None:
    memory = Memory(held={"state": 2.0 * GIB}, phases=({"a": 1.0 * GIB, "b": 1.0 * GIB}, {"c": 3.0 * GIB}))
    assert (str(memory), gib(memory.total)) == ("state 2.00 + a 1.00, b 1.00 or c 3.00", "5.00")
    assert (str(Memory()), Memory().total) == ("", 0.0)
