"""Context parallelism: how a sequence is cut, and that the step is the one of a single process."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torchtitan")

from forge_env.core.errors import UserError
from tests.helpers.forks import run_ranks
from tests.trainers.titan.layouts import PACKED as PACKED
from tests.trainers.titan.layouts import cases_of
from tests.trainers.titan.test_trainer import COUNT, make_model, make_samples, taught
from tests.trainers.titan.test_trainer import SETTINGS as TRAINING
from tests.trainers.titan.weights import check_same, weights_of
from trainers.batching.batch import Sample, pack
from trainers.batching.empty import empty_batch
from trainers.losses import GRPOLoss, GSPOLoss
from trainers.titan import parallel
from trainers.titan.attention import document_mask
from trainers.titan.context import Context, LocalBatch, head_tail, multiple_of_lengths
from trainers.titan.model import TitanModel
from trainers.titan.parallel import init_process_group, parallel_dims
from trainers.titan.settings import TitanSettings
from trainers.titan.trainer import TitanTrainer

# -- how a sequence is cut ---------------------------------------------------------------------------------------

few = settings(deadline=None, max_examples=30)


def positions_of(lengths: list[int], total: int) -> torch.Tensor:
    """(total,): rows of these lengths one after the other, and the padding."""
    rows = [torch.arange(length) for length in lengths]
    return torch.cat([*rows, torch.arange(total - sum(lengths))])


@st.composite
def sequences(draw: st.DrawFn) -> tuple[int, torch.Tensor]:
    """How many ranks, and the positions (B, L) of sequences that they can share."""
    ranks = draw(st.integers(1, 5))
    length = 2 * ranks * draw(st.integers(1, 4))
    rows = st.lists(st.integers(1, length), max_size=4).filter(lambda lengths: sum(lengths) <= length)
    return ranks, torch.stack([positions_of(draw(rows), length) for _ in range(draw(st.integers(1, 3)))])


@few
@given(st.integers(1, 9), st.integers(1, 9))
def test_each_token_is_in_the_part_of_one_rank_and_all_parts_cost_the_same(ranks, chunk):
    parts = head_tail(2 * ranks * chunk, ranks)
    assert parts.shape == (ranks, 2 * chunk)
    assert parts.flatten().sort().values.tolist() == list(range(2 * ranks * chunk))
    assert all(part == sorted(part) for part in parts.tolist())
    assert len({int((part + 1).sum()) for part in parts}) == 1  # a query attends to all tokens up to its own


@few
@given(sequences(), st.sampled_from([None, 1, 5]))
def test_the_masks_of_all_ranks_are_the_whole_mask(drawn, window):
    ranks, positions = drawn
    whole = document_mask(positions, window)
    order = head_tail(positions.shape[1], ranks).flatten()
    parts = [Context(ranks, rank).mask(positions, window) for rank in range(ranks)]
    assert torch.equal(torch.cat(parts, dim=2), whole[:, :, order][..., order])


@few
@given(st.integers(2, 4), st.integers(1, 6), st.integers(0, 3), st.booleans())
def test_each_target_is_on_the_one_rank_that_has_its_token(ranks, count, seed, packed):
    samples = make_samples(count, seed=seed)
    multiple = multiple_of_lengths(ranks, tensor=1, full_blocks=False)
    limits: dict[str, Any] = {"max_tokens": 128, "pack_length": 128 if packed else 0, "multiple": multiple}
    for batch in (*pack(samples, pad_id=0, **limits), empty_batch(multiple)):
        parts = [Context(ranks, rank).local(batch) for rank in range(ranks)]
        assert sorted(i for part in parts for i in part.chosen.tolist()) == list(range(len(batch.slots)))
        for rank, part in enumerate(parts):
            assert isinstance(part, LocalBatch) and len(part.selected) == len(part.targets) > 0
            context = Context(ranks, rank)
            places = context.local_places(part.selected, batch.tokens.shape[1])
            numbered = torch.arange(batch.tokens.numel()).view(batch.tokens.shape)
            assert torch.equal(context.cut(numbered).flatten()[places], part.selected)
            if len(part.chosen):
                assert torch.equal(part.selected, batch.selected[part.chosen])
                assert torch.equal(part.targets, batch.targets[part.chosen])


@pytest.mark.parametrize(("rank", "window"), [(0, None), (1, None), (1, 40)])
def test_flex_attention_gets_the_same_mask_in_blocks(rank, window):
    """Where a block is neither empty nor full, the kernel asks the function: the two together are the mask."""
    rows = [[300, 100], [512], [1, 200, 250]]
    positions = torch.stack([positions_of(row, 512) for row in rows])
    context = Context(2, rank)
    with torch.compiler.set_stance("force_eager"):
        expected, blocks = context.mask(positions, window), context.block_mask(positions, window, 128)
    assert blocks.seq_lengths == (256, 512)
    b, q, k = torch.meshgrid(*map(torch.arange, (3, 256, 512)), indexing="ij")
    assert torch.equal(blocks.mask_mod(b, torch.zeros_like(b), q, k), expected[:, 0])
    tiles = expected[:, 0].view(3, 2, 128, 4, 128).transpose(2, 3).flatten(-2)
    assert torch.equal(blocks.to_dense()[:, 0].bool(), tiles.any(-1))
    full = torch.zeros(3, 2, 4, dtype=torch.bool)
    for batch, row in torch.cartesian_prod(torch.arange(3), torch.arange(2)).tolist():
        number = blocks.full_kv_num_blocks[batch, 0, row]
        full[batch, row, blocks.full_kv_indices[batch, 0, row, :number].long()] = True
    assert torch.equal(full, tiles.all(-1))


def test_lengths_are_multiples_that_all_ranks_can_share():
    assert multiple_of_lengths(1, tensor=1, full_blocks=False) == 1
    assert multiple_of_lengths(1, tensor=3, full_blocks=True) == 384
    assert multiple_of_lengths(2, tensor=1, full_blocks=False) == 4
    assert multiple_of_lengths(4, tensor=3, full_blocks=False) == 24
    assert multiple_of_lengths(4, tensor=2, full_blocks=True) == 512


def test_attention_that_cannot_share_a_sequence_is_refused():
    with pytest.raises(UserError, match="varlen"):
        TitanSettings(attention="varlen", context_parallel_degree=2).choose_attention(is_on_gpu=True)


# -- several ranks -----------------------------------------------------------------------------------------------

# A small epsilon would take a full step also where a gradient is rounding alone, and those differ.
SETTINGS = dataclasses.replace(TRAINING, eps=1e-4)
CASES = cases_of("cp=2 packed full")
"""Rows that are not packed are in test_combinations.py."""
MORE_CASES = cases_of("cp=2 fsdp=2 split", "cp=2 tp=2", "cp=4 split", "cp=4 packed", "cp=2 fsdp=2 packed")
"""Of four ranks; test_combinations.py has quick ones."""


def with_one_target(sample: Sample) -> Sample:
    """The sample's first row with its second token alone as a target: all ranks but one have none."""
    row = dataclasses.replace(sample.rows[0], loss_mask=(False, True) + (False,) * (len(sample.rows[0].loss_mask) - 2))
    return dataclasses.replace(sample, rows=(row,))


