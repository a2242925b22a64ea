"""The head by chunks of the vocabulary: plain torch's numbers, with a fraction of its memory."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from forge_env.core.errors import UserError
from trainers.titan.head import _columns, check_temperature, head_logprobs


def make_inputs(n: int, width: int, vocabulary: int, dtype: torch.dtype = torch.float64, seed: int = 0):
    """Hidden states, weight (both with gradient), targets, and a gradient for each of logprobs and entropy."""
    generator = torch.Generator().manual_seed(seed)
    hidden, weight = (torch.randn(rows, width, generator=generator).to(dtype) for rows in (n, vocabulary))
    targets = torch.randint(0, vocabulary, (n,), generator=generator)
    upstream = torch.randn(2, n, generator=generator, dtype=torch.float64)
    return hidden.requires_grad_(), weight.requires_grad_(), targets, upstream


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The definition, with all logits in the dtype of the inputs."""
    distribution = torch.distributions.Categorical(logits=hidden @ weight.T / temperature, validate_args=False)
    return distribution.log_prob(targets), distribution.entropy()


def gradients(values: tuple[Tensor, ...], upstream: Tensor, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(values, inputs, [u.to(v.dtype) for u, v in zip(upstream, values, strict=True)])


@given(
    n=st.integers(0, 6),
    vocabulary=st.integers(2, 40),
    columns=st.integers(1, 45),
    temperature=st.floats(0.2, 3.0),
    seed=st.integers(0, 99),
    kept_bytes=st.sampled_from([0, 500, math.inf]),
)
def test_values_and_gradients_equal_plain_torch(n, vocabulary, columns, temperature, seed, kept_bytes):
    hidden, weight, targets, upstream = make_inputs(n, 5, vocabulary, seed=seed)
    ours = head_logprobs(
        hidden, weight, targets, temperature, with_entropy=True, columns=columns, kept_bytes=kept_bytes
    )
    expected = plain(hidden, weight, targets, temperature)
    torch.testing.assert_close(ours, expected, atol=1e-10, rtol=1e-10)
    both = gradients(ours, upstream, (hidden, weight))
    torch.testing.assert_close(both, gradients(expected, upstream, (hidden, weight)), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("columns", [3, 17])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_several_targets_of_a_place_are_as_many_calls(columns, count):
    hidden, weight, _, _ = make_inputs(6, 5, 17)
    targets = torch.randint(0, 17, (6, count), generator=torch.Generator().manual_seed(3))
    targets[:, 1:2] = targets[:, :1]  # one of them twice
    ours, entropy = head_logprobs(hidden, weight, targets, 0.7, with_entropy=True, columns=columns)
    expected = (hidden @ weight.T / 0.7).log_softmax(-1)
    torch.testing.assert_close(ours, expected.gather(-1, targets))
    weights = torch.randn(6, count + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    total = (ours * weights[:, 1:]).sum() + (entropy * weights[:, 0]).sum()
    plain_entropy = -(expected.exp() * expected).sum(-1)
    wanted = (expected.gather(-1, targets) * weights[:, 1:]).sum() + (plain_entropy * weights[:, 0]).sum()
    both = (torch.autograd.grad(each, (hidden, weight)) for each in (total, wanted))
    torch.testing.assert_close(*both)


@pytest.mark.parametrize("used", [(True, False), (False, True)], ids=["logprobs", "entropy"])
def test_a_loss_may_use_one_of_the_two(used):
    hidden, weight, targets, upstream = make_inputs(6, 5, 17)
    index = used.index(True)
    ours = head_logprobs(hidden, weight, targets, 0.7, with_entropy=True, columns=4)[index : index + 1]
    expected = plain(hidden, weight, targets, 0.7)[index : index + 1]
    upstream = upstream[index : index + 1]
    torch.testing.assert_close(
        gradients(ours, upstream, (hidden, weight)), gradients(expected, upstream, (hidden, weight))
    )


def test_one_input_may_be_frozen():
    hidden, weight, targets, upstream = make_inputs(6, 5, 17)
    whole = gradients(head_logprobs(hidden, weight, targets)[:1], upstream[:1], (hidden, weight))
    for index, inputs in enumerate([(hidden, weight.detach()), (hidden.detach(), weight)]):
        logprobs, entropy = head_logprobs(*inputs, targets)
        assert entropy is None
        assert torch.equal(torch.autograd.grad(logprobs, inputs[index], upstream[0])[0], whole[index])
    assert not head_logprobs(hidden.detach(), weight.detach(), targets)[0].requires_grad


def test_float32_is_exact_to_a_millionth():
    hidden, weight, targets, upstream = make_inputs(64, 32, 1500, torch.float32)
    double = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    for temperature in (1.0, 0.6):
        # Through the square root of the width the logits are of the size that a model's are.
        ours = head_logprobs(hidden / 32**0.5, weight, targets, temperature, with_entropy=True, columns=256)
        expected = plain(double[0] / 32**0.5, double[1], targets, temperature)
        assert ours[0].dtype == ours[1].dtype == torch.float32
        torch.testing.assert_close(ours, tuple(v.float() for v in expected), atol=1e-6, rtol=1e-6)
        result = gradients(ours, upstream, (hidden, weight))
        wanted = tuple(g.float() for g in gradients(expected, upstream, double))
        torch.testing.assert_close(result, wanted, atol=1e-6, rtol=1e-6)


def test_bfloat16_rounds_hardly_more_than_all_logits_at_once_do():
    hidden, weight, targets, upstream = make_inputs(64, 64, 1500, torch.bfloat16)
    double = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    exact = gradients(plain(*double, targets, 8.0), upstream, double)
    logits = (hidden @ weight.T).float() / 8.0
    distribution = torch.distributions.Categorical(logits=logits)
    expected = distribution.log_prob(targets), distribution.entropy()
    ours = head_logprobs(hidden, weight, targets, 8.0, with_entropy=True, columns=256)
    torch.testing.assert_close(ours, expected, atol=2e-6, rtol=1e-6)
    result, usual = (gradients(values, upstream, (hidden, weight)) for values in (ours, expected))
    for mine, theirs, true in zip(result, usual, exact, strict=True):
        assert mine.dtype == torch.bfloat16
        assert (mine - true).norm() < 1.5 * (theirs - true).norm()


def test_large_logits_do_not_overflow_and_sure_tokens_have_no_entropy():
    hidden, weight, targets, upstream = make_inputs(5, 4, 30, torch.float32)
    logprobs, entropy = head_logprobs(hidden * 1e6, weight, targets, with_entropy=True, columns=7)
    assert logprobs.isfinite().all() and (logprobs <= 0).all() and torch.equal(entropy, torch.zeros(5))
    assert all(g.isfinite().all() for g in gradients((logprobs, entropy), upstream, (hidden, weight)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_a_gradient_that_is_not_finite_is_not_hidden(bad, with_entropy):
    hidden, weight, targets, upstream = make_inputs(5, 4, 30, torch.float32)
    values = head_logprobs(hidden, weight, targets, with_entropy=with_entropy, columns=7)
    upstream[:, 2] = bad
    of_hidden, of_weight = gradients(values[: 1 + with_entropy], upstream[: 1 + with_entropy], (hidden, weight))
    assert not of_hidden[2].isfinite().any() and of_hidden[[0, 1, 3, 4]].isfinite().all()
    assert not of_weight.isfinite().any()


def test_hidden_states_that_are_not_finite_and_foreign_targets_are_seen():
    hidden, weight, targets, _ = make_inputs(3, 4, 30, torch.float32)
    targets[1], targets[2] = 30, -1
    with torch.no_grad():
        hidden[0, 0] = math.nan
        logprobs, _ = head_logprobs(hidden, weight, targets, columns=7)
    assert logprobs[0].isnan() and torch.equal(logprobs[1:], torch.full((2,), -math.inf))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_a_temperature_that_nothing_can_be_divided_by_is_refused(temperature):
    with pytest.raises(UserError, match="temperature"):
        check_temperature(temperature)


# -- kept logits -------------------------------------------------------------------------------------------------


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._schema.name.removeprefix("aten::") in ("mm", "addmm", "addmm_")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kept_bytes, products", [(6 * 17 * 8, 3), (6 * 17 * 8 - 1, 4)])
def test_logits_that_are_kept_are_computed_once(kept_bytes, products):
    hidden, weight, targets, upstream = make_inputs(6, 5, 17)
    with Products() as counted:
        values = head_logprobs(hidden, weight, targets, with_entropy=True, kept_bytes=kept_bytes)
        gradients(values, upstream, (hidden, weight))
    assert counted.count == products


def test_kept_logits_serve_one_backward_pass_and_are_computed_again_for_the_next():
    hidden, weight, targets, upstream = make_inputs(6, 5, 17)
    values = head_logprobs(hidden, weight, targets, with_entropy=True, kept_bytes=math.inf)
    first, second = (torch.autograd.grad(values, (hidden, weight), list(upstream), retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, second, atol=0, rtol=0)


def test_no_logits_are_kept_without_a_gradient():
    hidden, weight, targets, _ = make_inputs(64, 8, 65536, torch.float32)
    with torch.no_grad(), LiveBytes() as live:
        head_logprobs(hidden, weight, targets, kept_bytes=math.inf)
    assert live.peak - hidden.nbytes - weight.nbytes < 64 * 65536 * 4 / 8


# -- memory ------------------------------------------------------------------------------------------------------


class LiveBytes(TorchDispatchMode):
    """Follows every storage that an operation makes, and remembers the most bytes that lived at once."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                self._live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._live = {key: value for key, value in self._live.items() if not value[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return out


def peak_bytes(dtype: torch.dtype, with_entropy: bool, logprobs_of) -> int:
    """The most that lived at once, forward and backward, beside inputs and gradients; float32 logits are 16 MiB."""
    hidden, weight, targets, _ = make_inputs(64, 8, 65536, dtype)
    with LiveBytes() as live:
        logprobs, entropy = logprobs_of(hidden, weight, targets, 0.7, with_entropy=with_entropy)
        (logprobs.sum() + (entropy.sum() if with_entropy else 0.0)).backward()
    return live.peak - 2 * (hidden.nbytes + weight.nbytes)  # a view of the inputs counts them too


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_eighth_of_all_float32_logits_is_never_reached(dtype, with_entropy):
    logits = 64 * 65536 * 4
    assert peak_bytes(dtype, with_entropy, head_logprobs) < logits / 8
    # The same measure sees what the plain way holds: nothing above passes because nothing was counted.
    assert peak_bytes(dtype, True, lambda *args, with_entropy: plain(*args)) > logits


@pytest.mark.parametrize("tokens", [1, 256, 16384, 1_000_000])
@pytest.mark.parametrize("vocabulary", [10, 1024, 151936])
def test_chunks_are_small_but_not_too_small(tokens, vocabulary):
    columns = _columns(tokens, vocabulary, 32)
    assert columns >= 1024 and columns % 128 == 0
    assert columns == 1024 or (columns - 128) * 32 < vocabulary
    assert columns == 1024 or (columns - 128) * tokens < 1 << 26


# -- a vocabulary that ranks share -------------------------------------------------------------------------------


def test_ranks_that_share_the_vocabulary_get_values_of_all_of_it():
    hidden, weight, targets, upstream = make_inputs(6, 5, 17)
    store = dist.HashStore()

    def one_of_three(rank: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        group = dist.ProcessGroupGloo(store, rank, 3)
        mine = weight.detach()[rank * 6 : rank * 6 + 6].clone().requires_grad_()  # the last one has five
        own_hidden = hidden.detach().clone().requires_grad_()
        values = head_logprobs(
            own_hidden, mine, targets, 0.7, with_entropy=True, group=group, start=rank * 6, columns=4
        )
        return tuple(v.detach() for v in values), gradients(values, upstream, (own_hidden, mine))

    with ThreadPoolExecutor(3) as threads:
        result = list(threads.map(one_of_three, range(3)))
    expected = plain(hidden, weight, targets, 0.7)
    for values, _ in result:
        torch.testing.assert_close(values, tuple(v.detach() for v in expected))
    parts_of_hidden, shards_of_weight = zip(*(both for _, both in result), strict=True)
    of_hidden, of_weight = gradients(expected, upstream, (hidden, weight))
    torch.testing.assert_close(sum(parts_of_hidden), of_hidden)
    torch.testing.assert_close(torch.cat(shards_of_weight), of_weight)
