"""The settings of adapters: what they come to, how many parameters are trained, and a sentence for every mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agents.generator.adapter_folder import CONFIG, WEIGHTS
from agents.generator.lora_slot import TARGETS, slot_arguments
from forge_env.core.errors import UserError
from tests.helpers.plans import ALGORITHMS, lines_of, plan_of
from tests.trainers.setup.test_memory import SMALL, plan_with
from trainers.lora import Lora, LoraConfig, adapter_config
from trainers.setup.memory import adapter_bytes, step_moments, trainer_memory
from trainers.setup.run_plan import RunPlan

MODEL = "--model=Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_adapters(algorithm: str) -> None:
    arguments = ["--lora.rank", "16", "--lora.alpha", "8", "--lora.targets", "v_proj,q_proj"]
    plan = plan_of("--model=Qwen/Qwen3-0.6B", *arguments, algorithm=algorithm)
    assert not [problem for problem in plan.problems if "memory" not in problem]
    assert plan.trainer.lora == Lora(rank=16, alpha=8.0, targets=("q_proj", "v_proj"))
    assert plan_of(algorithm=algorithm).trainer.lora is None


def test_an_engine_gets_merged_weights_or_adapters() -> None:
    merged, alone = plan_of(MODEL, "--lora.rank=10"), plan_of(MODEL, "--lora.rank=10", "--lora.publish=adapter")
    assert (merged.engine.lora_rank, alone.engine.lora_rank) == (0, 10)
    assert slot_arguments(merged.engine.lora_rank) == {}
    slot = {"enable_lora": True, "max_loras": 1, "max_lora_rank": 16, "lora_target_modules": list(TARGETS)}
    assert slot_arguments(alone.engine.lora_rank) == slot
    assert slot_arguments(10, num_names=2) == slot | {"max_loras": 3}


@pytest.mark.parametrize(
    ("arguments", "rank", "words"),
    [
        ("", 0, "and cast to its float32: an engine in float32 has merged weights without rounding"),
        ("--generator.with_gpus", 16, "sent to it: an engine in bfloat16 would round small updates of merged"),
        ("--generator.with_gpus --lora.publish=merged", 0, "cast to its bfloat16: as --lora.publish says"),
        ("--lora.publish=adapter", 16, "sent to it: as --lora.publish says"),
        ("--generator.with_gpus --lora.rank=600", 0, "the engine takes adapters of rank up to 512"),
    ],
)
def test_what_the_engine_gets_is_chosen_by_its_dtype(arguments: str, rank: int, words: str) -> None:
    plan = plan_of(MODEL, "--lora.rank=16", arguments)
    assert plan.engine.lora_rank == rank and plan.trainer.lora.publish == ("adapter" if rank else "merged")
    assert words in lines_of(plan, "adapters")[0]


def test_an_engine_of_a_model_with_experts_gets_merged_weights() -> None:
    arguments = "--generator.with_gpus --lora.rank=16 --lora.targets=q_proj,v_proj"
    plan = plan_of("--model=Qwen/Qwen3-30B-A3B", arguments)
    assert plan.engine.lora_rank == 0 and plan.trainer.lora.publish == "merged"
    assert "cast to its bfloat16: the model has experts, and their kernels differ" in lines_of(plan, "adapters")[0]


def test_the_plan_counts_what_an_engine_with_adapters_has() -> None:
    """The slot and the adapter in the engine, and snapshots of adapters, not of weights, wherever they are kept."""
    arguments = ["--model=Qwen/Qwen3-8B", "--generator.with_gpus", "--trainer.with_gpus", "--launcher.gpus_per_host=2"]
    arguments += ["--launcher.gpu_memory_gib=141", "--lora.rank=16"]
    alone, merged = plan_of(*arguments), plan_of(*arguments, "--lora.publish=merged")
    adapter, weights = 2 * 43_646_976, 2 * 8_190_735_360

    def held(plan: RunPlan, service: str) -> dict[str, float]:
        (memory,) = [memory for process, memory in plan.processes if process.service == service]
        assert memory is not None
        return dict(memory.always)

    assert held(alone, "generator")["adapter"] == 2 * adapter, "the slot of rank 16, and the adapter"
    assert "adapter" not in held(merged, "generator")
    assert held(alone, "trainer")["versions"] % adapter == 0 < held(alone, "trainer")["versions"] < weights
    assert held(merged, "trainer")["versions"] % weights == 0


def test_tensor_parallelism_cuts_one_half_of_each_slot() -> None:
    lora = Lora(rank=2, alpha=4.0, publish="adapter")  # in a slot of rank 8
    one, two = (adapter_bytes(SMALL, lora, compute=2, tensor=tensor) for tensor in (1, 2))
    # Of SMALL: inputs and outputs of q 8 8, k 8 4, v 8 4, o 8 8, gate and up 8 16, down 16 8; two layers.
    cut = 8 + 4 + 4 + 8 + 16 + 16 + 16
    assert one == 2 * (8 * 2 * (8 + 8 + 8 + 8 + 8 + 8 + 8 + cut) + lora.parameters(SMALL))
    assert one - two == 2 * 8 * 2 * cut / 2
    plan = plan_with(SMALL, "--lora.rank=2", "--lora.publish=adapter", "--generator.with_gpus")
    assert trainer_memory(plan).phases[1] == {"published": (4 + 4 + 2) * 2 * 16}, "the largest half"


def test_all_linear_is_every_matrix_of_a_block() -> None:
    lora = LoraConfig(rank=2).resolve("float32")
    assert lora is not None and lora.targets == TARGETS and lora.scaling == 16.0
    # Of SMALL: inputs and outputs of q 8 8, k 8 4, v 8 4, o 8 8, gate and up 8 16, down 16 8.
    assert lora.parameters_of_layer(SMALL) == 2 * (16 + 12 + 12 + 16 + 24 + 24 + 24)
    assert lora.parameters(SMALL) == 2 * lora.parameters_of_layer(SMALL)


def test_a_penalty_needs_no_second_model() -> None:
    arguments = ["--model=Qwen/Qwen3-0.6B", "--lora.rank=4", "--grpo.beta=0.1"]
    plan, in_reward = plan_of(*arguments), plan_of(*arguments, "--grpo.kl_in=reward")
    assert plan.objective is not None and plan.objective.kl_reference == "model"
    assert not plan.placement.has_reference
    assert not [problem for problem in (*plan.problems, *in_reward.problems) if "memory" not in problem]
    without = plan_of("--grpo.beta=0.1").objective
    assert without is not None and without.kl_reference == "generator"


def write(folder: Path, **changes: Any) -> LoraConfig:
    """An adapter's folder of which only the config is looked at, and the settings that start from it."""
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(adapter_config(Lora(rank=4, alpha=8.0), "base") | changes))
    (folder / WEIGHTS).touch()
    return LoraConfig(rank=4, alpha=8.0, adapter=str(folder))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"r": 8}, r"--lora.rank is 4, and the adapter in .* has r = 8: set --lora.rank to that"),
        ({"lora_alpha": 16}, r"--lora.alpha is 8, and the adapter in .* has lora_alpha = 16"),
        ({"use_rslora": True}, "with use_rslora = True, and a trained adapter has one rank"),
        ({"use_dora": True}, "use_dora = True"),
        ({"bias": "all"}, "bias = 'all', which is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"peft_type": "IA3"}, "peft_type = 'IA3', and only 'LORA'"),
    ],
)
def test_an_adapter_of_another_kind_is_refused(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(UserError, match=match):
        write(tmp_path / "adapter", **changes).check()


def test_a_folder_that_is_no_adapter_is_refused(tmp_path: Path) -> None:
    section = write(tmp_path / "adapter")
    with pytest.raises(UserError, match="--lora.rank is 0, which trains all weights"):
        LoraConfig(adapter=section.adapter).check()
    (tmp_path / "adapter" / CONFIG).write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        section.check()
    (tmp_path / "adapter" / CONFIG).unlink()
    with pytest.raises(UserError, match="is no PEFT folder: it has no adapter_config.json"):
        section.check()


def test_memory_of_a_trainer_of_adapters() -> None:
    """Frozen weights in bfloat16; adapters with a gradient and two moments, all in float32."""
    lora, bfloat16 = ("--lora.rank=2", "--lora.publish=merged"), "--training.dtype=bfloat16"
    of_block, layer, head = Lora(rank=2, alpha=4.0).parameters_of_layer(SMALL), SMALL.layer_parameters, 80
    for shard in (1, 2):
        memory = trainer_memory(plan_with(SMALL, *lora, bfloat16, "--generator.with_gpus", f"--trainer.procs={shard}"))
        assert memory.always == {"state": (2 * SMALL.parameters + 16 * 2 * of_block) / shard}
        assert memory.at_rest == (2 * SMALL.parameters + 12 * 2 * of_block) / shard
        assert memory.phases[1] == {"published": (4 + 4 + 2) * 8 * 16}, "the largest target, merged in float32"
    alone = trainer_memory(plan_with(SMALL, *lora))
    assert alone.always == {"state": 4 * SMALL.parameters + 16 * 2 * of_block}
    # 132 numbers a token and layer as without adapters, and 2 of each of the 7; at work 2m + h, and m of an adapter
    assert alone.phases[0] == {"activations": 4.0 * 16 * (2 * (132 + 7 * 2) + 40 + 16)}
    at_head, in_block = step_moments(plan_with(SMALL, *lora, bfloat16, "--trainer.procs=2"))
    gathered = 2 * (layer + of_block)
    assert at_head[:2] == (2 * head + gathered, 2 * head)
    assert in_block[:2] == (2 * gathered, 6 * of_block)


def test_a_plan_says_what_is_trained_and_that_8b_fits_on_one_card() -> None:
    arguments = [
        "--model=Qwen/Qwen3-8B", "--generator.with_gpus", "--trainer.with_gpus", "--env.max_tokens=4096",
        "--env.max_turn_tokens=1024", "--training.packing", "--training.max_tokens_per_micro_batch=8192",
        "--training.activation_checkpoint=full", "--launcher.share_gpus=yes", "--launcher.gpus_per_host=1",
        "--launcher.gpu_memory_gib=80",
    ]  # fmt: skip
    (full,), (card,) = plan_of(*arguments).cards, plan_of(*arguments, "--lora.rank=16").cards
    assert card.worst < 80 * 2**30 < full.worst
    assert any("--training.cpu_offload true" in sentence for sentence in plan_of(*arguments).problems)
    small = plan_of(*arguments, "--lora.rank=16", "--launcher.gpu_memory_gib=24").problems
    assert any("the estimate is more" in sentence for sentence in small)
    assert not any("cpu_offload" in sentence for sentence in small), "which adapters do not work with"
