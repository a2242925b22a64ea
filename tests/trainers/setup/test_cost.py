"""What a plan says a step costs on a CPU."""

from __future__ import annotations

from tests.helpers.plans import lines_of, plan_of
from trainers.families.table import known_shapes
from trainers.model.find import made_shape
from trainers.setup.describe import RATE, duration, flops_of_token


def test_the_cost_of_a_step_follows_tokens_and_parameters() -> None:
    shape = made_shape("tiny")
    multiplied = shape.parameters - 640 * 128 - 128  # the embedding is looked up; the last norm is a handful
    flops = 8 * multiplied * 96 * 512
    [said] = lines_of(plan_of(), "cost of a step")
    assert said.startswith(f"at most {flops:.0e} FLOPs, with 49,152 tokens ")
    assert f"roughly {duration(flops / RATE)} on two cores, and {duration(120 * flops / RATE)} for all steps" in said


def test_adapters_cost_less_and_idle_experts_nothing() -> None:
    dense, experts = known_shapes()["Qwen/Qwen3-8B"], known_shapes()["Qwen/Qwen3-30B-A3B"]
    assert 4 * flops_of_token(dense, has_adapters=True) == 3 * flops_of_token(dense)
    assert flops_of_token(experts) < flops_of_token(dense)