def take_steps(trainer: TitanTrainer) -> dict[str, Any]:
    """What every degree has to agree on: logprobs of episodes, steps, and the weights after them.

    Steps on the same rows have the same shapes, for each of which torch plans every operation of several ranks anew.
    """
    samples = make_samples(COUNT)
    before = trainer.logprobs(samples)
    metrics = [
        trainer.train_step(samples, GRPOLoss(aggregation="token", entropy_coef=0.1)),
        trainer.train_step(samples, GSPOLoss(clip_low=0.2, clip_high=0.2)),
        trainer.train_step(samples, GSPOLoss(), old_is_present=True),
        trainer.train_step([with_one_target(samples[0])], GRPOLoss()),
        trainer.train_step(taught(samples), GRPOLoss(), distill_coef=0.5),
    ]
    logprobs = [values.tolist() for values in before + trainer.logprobs(samples)]
    return {"metrics": metrics, "logprobs": logprobs, "weights": weights_of(trainer)}


def flex_logprobs(folder: Path, pack_length: int) -> list[list[float]]:
    """Of two ranks, as a GPU computes them, but without its kernel: on CPU flex attention only has a forward pass.

    Sequences of 256 tokens are longer than the model's positions; what is beyond them is padding.
    """
    settings = TitanSettings(context_parallel_degree=2)
    model = TitanModel(folder, parallel_dims(settings), settings, dtype="float32", attention="flex")
    samples, found = make_samples(COUNT), dict[int, list[float]]()
    limits = {"max_tokens": 1024, "multiple": multiple_of_lengths(2, tensor=1, full_blocks=True)}
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        for batch in pack(samples, pack_length=pack_length, pad_id=0, **limits):
            local = model.context.local(batch)
            values, _ = model.logprobs(local.tokens, local.positions, local.selected, local.targets, 1.0)
            values = model.context.combine(values, local)
            is_sampled = batch.scatter(torch.ones_like(values)).bool()
            for sample, row, sampled in zip(batch.samples, batch.scatter(values), is_sampled, strict=True):
                found[sample] = row[sampled].tolist()
    return [found[index] for index in range(len(samples))]


