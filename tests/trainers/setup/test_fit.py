"""Whether a run fits on its GPUs, from its config and the size of a GPU; no GPU is needed for it."""

from __future__ import annotations

import re

import pytest

from forge_env.core.errors import UserError
from tests.helpers.rows import rows
from trainers import sft
from trainers.grpo import GRPO, Config
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan
from trainers.setup.run_plan import RunPlan

ONE = ("--model=Qwen/Qwen3-0.6B", "--generator.with_gpus", "--trainer.with_gpus", "--launcher.gpus_per_host=1")
LONG = ("--training.max_tokens_per_micro_batch=32768",)


def plan_of(*arguments: str) -> RunPlan:
    tokens = [] if any("micro_batch" in argument for argument in arguments) else ["4096"]
    fixed = ["--training.compile=false", *(f"--training.max_tokens_per_micro_batch={count}" for count in tokens)]
    return make_plan(read_config(Config, [*fixed, *arguments]), GRPO)


def problems(plan: RunPlan) -> list[str]:
    """Except for the GPUs and the shared memory that this machine may lack."""
    lacks = ("the run needs ", "--weights.store is auto, which leaves shared memory, ")
    return [problem for problem in plan.problems if not problem.startswith(lacks)]


def test_a_card_that_is_too_small_is_refused_with_settings_that_fit() -> None:
    (problem,) = problems(plan_of(*ONE, *LONG, "--launcher.gpu_memory_gib=40"))
    assert problem.startswith("a GPU has 40.0 GiB, and the estimate is more: GPU 0: rollouts ")
    remedy = problem.partition("; it fits with ")[2]
    assert remedy == "--training.max_tokens_per_micro_batch 8192", "the cheapest, and not less than is needed"
    plan = plan_of(*ONE, *LONG, "--launcher.gpu_memory_gib=40", *remedy.split())
    assert problems(plan) == []
    assert all(card.worst <= 40 * 2**30 for card in plan.cards)


@pytest.mark.parametrize("size", [40, 80, 141])
def test_the_plan_never_says_yes_to_more_than_a_card_has(size: int) -> None:
    for tokens in (4096, 16384, 65536):
        options = [f"--launcher.gpu_memory_gib={size}", f"--training.max_tokens_per_micro_batch={tokens}"]
        plan = plan_of(*ONE, *options)
        assert bool(problems(plan)) is any(card.worst > size * 2**30 for card in plan.cards)


def test_the_engine_sleeps_if_both_do_not_fit() -> None:
    small, large = (plan_of(*ONE, "--env.max_tokens=512", f"--launcher.gpu_memory_gib={size}") for size in (24, 80))
    assert small.engine.sleep and not large.engine.sleep
    assert "sleeps while the trainer steps" in small.about_engine and "there is room" in large.about_engine
    assert small.engine.kv_cache_gib < large.engine.kv_cache_gib
    assert list(small.cards[0].phases) == ["rollouts", "training"]


def test_a_cache_that_is_asked_for_counts_and_is_checked() -> None:
    assert plan_of(*ONE, "--launcher.gpu_memory_gib=80", "--generator.kv_cache_gib=7").engine.kv_cache_gib == 7.0
    (problem,) = problems(plan_of(*ONE, "--launcher.gpu_memory_gib=80", "--generator.kv_cache_gib=100"))
    assert "it fits with --services.generator.kv_cache_gib 0" in problem


def test_a_gpu_of_unknown_size_refuses_nothing_and_the_plan_says_so() -> None:
    plan = plan_of(*ONE, *LONG)
    if plan.card is None:  # on a machine without GPUs
        assert problems(plan) == [] and any("--launcher.gpu_memory_gib" in text for text in plan.missing)


def test_supervised_training_on_data_has_no_engine_to_make_room_for() -> None:
    gpu = ("--launcher.gpus_per_host=1", "--launcher.gpu_memory_gib=24", "--trainer.with_gpus", "--generator.with_gpus")
    plan = make_plan(read_config(sft.Config, ["--sft.data=somebody/chats", "--model=Qwen/Qwen3-0.6B", *gpu]), sft.SFT)
    assert [list(phase) for card in plan.cards for phase in card.phases.values()] == [["trainer"]]


