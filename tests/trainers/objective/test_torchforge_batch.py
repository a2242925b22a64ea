"""Batches in torchforge's form: what they are read as, and one sentence for each that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from forge_env.core.episode import Row
from forge_env.core.errors import UserError
from tests.trainers.objective.four_arguments import MyLoss
from trainers.batching.batch import Sample, pack
from trainers.losses import GRPOLoss, ReinforceLoss
from trainers.objective.loss_call import LossCall
from trainers.objective.torchforge_batch import loss_for, to_samples

PAD = 0
# Two rows: requests of two tokens and of one, padded on the left; responses of three tokens and of one, on the right.
REQUEST = [[5, 6], [PAD, 7]]
RESPONSE = [[1, 2, 3], [4, PAD, PAD]]
MASK = [[True, True, True], [True, False, False]]
REFERENCE = [[-1.0, -2.0, -3.0], [-4.0, -9.0, -9.0]]


def batch(**changes: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """One dict each; `changes` replaces values of the target, and of "tokens"."""
    response = torch.tensor(RESPONSE)
    target = {
        "response": response,
        "ref_logprobs": torch.tensor(REFERENCE),
        "advantages": torch.tensor([[0.5], [-0.25]]),
        "padding_mask": torch.tensor(MASK),
    }
    tokens = changes.pop("tokens", torch.cat([torch.tensor(REQUEST), response], 1))
    return [{"tokens": tokens}], [target | changes]


def read(inputs: Any, targets: Any, ranks: int = 1) -> list[Sample]:
    return to_samples(inputs, targets, ranks=ranks, vocabulary=8)


def test_rows_become_samples() -> None:
    sampled = Row(
        token_ids=(5, 6, 1, 2, 3),
        loss_mask=(False, False, True, True, True),
        generator_logprobs=(0.0,) * 5,
        versions=(-1,) * 5,
    )
    padded = Row(
        token_ids=(PAD, 7, 4, PAD, PAD),
        loss_mask=(False, False, True, False, False),
        generator_logprobs=(0.0,) * 5,
        versions=(-1,) * 5,
    )
    assert read(*batch()) == [
        Sample(rows=(sampled,), advantage=0.5, reference_logprobs=(-1.0, -2.0, -3.0)),
        Sample(rows=(padded,), advantage=-0.25, reference_logprobs=(-4.0,)),
    ]


def test_a_loss_sees_the_tensors_of_the_batch() -> None:
    """The loss layout is laid out over whole rows; on the masked places, in order, it has the batch's own values."""
    generator = torch.tensor(REFERENCE) - 0.5
    given_advantages = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    inputs, targets = batch(generator_logprobs=generator, advantages=given_advantages)
    (micro,) = pack(read(inputs, targets), max_tokens=100, pack_length=0, pad_id=0)
    assert micro.reference_logprobs is not None
    for seen, given in (
        (micro.reference_logprobs, torch.tensor(REFERENCE)),
        (micro.generator_logprobs, generator),
        (micro.advantages, given_advantages),
    ):
        assert torch.equal(seen[micro.loss_mask], given[torch.tensor(MASK)])
    assert micro.targets.tolist() == [1, 2, 3, 4]
    # Place S - R - 1 + i predicts token i of the response, counted from the beginning of its sequence.
    length = micro.tokens.shape[1]
    assert (micro.selected % length).tolist() == [1, 2, 3, 1]