def worker_threads() -> int:
    """Threads of this process that run the collectives of gloo's groups."""
    return sum(path.read_text().strip() == "pt_gloo_runloop" for path in Path("/proc/self/task").glob("*/comm"))


def be_a_rank(root: Path, cases: dict[str, dict[str, Any]]) -> None:
    init_process_group()
    rank = torch.distributed.get_rank()
    for case, changes in cases.items():
        result = take_steps(TitanTrainer(root / "model", dataclasses.replace(SETTINGS, **changes)))
        torch.save(result, root / f"{case} {rank}.pt")
    if torch.distributed.get_world_size() == 2:
        torch.save([flex_logprobs(root / "model", length) for length in (0, 256)], root / f"flex {rank}.pt")
        torch.save(worker_threads(), root / f"threads {rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A folder with a model, and what each rank of each case left behind."""
    root = tmp_path_factory.mktemp("context")
    make_model(root / "model", tied=False)
    run_ranks(be_a_rank, root, CASES, world=2, seconds=240)
    return root


@pytest.fixture(scope="module")
def alone(root) -> dict[str, Any]:
    """The steps of one process."""
    trainer = TitanTrainer(root / "model", SETTINGS)
    try:
        return take_steps(trainer)
    finally:
        trainer.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
def test_ranks_that_share_sequences_take_the_steps_of_one(root, alone, case):
    compare_with_one(root, alone, 2, case)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_group_of_all_ranks_has_one_worker_thread_on_a_cpu(root, rank):
    """Two of them would corrupt the heap, see `trainers.titan.parallel`. Groups of one rank have none."""
    assert torch.load(root / f"threads {rank}.pt") == 1


def test_a_group_on_a_cpu_is_on_the_network_interface_that_its_process_names(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no_such_one")
    with pytest.raises(RuntimeError, match="no_such_one"):
        parallel._gloo(torch.distributed.HashStore(), 0, 1, timedelta(seconds=9))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert parallel._gloo(torch.distributed.HashStore(), 0, 1, timedelta(seconds=9)).size() == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_more_ways_to_share_sequences_take_the_steps_of_one(root, alone):
    run_ranks(be_a_rank, root, MORE_CASES, world=4, seconds=240)
    for case in MORE_CASES:
        compare_with_one(root, alone, 4, case)


def compare_with_one(root: Path, alone: dict[str, Any], count: int, case: str) -> None:
    results = [torch.load(root / f"{case} {rank}.pt") for rank in range(count)]
    for rank, found in enumerate(results):
        check_same(found, alone, rank=rank)
        assert found["logprobs"] == results[0]["logprobs"]


@pytest.mark.parametrize("rank", [0, 1])
def test_flex_attention_gives_the_logprobs_of_one_process(root, alone, rank):
    expected = alone["logprobs"][:COUNT]  # those before the first step
    for found in torch.load(root / f"flex {rank}.pt"):
        for ours, other in zip(found, expected, strict=True):
            assert ours == pytest.approx(other, abs=1e-4)
