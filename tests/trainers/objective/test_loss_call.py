"""Which tensors a loss is given: by our names and by torchforge's, in a user's signature and in a direct call."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from forge_env.core.episode import Row
from forge_env.core.errors import UserError
from tests.trainers.objective.loss_references import make_batch
from trainers.batching.batch import Sample, pack
from trainers.losses import GRPOLoss, RatioLoss, SFTLoss, SimpleGRPOLoss
from trainers.objective.loss_call import LossCall

TORCHFORGE = {"loss_mask": "padding_mask", "reference_logprobs": "ref_logprobs"}
ROW = Row(token_ids=(1, 2, 3), loss_mask=(False, True, True), generator_logprobs=(0.0, -1.0, -2.0), versions=(-1, 0, 0))


def called(loss: object) -> Tensor:
    """What the trainer's call of a loss returns on one sample."""
    sample = Sample(rows=(ROW,), advantage=0.5, reference_logprobs=(-1.5, -2.5))
    (batch,) = pack([sample], max_tokens=8, pack_length=0, pad_id=0)
    logprobs = torch.tensor([[-1.25, -1.75]], requires_grad=True)
    return LossCall(loss)(batch, logprobs, None, units=2, normalizer=torch.tensor(2.0))  # type: ignore[arg-type]


class TorchforgeNames(RatioLoss):
    """A subclass of ours whose forward has torchforge's names."""

    def __init__(self) -> None:
        super().__init__(aggregation="token")

    def forward(self, logprobs: Tensor, padding_mask: Tensor, ref_logprobs: Tensor) -> Tensor:  # type: ignore[override]
        return ((logprobs - ref_logprobs) * padding_mask).sum()


def ours(logprobs: Tensor, loss_mask: Tensor, reference_logprobs: Tensor) -> Tensor:
    return ((logprobs - reference_logprobs) * loss_mask).sum()


def torchforges(logprobs: Tensor, padding_mask: Tensor, ref_logprobs: Tensor) -> Tensor:
    return ((logprobs - ref_logprobs) * padding_mask).sum()


def everything(logprobs: Tensor, **tensors: Tensor) -> Tensor:
    assert tensors["padding_mask"] is tensors["loss_mask"]
    assert tensors["ref_logprobs"] is tensors["reference_logprobs"] and "entropy" not in tensors
    return ((logprobs - tensors["ref_logprobs"]) * tensors["padding_mask"]).sum()


@pytest.mark.parametrize("loss", [ours, torchforges, everything, TorchforgeNames()])
def test_a_loss_may_have_either_name(loss: object) -> None:
    assert called(loss).item() == 1.0
    assert {"loss_mask", "reference_logprobs"} <= LossCall(loss).names  # type: ignore[arg-type]


@pytest.mark.parametrize("loss", [GRPOLoss(beta=0.1), SimpleGRPOLoss(beta=0.1), SFTLoss()])
def test_a_loss_of_ours_may_be_called_with_either_name(loss: torch.nn.Module) -> None:
    names = LossCall(loss).names - {"normalizer", "old_logprobs"}
    batch = {name: tensor for name, tensor in make_batch().items() if name in names}
    assert loss(**batch) == loss(**{TORCHFORGE.get(name, name): tensor for name, tensor in batch.items()})


def test_a_tensor_that_a_loss_does_not_use_is_not_handed_over_under_any_name() -> None:
    def loss(logprobs: Tensor, ref_logprobs: Tensor | None = None) -> Tensor:
        assert ref_logprobs is None
        return logprobs.sum()

    loss.unused_tensors = {"reference_logprobs"}  # type: ignore[attr-defined]
    assert LossCall(loss).names == {"logprobs"} and called(loss).item() == -3.0


def test_an_unknown_parameter_of_a_loss_is_refused() -> None:
    with pytest.raises(UserError, match=r"asks for 'pading_mask', which no trainer has\. Did you mean padding_mask"):
        LossCall(lambda logprobs, pading_mask: logprobs)
    with pytest.raises(UserError, match="asks for 'ref_logprobs', which the samples do not have"):
        (batch,) = pack([Sample(rows=(ROW,))], max_tokens=8, pack_length=0, pad_id=0)
        LossCall(torchforges)(batch, torch.zeros(1, 2), None, units=2, normalizer=torch.tensor(2.0))


def test_a_local_mean_counts_by_its_share_of_the_step() -> None:
    (batch,) = pack([Sample(rows=(ROW,))], max_tokens=8, pack_length=0, pad_id=0)
    logprobs, normalizer = torch.tensor([[-1.0, -3.0]], requires_grad=True), torch.tensor(8.0)

    def mean(logprobs: Tensor) -> Tensor:
        return logprobs.mean()

    def whole(logprobs: Tensor, normalizer: Tensor) -> Tensor:
        return logprobs.sum() / normalizer

    assert LossCall(mean)(batch, logprobs, None, units=2, normalizer=normalizer).item() == -2.0 * 2 / 8
    assert LossCall(whole)(batch, logprobs, None, units=2, normalizer=normalizer).item() == -4.0 / 8


def test_a_loss_counts_the_unit_that_it_names() -> None:
    per_token, per_episode = GRPOLoss(aggregation="token"), GRPOLoss(aggregation="sequence")
    assert LossCall(per_token).units(5, 2) == 5 and LossCall(per_episode).units(5, 2) == 2
    assert LossCall(lambda logprobs: logprobs.sum()).units(5, 2) == 5