def test_several_ranks_give_a_dict_each_and_their_rows_follow_one_another() -> None:
    inputs, targets = batch()
    short = {"tokens": torch.tensor([[7, 3]])}
    target = {
        "response": torch.tensor([[3]]),
        "ref_logprobs": None,
        "advantages": torch.tensor([[1.0]]),
        "padding_mask": torch.ones(1, 1),
    }
    samples = read([*inputs, short], [*targets, target], ranks=2)
    assert samples[:2] == read(inputs, targets)
    assert tuple(samples[2].rows[0].token_ids) == (7, 3) and samples[2].reference_logprobs is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tokens": torch.tensor([[5, 6, 1, 2, 8], [0, 7, 4, 0, 0]])}, "whole numbers from 0 to 7"),
        ({"tokens": torch.tensor([[5, 6, 1, 2, -3], [0, 7, 4, 0, 0]])}, "whole numbers from 0 to 7"),
        ({"tokens": torch.rand(2, 5)}, "whole numbers from 0 to 7"),
        ({"tokens": torch.zeros(5, dtype=torch.int64)}, r"\['tokens'\] has shape \(5,\)"),
        ({"tokens": [[5, 6]]}, r"\['tokens'\] is a list; it must be a tensor"),
        ({"tokens": torch.tensor(RESPONSE)}, r"\['response'\] has shape \(2, 3\); it must be \(2, R\) with 0 < R < 3"),
        ({"tokens": torch.tensor([[5, 6, 1, 2, 4], [0, 7, 4, 0, 0]])}, "is not the end of"),
        ({"response": torch.tensor([[1, 2, 3]])}, r"\['response'\] has shape \(1, 3\)"),
        ({"padding_mask": torch.ones(2, 5)}, r"\['padding_mask'\] has shape \(2, 5\); it must be \(2, 3\)"),
        ({"advantages": torch.ones(2)}, r"\['advantages'\] has shape \(2,\)"),
        ({"advantages": torch.ones(2, 2)}, r"\['advantages'\] has shape \(2, 2\); it must be \(2, 1\) or \(2, 3\)"),
        ({"ref_logprobs": torch.ones(2, 1)}, r"\['ref_logprobs'\] has shape \(2, 1\); it must be \(2, 3\)"),
        ({"generator_logprobs": torch.ones(3, 3)}, r"\['generator_logprobs'\] has shape \(3, 3\)"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        read(*batch(**changes))
    assert "[0]" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["tokens", "response", "ref_logprobs", "advantages", "padding_mask"])
def test_a_missing_key_is_named(key: str) -> None:
    inputs, targets = batch()
    (inputs if key == "tokens" else targets)[0].pop(key)
    with pytest.raises(UserError, match=rf"\[0\] has no '{key}': it holds .*, and needs "):
        read(inputs, targets)


def test_there_must_be_one_dict_for_each_rank() -> None:
    inputs, targets = batch()
    sentence = "inputs has 1 dicts and targets has 1; the trainer has 2 data-parallel ranks: give one dict for each"
    with pytest.raises(UserError, match=sentence):
        read(inputs, targets, ranks=2)
    with pytest.raises(UserError, match="targets has 2"):
        read(inputs, targets * 2)
    generator = batch(generator_logprobs=torch.zeros(2, 3))
    with pytest.raises(UserError, match="in all of them or none"):
        read([*inputs, *generator[0]], [*targets, *generator[1]], ranks=2)


# ---- the loss of a batch without generator logprobs ----


def test_a_loss_that_needs_missing_generator_logprobs_is_refused() -> None:
    with pytest.raises(UserError, match="'generator_logprobs', which targets do not have"):
        loss_for(GRPOLoss(), batch()[1])
    given = batch(generator_logprobs=torch.zeros(2, 3))[1]
    loss = GRPOLoss()
    assert loss_for(loss, given) is loss


def test_a_loss_that_can_do_without_is_not_given_any() -> None:
    """ReinforceLoss takes the reference model's in their place, so made-up ones would change it."""
    seen: list[set[str]] = []

    def loss(logprobs: Tensor, generator_logprobs: Tensor | None = None, normalizer: Tensor | None = None) -> Tensor:
        seen.append({"generator_logprobs"} if generator_logprobs is not None else set())
        return logprobs.sum()

    call = LossCall(loss_for(loss, batch()[1]))
    assert call.names == {"logprobs", "normalizer"}
    (micro,) = pack(read(*batch()), max_tokens=100, pack_length=0, pad_id=0)
    values = torch.zeros(micro.source.shape, requires_grad=True)
    call(micro, values, None, units=4, normalizer=torch.tensor(4.0))
    assert seen == [set()]


@pytest.mark.parametrize("loss", [MyLoss(), ReinforceLoss(clip_ratio=0.2)])
def test_without_generator_logprobs_a_loss_gets_its_other_tensors(loss: Any) -> None:
    bare, wrapped = LossCall(loss), LossCall(loss_for(loss, batch()[1]))
    assert wrapped.names == bare.names - {"generator_logprobs"}
    assert wrapped.units(7, 3) == bare.units(7, 3)
    assert "reference_logprobs" in bare.names
