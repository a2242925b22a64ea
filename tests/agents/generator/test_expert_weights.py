"""The names of experts' weights: all of them must come, and vLLM gets the stacks of gpt-oss one by one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from agents.generator.expert_weights import check_complete, one_by_one
from forge_env.core.errors import UserError

GPT_OSS = SimpleNamespace(model_type="gpt_oss", num_local_experts=3, num_hidden_layers=2)
STACKS = [
    f"model.layers.{layer}.mlp.experts.{name}_proj{kind}"
    for layer in range(2)
    for name in ("gate_up", "down")
    for kind in ("", "_bias")
]


@pytest.mark.parametrize("missing", STACKS)
def test_every_stack_of_every_layer_must_come(missing: str) -> None:
    check_complete(GPT_OSS, STACKS)
    with pytest.raises(UserError, match=f"must be complete, and {missing} is missing"):
        check_complete(GPT_OSS, [name for name in STACKS if name != missing])


def test_dense_layers_have_no_experts() -> None:
    config = SimpleNamespace(model_type="glm4_moe", num_local_experts=1, num_hidden_layers=2, first_k_dense_replace=1)
    names = [f"model.layers.1.mlp.experts.0.{matrix}_proj.weight" for matrix in ("gate", "up", "down")]
    check_complete(config, names)
    with pytest.raises(UserError, match=r"and model\.layers\.1\.mlp\.experts\.0\.down_proj\.weight is missing"):
        check_complete(config, names[:-1])


def test_a_stack_is_given_expert_by_expert_and_other_weights_as_they_are() -> None:
    stack, norm = torch.arange(24.0).view(3, 2, 4), torch.ones(4)
    names = (
        "model.layers.1.mlp.experts.gate_up_proj",
        "model.layers.1.mlp.experts.0.up_proj.weight",
        "model.norm.weight",
    )
    given = dict(one_by_one({names[0]: stack, names[1]: norm, names[2]: norm}))
    assert list(given) == [*(f"model.layers.1.mlp.experts.{i}.gate_up_proj" for i in range(3)), *names[1:]]
    assert all(torch.equal(given[f"model.layers.1.mlp.experts.{i}.gate_up_proj"], stack[i]) for i in range(3))
