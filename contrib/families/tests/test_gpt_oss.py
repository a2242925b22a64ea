"""gpt-oss over several ranks, with given experts, with adapters, and with a backward kernel that is given sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("torchtitan")
import trainers.titan.device  # noqa: F401  # isort: skip
from torch.nn.attention.flex_attention import create_block_mask
from torchtitan.models.common.attention import VarlenMetadata

from contrib.families.gpt_oss_model import SinkFlex, _SinkVarlen
from contrib.families.tests.folders import make_folder
from tests.helpers.forks import run_ranks
from tests.trainers.titan.test_context import PACKED, SETTINGS
from tests.trainers.titan.test_replay import be_a_rank, take_steps
from tests.trainers.titan.test_trainer import make_samples
from tests.trainers.titan.weights import check_same, weights_of
from trainers.lora import Lora
from trainers.losses import GRPOLoss
from trainers.titan.attention import document_mask
from trainers.titan.trainer import TitanTrainer

Make = Callable[..., TitanTrainer]
CASES: dict[str, dict[str, Any]] = {
    "ep, full": {"expert_parallel_degree": 2, "activation_checkpoint": "full"},
    "tp, ep, packed": {"tensor_parallel_degree": 2, "expert_parallel_degree": 2, **PACKED},
    "cp, packed": {"context_parallel_degree": 2, **PACKED},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("gpt-oss") / "model", "gpt-oss", tied=False)


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[dict[str, Any]]:
    trainer = TitanTrainer(folder, SETTINGS)
    yield take_steps(trainer)
    trainer.close()


@pytest.mark.slow  # the quick tests of ranks are those of other families
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_take_the_steps_of_one(folder: Path, alone: dict[str, Any], name: str) -> None:
    run_ranks(be_a_rank, folder.parent, {name: CASES[name]}, world=2, seconds=300)
    for rank in range(2):
        check_same(torch.load(folder.parent / f"{name} {rank}.pt"), alone, rank=rank)


def test_adapters_of_attention_train_and_leave_the_rest(folder: Path, make: Make) -> None:
    lora = Lora(rank=4, alpha=8.0, targets=("q_proj", "v_proj", "o_proj"))
    trainer = make(folder, lora=lora)
    before = weights_of(trainer)
    for _ in range(2):  # the first leaves A as it is
        trainer.train_step(make_samples(4), GRPOLoss())
    changed = {name for name, value in weights_of(trainer).items() if not torch.equal(value, before[name])}
    kinds = {name.split(".", 3)[-1] for name in changed}
    assert kinds == {f"self_attn.{letter}_proj.weight" for letter in "qvo"}


@pytest.fixture(scope="module")
def flash_attention() -> None:
    """FlashAttention's two kernels for the CPU, where torch has none, by their formulas (arXiv 2205.14135): the
    backward one computes the probabilities from `lse`, and the sum over them from the output."""

    def scores(q: Tensor, k: Tensor, ends: Tensor, scale: float, window: list[int]) -> Tensor:
        positions = torch.cat([torch.arange(n) for n in ends.diff().tolist()])[None]
        mask = document_mask(positions, None if window[0] < 0 else window[0] + 1)[0, 0]
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        return torch.einsum("qnh,knh->nqk", q, k).mul(scale).masked_fill(~mask, -torch.inf)

    def forward(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        _, _, _, _, scale, window, *_ = rest
        found = scores(q, k, ends, scale, window)
        v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        return torch.einsum("nqk,knh->qnh", found.softmax(-1), v), found.logsumexp(-1), torch.zeros(2)

    def backward(
        of_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, ends: Tensor, *rest: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        _, _, _, _, _, scale, window = rest
        groups = q.shape[1] // k.shape[1]
        shares = (scores(q, k, ends, scale, window) - lse[..., None]).exp()
        wide = v.repeat_interleave(groups, dim=1)
        of_scores = torch.einsum("qnh,knh->nqk", of_out, wide) - (of_out * out).sum(-1).T[..., None]
        of_scores = of_scores * shares * scale
        of_q = torch.einsum("nqk,knh->qnh", of_scores, k.repeat_interleave(groups, dim=1))
        of_k = torch.einsum("nqk,qnh->knh", of_scores, q).unflatten(1, (-1, groups)).sum(2)
        of_v = torch.einsum("nqk,qnh->knh", shares, of_out).unflatten(1, (-1, groups)).sum(2)
        return of_q, of_k, of_v

    torch.library.register_kernel("torch_attn::_varlen_attn", "cpu", forward)
    torch.library.register_kernel("torch_attn::_varlen_attn_backward", "cpu", backward)


@pytest.mark.parametrize("window", [(-1, 0), (3, 0)])
def test_packed_rows_have_the_gradients_of_a_softmax_with_sinks(flash_attention: None, window: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((12, 4, 8), (12, 2, 8), (12, 2, 8), (4,))
    inputs = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    of_out = torch.randn(12, 4, 8, generator=generator)
    ends = torch.tensor([0, 5, 12], dtype=torch.int32)
    out = _SinkVarlen.apply(*inputs, VarlenMetadata(ends, ends, 7, 7), 0.3, window)
    expected = plain(*inputs, window=window[0])
    torch.testing.assert_close(out, expected)
    found, wanted = (torch.autograd.grad((each * of_out).sum(), inputs) for each in (out, expected))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("window", [-1, 3])
def test_flex_attention_has_the_outputs_of_a_softmax_with_sinks(window: int) -> None:
    """Without gradients, which flex attention does not have on a CPU."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator) for shape in ((12, 4, 8), (12, 2, 8), (12, 2, 8), (4,))]
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
    allowed = document_mask(positions, None if window < 0 else window + 1)[0, 0]
    with torch.compiler.set_stance("force_eager"):
        mask = create_block_mask(lambda b, h, query, key: allowed[query, key], 1, None, 12, 12, device="cpu")
        q, k, v = (part[None] for part in inputs[:3])
        attention = SinkFlex.Config().build()
        out = attention(q, k, v, attention_masks=mask, scale=0.3, enable_gqa=True, sinks=inputs[3])
    torch.testing.assert_close(out[0], plain(*inputs, window=window))


def plain(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, *, window: int) -> Tensor:
    """The formula, for rows of 5 and 7 tokens: a softmax over the keys and the sink of each head."""
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
    mask = document_mask(positions, None if window < 0 else window + 1)[0, 0]
    k, v = (part.repeat_interleave(2, dim=1) for part in (k, v))
    scores = torch.einsum("qnh,knh->nqk", q, k).mul(0.3).masked_fill(~mask, -torch.inf)
    scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(q), 1)], dim=-1)
    return torch.einsum("nqk,knh->qnh", scores.softmax(-1)[..., :-1], v)
