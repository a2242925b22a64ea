"""Estimates of memory: a table of plans, numbers worked by hand for a small model, and what sharding does to them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from trainers.families.shape import ModelShape
from trainers.families.table import known_shapes
from trainers.grpo import GRPO, Config
from trainers.model.find import FoundModel
from trainers.setup.card import Memory
from trainers.setup.memory import activation_bytes, frozen_memory, state_bytes, step_moments, trainer_memory
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan
from trainers.setup.run_plan import RunPlan

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
SMALL = ModelShape(
    max_position_embeddings=1024,
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
HEAD, LAYER = SMALL.vocab_size * SMALL.hidden_size, SMALL.layer_parameters
BFLOAT16 = "--training.dtype=bfloat16"


def plan_with(shape: ModelShape, *options: str, tokens: int = 16) -> RunPlan:
    """A run on CPUs with micro-batches of so many tokens."""
    config = read_config(Config, [f"--training.max_tokens_per_micro_batch={tokens}", *options])
    model = FoundModel(shape=shape, where="")
    return RunPlan(user_config=config, config=config, defaults={}, algorithm=GRPO, model=model, objective=None)


PLANS = Path(__file__).with_name("planned_memory.txt").read_text()


@pytest.mark.parametrize("planned", PLANS.strip().split("\n\n"), ids=lambda planned: planned.partition("\n")[0])
def test_planned_memory_of_known_models(planned: str) -> None:
    first, _, memory = planned.partition("\n")
    service, _, model, *options = first.split()
    gpus = [
        "--generator.with_gpus",
        "--trainer.with_gpus",
        "--launcher.gpus_per_host=8",
        "--launcher.gpu_memory_gib=141",
        "--training.max_tokens_per_micro_batch=4096",
        *([] if "--training.compile" in options else ["--training.compile=false"]),
    ]
    plan = make_plan(read_config(Config, [f"--model=Qwen/Qwen3-{model}", *gpus, *options]), GRPO)
    found = next(memory for process, memory in plan.processes if process.service == service)
    assert str(found).split() == memory.split()


def test_a_trainer_alone_in_float32() -> None:
    memory = trainer_memory(plan_with(SMALL))
    (step,) = memory.phases  # its own weights are published as they are, one by one
    assert memory.always == {"state": 16.0 * PARAMETERS}
    # 4h + 3q + 3k + 4m = 32 + 24 + 12 + 64 = 132 numbers a token and layer; of one, gradients 2m + h = 40
    assert step == {"activations": 4.0 * 16 * (2 * 132 + 40)}
    large = replace(SMALL, vocab_size=1000)  # its logits, of 2 tokens at a time, are more than those gradients
    (step,) = trainer_memory(plan_with(large)).phases
    assert step == {"activations": 4.0 * 16 * 2 * 132, "logits": 16 * 1000 * 4 / 8}
    assert memory.total == 16 * PARAMETERS + 4.0 * 16 * (2 * 132 + 40)


@pytest.mark.parametrize("result, tokens", [("gpu_trainer", 32768), ("gpu_trainer_16", 16384)])
def test_what_was_measured_on_a_gpu_is_met_to_15_percent(result: str, tokens: int) -> None:
    measured = json.loads((RESULTS / f"{result}.json").read_text())["rl"]["peak_bytes"]
    plan = plan_with(known_shapes()["Qwen/Qwen3-0.6B"], "--trainer.with_gpus", "--training.compile", tokens=tokens)
    memory = trainer_memory(plan)
    tensors = memory.total - memory.always["runtime"] - memory.phases[0]["workspaces"]
    assert tensors == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_that_keeps_the_versions_of_the_engines(ranks: int) -> None:
    plan = plan_with(SMALL, "--generator.with_gpus", f"--trainer.procs={ranks}")
    memory = trainer_memory(plan, versions=4.0 * PARAMETERS)
    assert memory.always == {"state": 16.0 * PARAMETERS / ranks, "versions": 4.0 * PARAMETERS}
    # The largest matrix has 8 x 16 parameters: that of the MLP, and the fused one of attention.
    assert memory.phases[1] == {"published": ranks * 2.0 * 128}
    assert memory.at_rest == 12.0 * PARAMETERS / ranks + 4.0 * PARAMETERS, "without gradients"


def test_ranks_that_share_rows_have_a_part_of_the_activations_and_all_keys_and_values() -> None:
    context = ("--trainer.procs=4", "--parallelism.context_parallel_degree=4")
    memory = trainer_memory(plan_with(SMALL, *context))
    assert memory.always == {"state": 16.0 * PARAMETERS / 4}
    # 4 tokens of its own, with 132 numbers a layer; keys and values, 2 x 4, of 12 others
    assert memory.phases[0]["activations"] == 4.0 * 2 * (4 * 132 + 12 * 8) + 4 * 4 * 40
    full = activation_bytes(plan_with(SMALL, *context, "--training.activation_checkpoint=full"), 4)
    assert full == (4.0 * 4 * 2 * 8, 4.0 * (4 * (132 + 40) + 12 * 8))


def test_checkpointing_keeps_less() -> None:
    shape = replace(SMALL, num_hidden_layers=20)
    none, selective, attention, full = (
        activation_bytes(plan_with(shape, BFLOAT16, f"--training.activation_checkpoint={mode}"), 16)
        for mode in ("none", "selective", "attention", "full")
    )
    compiled = activation_bytes(plan_with(shape, BFLOAT16, "--training.compile"), 16)
    assert sum(full) < sum(attention) < sum(selective) < sum(compiled) < sum(none)
    assert compiled == (2 * 16 * 20 * 3 * (8 + 8 + 4 + 16), 2 * 16 * 40)
    assert selective == (2 * 16 * 20 * (16 + 16 + 8 + 16), 2 * 16 * (132 + 40))
    assert attention == (2 * 16 * 20 * (8 + 8), 2 * 16 * (132 + 40))
    assert full == (2 * 16 * 20 * 8, 2 * 16 * (132 + 40))


def test_offloaded_weights_and_smaller_moments_leave_the_gpu() -> None:
    def memory_of(*options: str, ranks: int = 2) -> Memory:
        return trainer_memory(plan_with(SMALL, "--trainer.with_gpus", f"--trainer.procs={ranks}", *options))

    plain = memory_of()
    assert plain.always["state"] == state_bytes(SMALL) / 2 == 8 * PARAMETERS
    assert memory_of("--training.optimizer_state=bfloat16").always["state"] == 6 * PARAMETERS
    small = memory_of("--training.optimizer_state=8bit").always["state"]
    assert small == pytest.approx((8 * PARAMETERS + 2.03125 * (PARAMETERS - HEAD) + 8 * HEAD) / 2)
    offloaded = memory_of("--training.cpu_offload")
    assert "state" not in offloaded.always and offloaded.at_rest == offloaded.always["runtime"] > 0
    assert offloaded.phases[0]["gradients"] == plain.phases[0]["gradients"] + 4 * PARAMETERS / 2, "and all their sums"
    assert memory_of("--training.cpu_offload", "--training.offload_sums").phases == plain.phases
    replicas = ("--parallelism.data_parallel_replicate_degree=2",)
    copies = memory_of(*replicas, "--training.cpu_offload", ranks=4).phases[0]
    assert copies["gradients"] == plain.phases[0]["gradients"] + 4 * PARAMETERS / 2
    assert memory_of(*replicas, ranks=4) == plain, "in the place of the gradients"


def test_the_moments_of_a_micro_batch_with_sharded_weights() -> None:
    """Of two ranks in bfloat16; a unit's gradients are summed from a buffer in float32 into half of one."""

    def moments(*options: str, shape: ModelShape = SMALL) -> list[tuple[float, float]]:
        return [moment[:2] for moment in step_moments(plan_with(shape, BFLOAT16, "--trainer.procs=2", *options))]

    assert moments() == [
        (2 * HEAD + 2 * LAYER, 2 * HEAD),  # the output layer
        (2 * LAYER, 4 * HEAD + 2 * HEAD),  # the sum of its gradients
        (4 * LAYER, 2 * LAYER + 4 * LAYER),  # a block
        (2 * LAYER, 4 * LAYER + 2 * LAYER),  # the sum of its gradients
    ]
    # Tied to the embedding, the output layer's weights and gradients stay until the end.
    tied = replace(SMALL, tie_word_embeddings=True)
    assert moments(shape=tied)[2] == (4 * LAYER + 2 * HEAD, 6 * LAYER + 2 * HEAD)
    activations = [step_moments(plan_with(shape, BFLOAT16, "--trainer.procs=2"))[1][2] for shape in (tied, SMALL)]
    assert activations[0] == 0 < activations[1]
    fp32_head = moments("--training.fp32_head")
    assert (fp32_head[0][0], fp32_head[1][1]) == (4 * HEAD + 2 * LAYER, 8 * HEAD)
    gathered = [whole for whole, _ in moments("--training.reshard_after_forward=never")]
    assert gathered == [2 * PARAMETERS, *[2 * (PARAMETERS - HEAD)] * 2, 2 * (PARAMETERS - HEAD - LAYER)]


def test_the_tokens_of_a_teacher_are_beside_the_logits() -> None:
    without, with_tokens = (step_moments(plan_with(SMALL, f"--distill.top_k={k}"))[0] for k in (0, 5))
    assert with_tokens[3] - without[3] == 16 * 5 * 20 and with_tokens[:3] == without[:3]


def test_a_reference_model_gathers_what_it_shards() -> None:
    def held(*options: str) -> dict[str, float]:
        plan = plan_with(SMALL, *options, BFLOAT16)
        return frozen_memory(plan, plan.config.services.ref_model, SMALL).always

    alone, shared = held("--ref_model.procs=1"), held("--ref_model.procs=2")
    assert alone["weights"] == 2 * shared["weights"] == 2 * PARAMETERS and "gathered" not in alone
    assert shared["gathered"] == 2 * min(HEAD + 2 * LAYER, PARAMETERS)
    assert held("--ref_model.procs=1", "--training.fp32_head")["weights"] == alone["weights"] + 2 * HEAD
