"""TitanTrainer on a tiny random Qwen3: the same numbers as transformers, and the same step however it is cut."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("torchtitan")
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from forge_env.core.episode import Row
from forge_env.core.errors import InvariantError, UserError
from forge_env.records.run_files import steps_of
from tests.helpers.disks import full_disk
from tests.helpers.forks import run_ranks
from tests.trainers.objective.four_arguments import MyLoss
from tests.trainers.titan.folders import make_folder
from tests.trainers.titan.weights import check_same
from tests.trainers.titan.weights import weights_of as weights
from trainers.batching.batch import Sample
from trainers.checkpoints import clean, find, path_of, read_manifest
from trainers.losses import CISPOLoss, DAPOLoss, GRPOLoss, GSPOLoss, SFTLoss
from trainers.titan.parallel import init_process_group
from trainers.titan.settings import RateSettings
from trainers.titan.trainer import TitanSettings, TitanTrainer

Cases = dict[str, tuple[str, dict[str, Any]]]
"""By name a folder of a model, and settings."""
VOCABULARY = 96
COUNT = 4
"""Episodes of the steps that several ranks take: each shape of a micro-batch is planned anew."""
SETTINGS = TitanSettings(learning_rate=1e-3, max_grad_norm=0.5, weight_decay=0.01, warmup_steps=2, dtype="float32")
ROOT = Path(__file__).resolve().parents[3]


def make_model(folder: Path, tied: bool, **changes) -> Path:
    """Save a random Qwen3 of two layers; wide initial weights, so that logits differ visibly."""
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=128,
        rope_theta=5000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        initializer_range=0.1,
        **changes,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def any_model(request, tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), tied=False)


def make_samples(count: int = 8, seed: int = 0) -> list[Sample]:
    """Random episodes of one or two rows of different lengths, with plausible generator logprobs."""
    rng = random.Random(seed)

    def row() -> Row:
        n = rng.randint(4, 40)
        mask = tuple(rng.random() < 0.6 and i > 0 for i in range(n))
        return Row(
            token_ids=tuple(rng.randrange(VOCABULARY) for _ in range(n)),
            loss_mask=mask,
            generator_logprobs=tuple(rng.gauss(-4.5, 0.1) if m else 0.0 for m in mask),
            versions=tuple(0 if m else -1 for m in mask),
        )

    return [
        Sample(rows=tuple(row() for _ in range(rng.randint(1, 2))), advantage=rng.gauss(0, 1)) for _ in range(count)
    ]


def taught(samples: list[Sample], count: int = 3, seed: int = 0) -> list[Sample]:
    """The samples, each target with tokens that a teacher finds likely."""
    rng = random.Random(seed)
    numbers = [sample.num_targets for sample in samples]
    ids = [[token for _ in range(n) for token in rng.sample(range(VOCABULARY), count)] for n in numbers]
    values = [[rng.uniform(-4, -1.5) for _ in each] for each in ids]
    given = zip(samples, ids, values, strict=True)
    return [dataclasses.replace(s, teacher_ids=i, teacher_logprobs=v) for s, i, v in given]


def local_mean(logprobs: torch.Tensor, padding_mask: torch.Tensor) -> torch.Tensor:
    """A loss that knows nothing of normalizers."""
    return -(logprobs * padding_mask).sum() / padding_mask.sum()


def reference_logprobs(model: PreTrainedModel, sample: Sample, temperature: float = 1.0) -> list[float]:
    values = []
    for row in sample.rows:
        with torch.no_grad():
            logits = model(torch.tensor([row.token_ids])).logits[0] / temperature
        table = logits.log_softmax(-1)
        values += [table[i - 1, row.token_ids[i]].item() for i in range(1, len(row.loss_mask)) if row.loss_mask[i]]
    return values


# -- the same model as transformers ------------------------------------------------------------------------------


@pytest.mark.parametrize("pack_length", [0, 48])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_transformers(any_model, make, pack_length, temperature):
    reference = Qwen3ForCausalLM.from_pretrained(any_model)
    trainer = make(any_model, pack_length=pack_length, max_tokens_per_micro_batch=50)  # splits some episodes
    unsampled = Row(token_ids=(1, 2), loss_mask=(False, False), generator_logprobs=(0.0, 0.0), versions=(-1, -1))
    samples = [*make_samples(), Sample(rows=(unsampled,))]
    ours = trainer.logprobs(samples, temperature)
    for sample, values in zip(samples, ours, strict=True):
        assert values == pytest.approx(reference_logprobs(reference, sample, temperature), abs=1e-5)


# -- one step ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        GRPOLoss(aggregation="constant", constant=40.0),
        GSPOLoss(0.1, 0.1),
        CISPOLoss(entropy_coef=0.01),
    ],
    ids=["dr-grpo", "gspo", "cispo with entropy"],
)
def test_micro_batches_and_packing_do_not_change_the_step(model, make, loss):
    samples = make_samples()
    results = []
    for changes in ({}, {"max_tokens_per_micro_batch": 60}, {"pack_length": 64, "max_tokens_per_micro_batch": 128}):
        # Adam divides by the gradient's size: without a large eps it would blow rounding up where gradients are near 0.
        trainer = make(model, eps=1e-3, **changes)
        metrics = [trainer.train_step(samples, loss) for _ in range(2)]
        results.append((metrics, weights(trainer)))
    for metrics, state in results[1:]:
        for ours, expected in zip(metrics, results[0][0], strict=True):
            # Sums in float32, in another order: their last digits depend on the processor.
            assert ours | {"seconds": 0} == pytest.approx(expected | {"seconds": 0}, abs=1e-5, rel=1e-4)
        for name, value in state.items():
            torch.testing.assert_close(value, results[0][1][name], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("loss", "pack_length"),
    [(GSPOLoss(0.1, 0.1), 40), (CISPOLoss(entropy_coef=0.01), 0), (MyLoss(), 40)],
)
def test_growing_rows_of_one_episode_need_the_memory_of_the_longest(model, make, loss, pack_length):
    """Ten rows of 4 to 40 tokens, 220 in all: the step is that of the whole episode, from passes of 40 tokens."""
    samples = [growing_rows(seed) for seed in range(3)] + make_samples(3)
    samples = [dataclasses.replace(s, reference_logprobs=(-4.5,) * s.num_targets) for s in samples]
    passes, results = [], []
    for changes in ({}, {"pack_length": pack_length, "max_tokens_per_micro_batch": 40}):
        trainer = make(model, eps=1e-3, **changes)
        sizes: list[int] = []
        trainer.model.module.register_forward_pre_hook(lambda _, args, sizes=sizes: sizes.append(args[0].numel()))
        metrics = [trainer.train_step(samples, loss, old_is_present=present) for present in (False, True)]
        passes.append(sizes)
        results.append((metrics, weights(trainer)))
    assert max(passes[0]) >= 220 and max(passes[1]) <= 40
    (whole, expected), (split, state) = results
    for ours, theirs in zip(split, whole, strict=True):
        assert ours | {"seconds": 0} == pytest.approx(theirs | {"seconds": 0}, abs=1e-5, rel=1e-4)
    assert (split[1]["ratio_min"], split[1]["ratio_max"]) == (1.0, 1.0)
    for name, value in state.items():
        torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=0)


def growing_rows(seed: int) -> Sample:
    """An episode of ten rows of 4, 8, ... 40 tokens, as of a history that is rewritten at each turn."""
    rng = random.Random(seed)
    rows = []
    for n in range(4, 44, 4):
        mask = tuple(i >= n - 3 for i in range(n))
        logprobs = tuple(rng.gauss(-4.5, 0.1) if m else 0.0 for m in mask)
        token_ids = tuple(rng.randrange(VOCABULARY) for _ in mask)
        rows.append(Row(token_ids=token_ids, loss_mask=mask, generator_logprobs=logprobs, versions=(0,) * n))
    return Sample(rows=tuple(rows), advantage=rng.gauss(0, 1))


class Computed(GRPOLoss):
    """The same loss, of which the trainer computes every sample."""

    policy_term_vanishes = False


@pytest.mark.parametrize("old", [False, True], ids=["", "with old logprobs"])
def test_samples_without_an_advantage_change_nothing_but_the_denominators(model, make, old):
    """The second step has none with an advantage: what Adam's moments do is done all the same."""
    samples = [
        dataclasses.replace(s, advantage=s.advantage if i % 3 == 0 else 0.0) for i, s in enumerate(make_samples(9))
    ]
    samples[3] = dataclasses.replace(samples[3], advantage=(0.0,) * sampled(samples[3]))
    whole = samples
    if old:
        given = [tuple(values) for values in make(model).logprobs(samples)]
        whole = [dataclasses.replace(s, old_logprobs=v) for s, v in zip(samples, given, strict=True)]
        samples = [w if w.has_advantage else s for s, w in zip(samples, whole, strict=True)]
    idle = [dataclasses.replace(sample, advantage=0.0) for sample in samples]
    for options in ({"aggregation": "token"}, {"aggregation": "sequence"}):
        settings = {"eps": 1e-3, "max_tokens_per_micro_batch": 60}
        left, right = make(model, **settings), make(model, **settings)
        found = [left.train_step(each, GRPOLoss(**options)) for each in (samples, idle)]
        expected = [right.train_step(each, Computed(**options)) for each in (whole, idle)]
        for ours, theirs in zip(found, expected, strict=True):
            for name in ("loss", "grad_norm", "tokens", "episodes", "learning_rate", "skipped"):
                assert ours[name] == pytest.approx(theirs[name], abs=1e-6, rel=1e-5)
        assert 0 < found[0]["tokens_left_out"] < found[0]["tokens"] and found[0]["episodes_left_out"] == 7
        assert found[1]["tokens_left_out"] == found[1]["tokens"] and found[1]["grad_norm"] == 0
        assert "kl" in found[0] and "kl" not in found[1]  # nothing was computed that it could be of
        assert expected[0]["tokens_left_out"] == 0
        for name, value in weights(left).items():
            torch.testing.assert_close(value, weights(right)[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize("loss", [GRPOLoss(beta=0.1), GRPOLoss(entropy_coef=0.01), local_mean, MyLoss()])
def test_a_loss_that_learns_without_advantages_gets_all_samples(model, make, loss):
    samples = [dataclasses.replace(s, advantage=0.0, reference_logprobs=(-4.0,) * sampled(s)) for s in make_samples(3)]
    metrics = make(model).train_step(samples, loss)
    assert metrics["tokens_left_out"] == 0 and metrics["grad_norm"] > 0


def sampled(sample: Sample) -> int:
    return sum(sum(row.loss_mask[1:]) for row in sample.rows)


def test_the_step_equals_one_of_plain_torch(model, make):
    samples = make_samples(4)
    reference = Qwen3ForCausalLM.from_pretrained(model)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-3, betas=(0.9, 0.999), weight_decay=0.01)
    total, count = torch.zeros(()), 0
    for sample in samples:
        for row in sample.rows:
            table = reference(torch.tensor([row.token_ids])).logits[0].log_softmax(-1)
            for i in range(1, len(row.loss_mask)):
                if row.loss_mask[i]:
                    logprob = table[i - 1, row.token_ids[i]]
                    ratio = (logprob - row.generator_logprobs[i]).exp()
                    total = total - torch.minimum(ratio * sample.advantage, ratio.clamp(0.8, 1.28) * sample.advantage)
                    count += 1
    loss = total / count
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
    optimizer.step()

    trainer = make(model, warmup_steps=0)
    metrics = trainer.train_step(samples, GRPOLoss(aggregation="token"))
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert metrics["tokens"] == count
    ours, expected = weights(trainer), reference.state_dict()
    # Adam's first step is nearly lr * sign(gradient): compare where the sign is not noise.
    moved = torch.cat([(ours[n] - expected[n]).flatten() for n in ours])
    assert (moved.abs() > 1e-5).float().mean() < 1e-3


@pytest.mark.parametrize(
    ("count", "changes"),
    [
        (5, {}),
        (5, {"max_tokens_per_micro_batch": 40}),
        (VOCABULARY, {"pack_length": 64, "max_tokens_per_micro_batch": 128}),
    ],
    ids=["", "split", "all, packed"],
)
def test_the_reverse_kl_over_a_teachers_tokens(model, make, tmp_path, changes, count):
    """Against plain torch, row after row, with a teacher of another shape."""
    temperature = 0.7
    folder = make_folder(tmp_path / "teacher", "llama-3", tied=False, vocab_size=VOCABULARY)
    teacher = TitanTrainer(folder, TitanSettings(max_tokens_per_micro_batch=50, dtype="float32"), is_frozen=True)
    samples = make_samples(6)
    samples = [dataclasses.replace(s, advantage=0.0) if i < 3 else s for i, s in enumerate(samples)]
    try:
        top = teacher.top_logprobs(samples, temperature, count)
    finally:
        teacher.close()
    given = [
        dataclasses.replace(s, teacher_ids=ids, teacher_logprobs=values)
        for s, (ids, values) in zip(samples, top, strict=True)
    ]
    reference, judge = (AutoModelForCausalLM.from_pretrained(path) for path in (model, folder))
    total, tokens = torch.zeros(()), 0
    for sample in samples:
        for row in sample.rows:
            inputs = torch.tensor(row.token_ids)[None]
            q, p = ((each(inputs).logits[0] / temperature).log_softmax(-1) for each in (reference, judge))
            for i in np.flatnonzero(row.loss_mask[1:]):
                best = p[i].topk(count).indices
                divergence = (q[i, best].exp() * (q[i, best] - p[i, best])).sum()
                if count < VOCABULARY:
                    rest_q, rest_p = (1 - each[i, best].exp().sum() for each in (q, p))
                    divergence = divergence + rest_q * (rest_q / rest_p).log()
                total, tokens = total + divergence, tokens + 1
    (0.5 * total / tokens).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in reference.parameters()]).norm()

    options = {"temperature": temperature, "distill_coef": 0.5}
    idle = [dataclasses.replace(sample, advantage=0.0) for sample in given]
    alone = make(model, max_grad_norm=1e9, **changes).train_step(idle, GRPOLoss(aggregation="token"), **options)
    assert alone["teacher_kl"] == pytest.approx((total / tokens).item(), abs=1e-5)
    assert alone["loss"] == pytest.approx(0.5 * alone["teacher_kl"], abs=1e-5) and alone["tokens"] == tokens
    assert alone["grad_norm"] == pytest.approx(expected.item(), rel=1e-4)
    # Beside episodes that no teacher judges, nothing changes: here they have no advantage either.
    more = [*make_samples(3, seed=7), *idle]
    more = [dataclasses.replace(sample, advantage=1e-12 if sample.teacher_ids is None else 0.0) for sample in more]
    beside = make(model, max_grad_norm=1e9, **changes).train_step(more, GRPOLoss(aggregation="token"), **options)
    assert beside["teacher_kl"] == pytest.approx(alone["teacher_kl"], abs=1e-6) and beside["tokens"] > tokens
    assert beside["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-4)
    everything = make(model, **changes).train_step(given, GRPOLoss(), **options)
    assert everything["teacher_kl"] == pytest.approx(alone["teacher_kl"], abs=1e-6)
    assert everything["episodes_left_out"] == 0


def test_a_new_phase_is_a_new_trainer_on_the_present_weights(model, make, tmp_path):
    trainer = make(model)
    for seed in range(3):
        trainer.train_step(make_samples(seed=seed), SFTLoss())
    trained = weights(trainer)
    trainer.export_hf(tmp_path / "trained")
    trainer.begin()
    assert trainer.learning_rate == pytest.approx(5e-4)  # of the settings: the first of two warm-up steps
    trainer.begin(RateSettings(learning_rate=4e-4, warmup_steps=4))
    assert trainer.step == 0
    assert all(torch.equal(value, trained[name]) for name, value in weights(trainer).items())
    fresh = make(tmp_path / "trained", learning_rate=4e-4, warmup_steps=4)
    rates = []
    for seed in range(5):  # moments of Adam left over from the first phase would show in the second step's loss
        ours, expected = (t.train_step(make_samples(seed=seed), GRPOLoss()) for t in (trainer, fresh))
        assert ours | {"seconds": 0} == expected | {"seconds": 0}
        rates.append(ours["learning_rate"])
    assert rates == pytest.approx([1e-4, 2e-4, 3e-4, 4e-4, 4e-4])
    assert all(torch.equal(value, weights(fresh)[name]) for name, value in weights(trainer).items())


def test_a_phase_that_is_to_be_longer_goes_on_as_if_it_had_been(model, make):
    rate = RateSettings(learning_rate=1e-3, lr_schedule="linear", warmup_steps=1)
    trainer, whole = (make(model, total_steps=n, lr_schedule="linear", warmup_steps=1) for n in (4, 8))
    for seed in range(5):
        ours, expected = (t.train_step(make_samples(seed=seed), SFTLoss()) for t in (trainer, whole))
        assert ours | {"seconds": 0} == expected | {"seconds": 0}
        if seed == 0:  # the rates are the same so far
            trainer.end_at(8, rate)
    trainer.end_at(19, dataclasses.replace(rate, warmup_steps=9))
    assert trainer.learning_rate == pytest.approx(1e-3 * 6 / 9)


def test_metrics_at_the_generator_itself_say_on_policy(model, make):
    trainer = make(model)
    samples = make_samples()
    exact = []
    for sample, values in zip(samples, trainer.logprobs(samples, 0.8), strict=True):
        left = iter(values)
        sampled_with = [tuple(next(left) if m else 0.0 for m in row.loss_mask) for row in sample.rows]
        pairs = zip(sample.rows, sampled_with, strict=True)
        rows = tuple(dataclasses.replace(row, generator_logprobs=logprobs) for row, logprobs in pairs)
        exact.append(Sample(rows=rows, advantage=sample.advantage))
    metrics = trainer.train_step(exact, GRPOLoss(), temperature=0.8)
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["mean_abs_logprob_difference"] < 1e-5
    assert metrics["learning_rate"] == pytest.approx(5e-4)  # the first of two warm-up steps
    assert [trainer.train_step(exact, GRPOLoss())["learning_rate"] for _ in range(3)] == pytest.approx([1e-3] * 3)
    assert trainer.step == 4


def test_entropy_is_given_with_gradient_when_named(model, make):
    def loss(entropy, padding_mask, normalizer):
        assert entropy.requires_grad
        return (entropy * padding_mask).sum() / normalizer

    trainer = make(model)
    before = trainer.train_step(make_samples(), loss)["loss"]
    assert 0 < before < math.log(VOCABULARY)
    trainer.train_step(make_samples(), loss)
    assert trainer.train_step(make_samples(), loss)["loss"] < before


def test_without_a_valid_token_nothing_changes(model, make):
    trainer = make(model)
    before = weights(trainer)
    row = Row(
        token_ids=(1, 2, 3),
        loss_mask=(False, False, True),
        generator_logprobs=(0.0, 0.0, math.nan),
        versions=(-1, -1, 0),
    )
    for samples in ([], [Sample(rows=(row,), advantage=1.0)]):
        metrics = trainer.train_step(samples, GRPOLoss())
        assert metrics["skipped"] == 1.0 and metrics["tokens"] == 0.0
    assert trainer.step == 0
    assert all(torch.equal(value, before[name]) for name, value in weights(trainer).items())


def test_a_non_finite_loss_or_gradient_leaves_the_weights(model, make):
    trainer = make(model)
    before = weights(trainer)
    samples = make_samples()
    bad_loss = trainer.train_step(samples, lambda logprobs: logprobs.sum() * math.nan)
    bad_gradient = trainer.train_step(samples, lambda logprobs: (logprobs - logprobs.detach()).abs().sqrt().sum())
    assert bad_loss["skipped"] == bad_gradient["skipped"] == 1.0
    assert math.isnan(bad_loss["loss"]) and not math.isfinite(bad_gradient["grad_norm"])
    assert all(torch.equal(value, before[name]) for name, value in weights(trainer).items())
    assert trainer.train_step(samples, GRPOLoss())["skipped"] == 0.0


def test_a_loss_that_raises_half_way_leaves_no_gradient_behind(model, make):
    calls = []

    def failing(logprobs):
        calls.append(1)
        if len(calls) == 2:
            raise ZeroDivisionError
        return logprobs.sum() * 1e3

    trainer, untouched = make(model, max_tokens_per_micro_batch=60), make(model)
    with pytest.raises(ZeroDivisionError):
        trainer.train_step(make_samples(), failing)
    trainer.train_step(make_samples(), SFTLoss())
    untouched.train_step(make_samples(), SFTLoss())
    for name, value in weights(trainer).items():
        torch.testing.assert_close(value, weights(untouched)[name], atol=1e-4, rtol=0)


def test_a_temperature_of_zero_and_a_foreign_token_are_refused(model, make):
    trainer = make(model)
    with pytest.raises(UserError, match="temperature"):
        trainer.train_step(make_samples(), GRPOLoss(), temperature=0.0)
    row = Row(token_ids=(1, VOCABULARY), loss_mask=(False, True), generator_logprobs=(0.0, -1.0), versions=(-1, 0))
    with pytest.raises(InvariantError, match="vocabulary"):
        trainer.train_step([Sample(rows=(row,))], GRPOLoss())


def test_rows_longer_than_the_model_are_refused(model, make):
    n = 129
    row = Row(
        token_ids=(1,) * n, loss_mask=(False,) + (True,) * (n - 1), generator_logprobs=(0.0,) * n, versions=(0,) * n
    )
    with pytest.raises(UserError, match="max_position_embeddings=128"):
        make(model).logprobs([Sample(rows=(row,))])


# -- checkpoints -------------------------------------------------------------------------------------------------


def test_a_resumed_run_takes_bitwise_the_same_step(any_model, make, tmp_path):
    batches = [make_samples(seed=i) for i in range(4)]
    trainer = make(any_model)
    for batch in batches[:2]:
        trainer.train_step(batch, GRPOLoss())
    trainer.save(tmp_path / "step-2", 2, {"ledger": ["a", "b"]})
    expected = [trainer.train_step(batch, GRPOLoss()) for batch in batches[2:]]
    drawn = torch.rand(3)
    after = weights(trainer)
    trainer.close()

    other = make(any_model)
    other.train_step(make_samples(seed=9), GRPOLoss())  # everything it did before has to be forgotten
    assert other.load(tmp_path / "step-2") == {"ledger": ["a", "b"]}
    assert other.step == 2
    torch.manual_seed(SETTINGS.seed)
    other.load(tmp_path / "step-2")
    for batch, metrics in zip(batches[2:], expected, strict=True):
        again = other.train_step(batch, GRPOLoss())
        assert again | {"seconds": 0} == metrics | {"seconds": 0}
    assert all(torch.equal(value, after[name]) for name, value in weights(other).items())
    assert torch.equal(torch.rand(3), drawn)


def test_a_checkpoint_before_the_first_step_restores_a_fresh_optimizer(model, make, tmp_path):
    """To save it and to load it change nothing."""
    untouched, trainer = make(model), make(model)
    expected = [untouched.train_step(make_samples(seed=seed), GRPOLoss()) | {"seconds": 0} for seed in (0, 1)]
    trainer.save(tmp_path / "start", 0, {})
    for _ in range(2):
        again = [trainer.train_step(make_samples(seed=seed), GRPOLoss()) | {"seconds": 0} for seed in (0, 1)]
        assert again == expected
        assert all(torch.equal(value, weights(untouched)[name]) for name, value in weights(trainer).items())
        trainer.load(tmp_path / "start")


def test_saving_twice_replaces_the_folder_and_leaves_nothing_else(model, make, tmp_path):
    trainer = make(model)
    (tmp_path / ".last.partial").mkdir()  # from a run that was killed while saving
    trainer.save(tmp_path / "last", 0, {"n": 1})
    trainer.train_step(make_samples(), GRPOLoss())
    trainer.save(tmp_path / "last", 1, {"n": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
    assert trainer.load(tmp_path / "last") == {"n": 2}


def test_damaged_and_foreign_folders_are_named(model, make, tmp_path):
    trainer = make(model)
    good = tmp_path / "good"
    trainer.save(good, 1, {})
    before = weights(trainer)
    data = max(good.rglob("*.distcp"), key=lambda path: path.stat().st_size).relative_to(good)

    manifest = json.loads((good / "forge_env.json").read_text())
    damages = {
        "truncated": lambda folder: os.truncate(folder / data, 100),
        "without_data": lambda folder: (folder / data).unlink(),
        "scrambled": lambda folder: (folder / data).write_bytes(b"x" * (good / data).stat().st_size),
        "garbled": lambda folder: (folder / "forge_env.json").write_text("{"),
        "newer": lambda folder: (folder / "forge_env.json").write_text(json.dumps(manifest | {"version": 99})),
        "other_model": lambda folder: (folder / "forge_env.json").write_text(json.dumps(manifest | {"model": {}})),
        "foreign": shutil.rmtree,
        "absent": shutil.rmtree,
    }
    for name, damage in damages.items():
        damage(Path(shutil.copytree(good, tmp_path / name)))
        if name == "foreign":
            (tmp_path / name).mkdir()
        with pytest.raises(UserError, match=name):
            trainer.load(tmp_path / name)
    assert all(torch.equal(value, before[name]) for name, value in weights(trainer).items())


def test_extra_that_is_not_json_fails_before_anything_is_written(model, make, tmp_path):
    with pytest.raises(TypeError):
        make(model).save(tmp_path / "out", 1, {"bad": object()})
    assert not list(tmp_path.iterdir())


def test_an_asynchronous_checkpoint_holds_the_weights_of_its_step(any_model, make, tmp_path):
    """Training goes on while it is written, and both go on bitwise as they would have."""
    batches = [make_samples(seed=i) for i in range(5)]
    trainer = make(any_model)
    trainer.train_step(batches[0], GRPOLoss())
    saved = weights(trainer)
    trainer.save(tmp_path / "step-1", 1, {"n": 1}, texts={"ready.jsonl": ["é\n".encode()]}, asynchronous=True)
    expected = [trainer.train_step(batch, GRPOLoss()) for batch in batches[1:]]
    trainer.close()  # waits
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert (tmp_path / "step-1" / "ready.jsonl").read_text(encoding="utf-8") == "é\n"
    assert "ready.jsonl" in read_manifest(tmp_path / "step-1")["files"]

    other = make(any_model)
    assert other.load(tmp_path / "step-1") == {"n": 1}
    assert all(torch.equal(value, saved[name]) for name, value in weights(other).items())
    for batch, metrics in zip(batches[1:], expected, strict=True):
        assert other.train_step(batch, GRPOLoss()) | {"seconds": 0} == metrics | {"seconds": 0}


def test_each_save_waits_for_the_one_before_and_only_the_last_stay(model, make, tmp_path):
    trainer = make(model)
    for step in range(1, 6):
        trainer.train_step(make_samples(seed=step), GRPOLoss())
        trainer.save(path_of(tmp_path, step), step, {"n": step}, asynchronous=step != 3, keep_last=2)
        assert len(steps_of(tmp_path)) >= min(step - 1, 2)
    assert trainer.load(path_of(tmp_path, 4)) == {"n": 4} and trainer.step == 4
    assert list(steps_of(tmp_path)) == [4, 5]  # a load waits too
    trainer.save(path_of(tmp_path, 6), 6, {}, asynchronous=True, keep_last=2)
    trainer.begin()  # and so does a new phase
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step_000005", "step_000006"]
    trainer.save(path_of(tmp_path, 7), 7, {}, asynchronous=True)
    trainer.finish_saving()
    assert 7 in steps_of(tmp_path)


@pytest.mark.parametrize("size", [100, 20_000])  # TorchTitan's first file, or only its largest
def test_a_full_disk_is_one_sentence_and_leaves_the_checkpoint_before(model, make, tmp_path, size):
    trainer = make(model)
    with (
        full_disk(size),
        pytest.raises(UserError, match="000001 cannot be written: .*start again: there is none before"),
    ):
        trainer.save(path_of(tmp_path, 1), 1, {})
    trainer.save(path_of(tmp_path, 1), 1, {"n": 1})
    match = "the checkpoint .*2 cannot be written: File too large; .*go on from step 1 with --resume$"
    with full_disk(size), pytest.raises(UserError, match=match):
        trainer.save(path_of(tmp_path, 2), 2, {})
    before = weights(trainer)
    with full_disk(size):
        trainer.save(path_of(tmp_path, 2), 2, {}, asynchronous=True)
        trainer._state._writing.exception()  # it has failed by now, and nobody was told
    with pytest.raises(UserError, match=match):
        trainer.train_step(make_samples(), GRPOLoss())
    assert all(torch.equal(value, before[name]) for name, value in weights(trainer).items())
    assert list(steps_of(tmp_path)) == [1] and len(list((tmp_path / "checkpoints").iterdir())) == 1
    # Told once, it goes on, and the next save is as good as any.
    trainer.train_step(make_samples(), GRPOLoss())
    trainer.save(path_of(tmp_path, 3), 3, {"n": 3}, asynchronous=True)
    assert trainer.load(path_of(tmp_path, 3)) == {"n": 3}
    with full_disk(size):
        trainer.save(path_of(tmp_path, 4), 4, {}, asynchronous=True)
        trainer._state._writing.exception()
    with pytest.raises(UserError, match="000004 cannot be written"):
        trainer.close()
    trainer.close()
    gc.collect()  # so that what the failed saves leave is noticed here: Python 3.13 prints what fails then


def save_for_ever(model: Path, run: Path) -> None:
    """Train and save until killed."""
    trainer = TitanTrainer(model, SETTINGS)
    for step in itertools.count(1):
        trainer.train_step(make_samples(seed=step), GRPOLoss())
        trainer.save(path_of(run, step), step, {"algorithm": "grpo", "config": {}}, asynchronous=True, keep_last=2)


def is_half_written(folder: Path) -> bool:
    return any(folder.glob(".*.partial/state/*/*"))


@pytest.mark.slow
def test_a_kill_while_writing_leaves_the_checkpoints_before(model, make, tmp_path):
    """A real SIGKILL, at a moment when a checkpoint is surely half-written: the process is held still to look."""
    code = (
        f"from tests.trainers.titan.test_trainer import *; save_for_ever(Path({str(model)!r}), Path({str(tmp_path)!r}))"
    )
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    folder = tmp_path / "checkpoints"
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-c", code], env=env, cwd=ROOT, stderr=log)
    try:
        while process.poll() is None:
            if len(steps_of(tmp_path)) < 2 or not is_half_written(folder):
                time.sleep(0.001)
                continue
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            if len(steps_of(tmp_path)) == 2 and is_half_written(folder):
                break
            process.send_signal(signal.SIGCONT)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL, (tmp_path / "log").read_text()
    partial = list(folder.glob(".*.partial"))
    newest = find(tmp_path)
    assert len(partial) == 1 and newest.step == max(steps_of(tmp_path))
    clean(tmp_path, newest.step)
    assert sorted(path.name for path in folder.iterdir()) == [path.name for path in steps_of(tmp_path).values()]
    trainer = make(model)
    trainer.load(newest.path)
    assert trainer.step == newest.step
    expected = make(model)
    for step in range(1, newest.step + 1):
        expected.train_step(make_samples(seed=step), GRPOLoss())
    assert all(torch.equal(value, weights(expected)[name]) for name, value in weights(trainer).items())


def test_a_folder_without_weights_is_refused(model, make, tmp_path):
    folder = Path(shutil.copytree(model, tmp_path / "copy"))
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="holds neither model.safetensors nor model.safetensors.index.json"):
        make(folder)


# -- several ranks -----------------------------------------------------------------------------------------------


# Of whole episodes on the slices of FSDP, the quick tests are those of the trainer's actor.
SPLIT, PACKED = {"max_tokens_per_micro_batch": 40}, {"pack_length": 64, "max_tokens_per_micro_batch": 64}
TP, FSDP = {"tensor_parallel_degree": 2}, {"data_parallel_shard_degree": 2}
CASES: Cases = {"tp-tied": ("tied", TP), "fsdp-split": ("untied", FSDP | SPLIT)}
MORE_CASES: Cases = {
    "tp-split": ("untied", TP | SPLIT | {"pack_length": 40}),
    "fsdp-packed": ("untied", FSDP | PACKED),
    "fsdp-tied": ("tied", FSDP),
    "tp-untied": ("untied", TP),
    "llama-fsdp": ("llama-3.2", FSDP),
    "llama-tied-fsdp": ("llama-3-tied", FSDP | PACKED | {"activation_checkpoint": "full"}),
    "llama-tp": ("llama-3.2", TP),
    "llama-tied-tp": ("llama-3-tied", TP),
    "qwen2.5-tied-fsdp": ("qwen2.5-tied", FSDP),
    "mistral-cp": ("mistral", {"context_parallel_degree": 2, "pack_length": 64}),
    "qwen2.5-tp": ("qwen2.5", TP | {"activation_checkpoint": "selective"}),
}


def train_three_steps(trainer: TitanTrainer, out: Path | None = None) -> dict:
    """Two steps, a save, a detour and a load, a third step: what every number of ranks has to agree on."""
    samples = make_samples(COUNT)  # the same in all steps, see `test_context.take_steps`
    metrics = [trainer.train_step(samples, loss) for loss in (GRPOLoss(), local_mean)]
    if out is not None:
        trainer.save(out / "checkpoint", 2, {"n": 2}, asynchronous=True)  # of the state before the detour
        trainer.train_step(samples, GRPOLoss())
        assert trainer.load(out / "checkpoint") == {"n": 2}
    # One sample for two ranks: one of them has nothing to do and must not keep the other waiting.
    metrics += [trainer.train_step(make_samples(1, seed=2), GRPOLoss(aggregation="token"))]
    if out is not None:
        trainer.export_hf(out / "export")
    return {"metrics": metrics, "logprobs": [values.tolist() for values in trainer.logprobs(samples)]}


def coupled(logprobs, old_logprobs, advantages, loss_mask, entropy, normalizer):
    """A loss of which each token's term depends on the others of its episode, and on their entropy."""
    ratio = torch.where(loss_mask, logprobs - old_logprobs, 0.0).exp()
    weight = torch.where(loss_mask, entropy - logprobs, 0.0).cumsum(-1).tanh()
    return ((ratio * weight * advantages * loss_mask).sum(-1) ** 2).sum() / normalizer


KINDS_OF_LOSSES = {
    "grpo, constant": GRPOLoss(aggregation="constant", constant=40.0),
    "dapo": DAPOLoss(beta=0.1),
    "gspo": GSPOLoss(0.1, 0.1),
    "cispo": CISPOLoss(entropy_coef=0.01),
    "coupled": coupled,
}
"""All losses are in test_invariance.py."""


def step_of_every_loss(trainer: TitanTrainer) -> dict[str, dict[str, float]]:
    """Metrics of one step of each; the trainer's learning rate should be next to nothing."""
    samples = [*(growing_rows(seed) for seed in range(2)), *make_samples(4)]
    samples = [dataclasses.replace(s, reference_logprobs=(-4.5,) * s.num_targets) for s in samples]
    return {name: trainer.train_step(samples, loss, old_is_present=True) for name, loss in KINDS_OF_LOSSES.items()}


def be_a_rank(root: Path, cases: Cases) -> None:
    """Go through many cases in one process group, because starting a process takes far longer than the work."""
    init_process_group()
    for case, (kind, changes) in cases.items():
        settings = dataclasses.replace(SETTINGS, **changes)
        trainer = TitanTrainer(root / kind, settings)
        result = train_three_steps(trainer, root / case)
        (root / case / f"{os.environ['RANK']}.json").write_text(json.dumps(result))
        if "max_tokens_per_micro_batch" in changes:
            trainer = TitanTrainer(root / kind, dataclasses.replace(settings, learning_rate=1e-12))
            every_loss = json.dumps(step_of_every_loss(trainer))
            (root / case / f"every-loss-{os.environ['RANK']}.json").write_text(every_loss)
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> Path:
    """What two processes left behind, one folder per case."""
    return run_cases(make_models(tmp_path_factory.mktemp("ranks")), CASES)


def make_models(root: Path) -> Path:
    make_model(root / "untied", tied=False)
    make_model(root / "tied", tied=True)
    return root


@pytest.fixture(scope="module")
def two_ranks_of_more_cases(tmp_path_factory) -> Path:
    root = make_models(tmp_path_factory.mktemp("more-ranks"))
    for name in {kind for kind, _ in MORE_CASES.values()} - {"untied", "tied"}:
        make_folder(root / name, name.removesuffix("-tied"), tied=name.endswith("-tied"))
    return run_cases(root, MORE_CASES, seconds=840)


def run_cases(root: Path, cases: Cases, *, world: int = 2, seconds: float = 240) -> Path:
    run_ranks(be_a_rank, root, cases, world=world, seconds=seconds)
    return root


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_take_the_steps_of_one(two_ranks, make, case):
    compare_with_one(two_ranks / CASES[case][0], two_ranks / case, make)


def test_split_episodes_on_two_ranks_give_the_step_of_whole_ones_for_every_loss(two_ranks, make):
    compare_every_loss(two_ranks, "fsdp-split", make)


@pytest.mark.slow
def test_split_episodes_on_tensor_ranks_give_the_step_of_whole_ones_for_every_loss(two_ranks_of_more_cases, make):
    compare_every_loss(two_ranks_of_more_cases, "tp-split", make)


def compare_every_loss(root: Path, case: str, make) -> None:
    expected = step_of_every_loss(make(root / "untied", learning_rate=1e-12))
    for rank in (0, 1):
        found = json.loads((root / case / f"every-loss-{rank}.json").read_text())
        for name in KINDS_OF_LOSSES:
            assert expected[name]["grad_norm"] > 1e-3, name
            assert found[name] | {"seconds": 0} == pytest.approx(expected[name] | {"seconds": 0}, abs=1e-5, rel=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", MORE_CASES)
def test_two_ranks_of_more_cases_take_the_steps_of_one(two_ranks_of_more_cases, make, case):
    compare_with_one(two_ranks_of_more_cases / MORE_CASES[case][0], two_ranks_of_more_cases / case, make)


def compare_with_one(kind: Path, out: Path, make, *, world: int = 2, **changes) -> None:
    alone = train_three_steps(make(kind, **changes))
    for rank in range(world):
        together = json.loads((out / f"{rank}.json").read_text())
        check_same(together, alone, rank=1)  # no weights are written down
    # What two ranks wrote, one process reads.
    exported = AutoModelForCausalLM.from_pretrained(out / "export")
    for sample, values in zip(make_samples(COUNT), together["logprobs"], strict=True):
        assert reference_logprobs(exported, sample) == pytest.approx(values, abs=1e-5)
    trainer = make(kind, **changes)
    assert trainer.load(out / "checkpoint") == {"n": 2}
    resumed = trainer.train_step(make_samples(1, seed=2), GRPOLoss(aggregation="token"))
    assert resumed | {"seconds": 0} == pytest.approx(alone["metrics"][2] | {"seconds": 0}, abs=1e-5, rel=1e-4)
