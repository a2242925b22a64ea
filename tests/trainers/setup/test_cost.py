"""What a plan says a step costs on a CPU."""

from __future__ import annotations

from trainers import sft
from trainers.families.table import known_shapes
from trainers.grpo import GRPO
from trainers.model.find import made_shape
from trainers.setup.describe import RATE, describe_cost, describe_plan, duration, flops_of_token
from trainers.setup.options.read_config import read_config
from trainers.setup.plan import make_plan

ON_CPU = ("--trainer.with_gpus=false", "--generator.with_gpus=false")


def cost_of(*arguments: str) -> str:
    plan = make_plan(read_config(GRPO.config, [*ON_CPU, *arguments]), GRPO)
    return next((text for name, text in describe_plan(plan) if name == "cost of a step"), "")


def test_the_cost_of_a_step_follows_tokens_and_parameters() -> None:
    shape = made_shape("tiny")
    multiplied = shape.parameters - 640 * 128 - 128  # the embedding is looked up; the last norm is a handful
    flops = 8 * multiplied * 96 * 512
    said = cost_of()
    assert said.startswith(f"at most {flops:.0e} FLOPs, with 49,152 tokens ")
    assert f"roughly {duration(flops / RATE)} on two cores, and {duration(120 * flops / RATE)} for all steps" in said
    assert "roughly 2 s on two cores" in said, "the demo takes 1.3 s"


def test_a_run_that_belongs_on_a_gpu_shows_at_once() -> None:
    assert "hours on two cores, and" in cost_of("--model=Qwen/Qwen3-0.6B")
    assert "days for all" in cost_of("--model=Qwen/Qwen3-8B")
    assert cost_of("--env.max_tokens=256") != cost_of("--env.max_tokens=1024")


def test_adapters_cost_less_and_idle_experts_nothing() -> None:
    dense, experts = known_shapes()["Qwen/Qwen3-8B"], known_shapes()["Qwen/Qwen3-30B-A3B"]
    assert 4 * flops_of_token(dense, has_adapters=True) == 3 * flops_of_token(dense)
    assert flops_of_token(experts) < flops_of_token(dense)


def test_neither_a_gpu_nor_supervised_training_nor_an_unknown_model_has_the_line() -> None:
    plan = make_plan(read_config(GRPO.config, ["--trainer.with_gpus", "--generator.with_gpus"]), GRPO)
    assert describe_cost(plan) == "" and cost_of("--model=nobody/knows-this") == ""
    supervised = make_plan(read_config(sft.SFT.config, [*ON_CPU, "--env=math"]), sft.SFT)
    assert describe_cost(supervised) == ""