def test_sleep_that_cannot_be_is_refused() -> None:
    sleep = "--generator.sleep=yes"
    with pytest.raises(UserError, match="sleep is yes, and episodes are in flight while the trainer steps"):
        plan_of(*ONE, sleep, "--training.staleness=1")
    with pytest.raises(UserError, match="no trainer is on the engine's GPU"):
        plan_of(*ONE[:3], "--launcher.gpus_per_host=2", sleep)
    assert problems(plan_of(sleep)) == [], "on a CPU the engine just stops"


@pytest.mark.parametrize(
    ("option", "words"),
    [("--generator.engine.block_siz=16", "Did you mean block_size?"), ("--generator.engine.model=x", "it is --model")],
)
def test_settings_of_vllm_that_the_run_sets_or_nobody_knows_are_refused(option: str, words: str) -> None:
    with pytest.raises(UserError, match=r"^--services\.generator\.engine\..*" + re.escape(words)):
        plan_of(option)


def test_a_step_of_the_engine_has_room_for_a_token_of_each_request() -> None:
    with pytest.raises(UserError, match="batched_tokens is 255, .* requests that it takes at once, 256, at least"):
        plan_of(*ONE, "--generator.engine.max_num_batched_tokens=255")
    assert problems(plan_of(*ONE, "--generator.engine.max_num_batched_tokens=256")) == []


def test_settings_of_vllm_reach_the_engine() -> None:
    arguments = ("--generator.engine.block_size=32", "--generator.engine.speculative_config.method=ngram")
    plan = plan_of(*ONE, *arguments)
    assert plan.engine.engine_args == {"block_size": 32, "speculative_config": {"method": "ngram"}}
    with pytest.raises(UserError, match=r"^--services\.generator\.engine\.speculative_config is refused on a CPU"):
        plan_of(*arguments)


def test_a_snapshot_for_which_a_gpu_has_no_room_may_be_in_shared_memory() -> None:
    sleeps = (*ONE, "--generator.sleep=yes", "--training.cpu_offload", "--training.offload_sums")
    sleeps += ("--training.activation_checkpoint=full", "--training.max_tokens_per_micro_batch=512")
    plan = plan_of(*sleeps, "--launcher.gpu_memory_gib=80")
    assert plan.model.shape is not None and "CUDA IPC" in plan.store_reason
    training = sum(plan.cards[0].phases["training"].values())
    size = training - plan.model.shape.parameters  # half of the snapshot is too much
    option = f"--launcher.gpu_memory_gib={size / 2**30}"
    (problem,) = problems(plan_of(*sleeps, option))
    assert problem.endswith("; it fits with --weights.store shared_memory")
    assert problems(plan_of(*sleeps, option, "--weights.store=shared_memory")) == []


# ---- which settings fit ----

LARGE = ("--model=Qwen/Qwen3-8B", *ONE[1:], "--launcher.gpu_memory_gib=80")


@pytest.mark.parametrize(("options", "fit"), [row[:2] for row in rows(__file__, "remedies.tsv")])
def test_remedies_are_named_from_the_cheapest_on_and_no_more_than_are_needed(options: str, fit: str) -> None:
    first, *others = options.split()
    given = [*{"ONE": ONE, "LARGE": LARGE}[first], *others]
    (problem,) = problems(plan_of(*given))
    named = problem.rpartition("; it fits ")[2].removeprefix("with ")
    assert named == fit
    assert problems(plan_of(*given, *named.rpartition("with ")[2].split())) == []


def test_a_refusal_says_if_no_setting_helps() -> None:
    (problem,) = problems(plan_of(*LARGE, "--launcher.gpu_memory_gib=2"))
    assert problem.endswith("; no setting that was tried makes it fit: take a larger card, or a smaller model")
