"""Every family that the trainer knows: the numbers and the weights of transformers, and a sentence for all others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("torchtitan")
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from forge_env.core.episode import Row
from forge_env.core.errors import UserError
from tests.trainers.titan.folders import FAMILIES, LLAMA3_ROPE, SIZES, VOCABULARY, Kinds, make_folder
from tests.trainers.titan.weights import fused_projections, weights_of
from trainers.batching.batch import Sample
from trainers.families.table import family_of, read_config
from trainers.losses import SFTLoss
from trainers.titan.attention import document_mask
from trainers.titan.builder import builder_of
from trainers.titan.model import TitanModel
from trainers.titan.trainer import TitanSettings, TitanTrainer

SETTINGS = TitanSettings(dtype="float32", learning_rate=1e-3)
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 32}
SLIDES = {"use_sliding_window": True, "sliding_window": 8}
YARN_SCALING = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
NAMES = {f"{family}{'-tied' * tied}": (family, tied) for family in FAMILIES for tied in (False, True)}
CLOSE = {"atol": 2e-5, "rtol": 0}  # of logits up to 5: a few times as many roundings of float32 as there are sums


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: make_folder(root / name, family, tied=tied) for name, (family, tied) in NAMES.items()}


LOOKED_AT = ["qwen3", "qwen3-tied", "qwen3-moe", "llama-3-tied", "llama-3.2", "qwen2.5-tied", "mistral"]
WITH_BLOCKS = ["qwen2.5", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen3", "llama-3.2-tied"))]


@pytest.fixture(scope="module", params=LOOKED_AT)
def untouched(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Iterator[tuple[Path, TitanTrainer]]:
    """Each folder with a trainer of its own, for tests that only look."""
    trainer = TitanTrainer(folders[request.param], TitanSettings(dtype="float32"))
    yield folders[request.param], trainer
    trainer.close()


@pytest.fixture(params=["qwen3", "llama-3-tied", "llama-3.2", "qwen2.5-tied", "qwen3-moe"])
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


@pytest.fixture(params=WITH_BLOCKS)
def with_blocks(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    """For tests of checkpointed and compiled blocks."""
    return folders[request.param]


def logits(trainer: TitanTrainer, tokens: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
    with torch.no_grad():
        return trainer.model.logits(tokens, positions, torch.arange(tokens.numel())).unflatten(0, tokens.shape)


def reference_logits(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder)(tokens).logits


def random_tokens(seed: int = 0, shape: tuple[int, int] = (3, 100)) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def some_samples() -> list[Sample]:
    rows = [tuple(row.tolist()) for row in random_tokens(5, (6, 20))]
    mask = (False, *[True] * 19)
    return [
        Sample(rows=(Row(token_ids=row, loss_mask=mask, generator_logprobs=(-4.0,) * 20, versions=(0,) * 20),))
        for row in rows
    ]


def change_config(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    kept = {name: value for name, value in (config | changes).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


# -- the same model as transformers ------------------------------------------------------------------------------


def test_logits_equal_transformers(untouched):
    (folder, trainer), tokens = untouched, random_tokens()
    expected = reference_logits(folder, tokens)
    assert expected.abs().max() > 1
    torch.testing.assert_close(logits(trainer, tokens), expected, **CLOSE)
    positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
    torch.testing.assert_close(logits(trainer, tokens, positions), expected, **CLOSE)


def test_packed_rows_have_the_logits_that_each_has_alone(untouched):
    (folder, trainer), tokens = untouched, random_tokens()
    lengths = (17, 40, 43)
    positions = torch.cat([torch.arange(length) for length in lengths]).expand(tokens.shape)
    expected = torch.cat([reference_logits(folder, part) for part in tokens.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(logits(trainer, tokens, positions), expected, **CLOSE)


def test_weights_come_back_as_they_were_under_the_same_names(untouched):
    folder, trainer = untouched
    state, saved = weights_of(trainer), load_file(folder / "model.safetensors")
    assert state.keys() == saved.keys()
    for name, value in state.items():
        assert torch.equal(value, saved[name])


ANY = {
    "groups": st.sampled_from([(1, 1), (4, 1), (3, 3), (6, 2)]),
    "head_dim": st.sampled_from([8, 16, 20]),
    "theta": st.sampled_from([100.0, 10000.0, 500000.0]),
    "eps": st.sampled_from([1e-3, 1e-6]),
}


@given(family=st.sampled_from(sorted(FAMILIES)), tied=st.booleans(), **ANY)
@settings(max_examples=8, deadline=None)
def test_any_sizes_give_the_logits_of_transformers(
    tmp_path_factory, family, tied, groups, head_dim, theta, eps
) -> None:
    changes = any_sizes(FAMILIES, family, groups, head_dim, theta) | {"rms_norm_eps": eps}
    check_logits(make_folder(tmp_path_factory.mktemp("any"), family, tied=tied, **changes))


def any_sizes(families: Kinds, family: str, groups: tuple[int, int], head_dim: int, theta: float) -> dict[str, Any]:
    heads, kv_heads = groups
    special = families[family][1]
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        # Where the head's size is not free, it follows from the width.
        "hidden_size": heads * 8 if "head_dim" in special else heads * head_dim,
        "rope_parameters": {**SIZES["rope_parameters"], **special.get("rope_parameters", {}), "rope_theta": theta},
        **({"head_dim": head_dim} if "head_dim" in special else {}),
    }


def check_logits(folder: Path) -> None:
    trainer = TitanTrainer(folder, TitanSettings(dtype="float32"))
    try:
        tokens = random_tokens()
        torch.testing.assert_close(logits(trainer, tokens), reference_logits(folder, tokens), **CLOSE)
    finally:
        trainer.close()


def test_rope_scaling_is_read_in_the_names_of_older_versions(folders, make, tmp_path):
    tokens = random_tokens()
    expected = reference_logits(folders["llama-3.2"], tokens)
    scaling = {("type" if name == "rope_type" else name): value for name, value in LLAMA3_ROPE.items()}
    theta = scaling.pop("rope_theta")
    old = Path(shutil.copytree(folders["llama-3.2"], tmp_path / "old"))
    change_config(old, rope_parameters=..., rope_scaling=scaling, rope_theta=theta)
    torch.testing.assert_close(logits(make(old), tokens), expected, **CLOSE)
    # The test of the logits above would miss a scaling that changes nothing.
    unscaled = change_config(old, rope_scaling=None)
    assert (logits(make(unscaled), tokens) - expected).abs().max() > 0.1


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("qwen3", {"rope_parameters": YARN | {"attention_factor": 1.3, "beta_fast": 16, "beta_slow": 2}}),
        ("qwen2.5", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}}),
        ("llama-3", {"rope_parameters": YARN | {"truncate": False}}),
        ("qwen3", {"rope_scaling": YARN_SCALING, "rope_theta": 5000.0}),
        ("qwen2.5", {**SLIDES, "layer_types": ["sliding_attention"] * 2}),
        ("mistral", {"sliding_window": 16}),
        ("mistral", {"sliding_window": None}),
    ],
)
def test_scaled_positions_and_windows_are_those_of_transformers(folders, make, tmp_path, name, changes):
    copy = change_config(Path(shutil.copytree(folders[name], tmp_path / "copy")), **changes)
    trainer, tokens, lengths = make(copy), random_tokens(), (17, 40, 43)
    expected = reference_logits(copy, tokens)
    assert (expected - reference_logits(folders[name], tokens)).abs().max() > 0.1
    torch.testing.assert_close(logits(trainer, tokens), expected, **CLOSE)
    positions = torch.cat([torch.arange(length) for length in lengths]).expand(tokens.shape)
    expected = torch.cat([reference_logits(copy, part) for part in tokens.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(logits(trainer, tokens, positions), expected, **CLOSE)


def test_the_kernels_of_a_gpu_have_the_same_window(folders, make):
    model = make(folders["mistral"]).model
    check_blocks(model, 8)
    varlen = builder_of(model.hf_config)(model.hf_config, attention="varlen", fuse_qkv=True).decoder()
    assert [layer.attention.inner_attention.window_size for layer in varlen.layers] == [(7, 0)] * 2


def check_blocks(model: TitanModel, window: int | None) -> None:
    """The mask of flex attention is that of the other kernels, for two packed rows."""
    positions = torch.cat([torch.arange(length) for length in (70, 58)])[None]
    model.attention = "flex"
    with torch.compiler.set_stance("force_eager"):
        blocks = model._mask(positions, positions, window)
    query, key = torch.meshgrid(torch.arange(128), torch.arange(128), indexing="ij")
    of_row = torch.zeros_like(query)
    assert torch.equal(blocks.mask_mod(of_row, of_row, query, key), document_mask(positions, window)[0, 0])


def test_a_row_as_long_as_the_model_allows_is_rotated_to_its_end(folders, make):
    tokens = random_tokens(shape=(1, SIZES["max_position_embeddings"]))
    expected = reference_logits(folders["llama-3.2"], tokens)
    torch.testing.assert_close(logits(make(folders["llama-3.2"]), tokens), expected, **CLOSE)


def test_a_trained_export_is_what_transformers_loads(folder, make, tmp_path):
    trainer, tokens = make(folder), random_tokens()
    before = logits(trainer, tokens)
    trainer.train_step(some_samples(), SFTLoss())
    trainer.export_hf(tmp_path / "out")
    ours = logits(trainer, tokens)
    assert (ours - before).abs().max() > 1e-3
    torch.testing.assert_close(reference_logits(tmp_path / "out", tokens), ours, **CLOSE)
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert saved.keys() == load_file(folder / "model.safetensors").keys()


def test_every_weight_takes_the_step_that_transformers_takes(folder, make, tmp_path):
    check_step(folder, make, tmp_path / "reference")


def check_step(folder: Path, make: Any, out: Path) -> None:
    """One step of plain torch on transformers' model: a gradient that went elsewhere would show in its weight.

    Without the dropout that its config asks for, and with the row of the padding token; an expert may have none.
    """
    samples, reference = some_samples(), AutoModelForCausalLM.from_pretrained(folder)
    reference.get_input_embeddings().padding_idx = None
    tokens = torch.tensor([sample.rows[0].token_ids.tolist() for sample in samples])
    table = reference(tokens).logits[:, :-1].log_softmax(-1)
    (-table.gather(-1, tokens[:, 1:, None]).mean()).backward()
    # A large eps makes the first step of Adam nearly proportional to the gradient.
    torch.optim.AdamW(reference.parameters(), lr=1.0, eps=1.0, weight_decay=0.0).step()
    trainer = make(folder, learning_rate=1.0, eps=1.0, max_grad_norm=1e9)
    before, saved = weights_of(trainer), load_file(folder / "model.safetensors")
    assert before.keys() == saved.keys() and all(torch.equal(before[name], saved[name]) for name in saved)
    trainer.train_step(samples, SFTLoss())
    reference.save_pretrained(out)
    expected = load_file(out / "model.safetensors")
    for name, value in weights_of(trainer).items():
        assert name.endswith("correction_bias") or ".experts." in name or not torch.equal(value, before[name])
        torch.testing.assert_close(value, expected[name], atol=2e-6, rtol=0)


def test_fused_projections_and_bfloat16_as_on_a_gpu(folder, make):
    separate = make(folder)
    with fused_projections():
        fused, half = make(folder), make(folder, dtype="bfloat16")
    expected, tokens = weights_of(separate), random_tokens()
    for trainer in (fused, half):
        is_fused = any("wqkv" in name for name, _ in trainer.model.module.named_parameters())
        assert is_fused == ("qwen3.5" not in folder.name)
        state = weights_of(trainer)
        assert state.keys() == expected.keys() and all(torch.equal(state[name], expected[name]) for name in state)
    torch.testing.assert_close(logits(fused, tokens), logits(separate, tokens), **CLOSE)
    losses = [trainer.train_step(some_samples(), SFTLoss())["loss"] for trainer in (separate, fused, half)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)
    assert losses[2] == pytest.approx(losses[0], abs=3e-2)


# -- activation checkpointing and compilation --------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["selective", "attention", "full"])
def test_activation_checkpointing_changes_no_gradient(with_blocks, make, tmp_path, mode):
    samples = some_samples()
    kept, again = make(with_blocks), make(with_blocks, activation_checkpoint=mode)
    computed = count_calls(kept), count_calls(again)
    gradients = []
    for trainer in (kept, again):
        batch = torch.tensor([sample.rows[0].token_ids for sample in samples])
        trainer.model.logits(batch, None, torch.arange(batch.numel())).logsumexp(-1).sum().backward()
        gradients.append([parameter.grad for parameter in trainer.model.module.parameters()])
    assert computed == ([2], [4])  # the backward pass runs each again
    assert all(torch.equal(ours, expected) for ours, expected in zip(*gradients, strict=True))
    for trainer in (kept, again):
        trainer.model.module.zero_grad()
    metrics = [trainer.train_step(samples, SFTLoss()) | {"seconds": 0} for trainer in (kept, again)]
    assert metrics[0] == metrics[1]
    again.save(tmp_path / "checkpoint", 1, {})  # the wrapper is in no name, so either loads what the other saved
    kept.load(tmp_path / "checkpoint")
    again.load(tmp_path / "checkpoint")
    metrics = [trainer.train_step(samples, SFTLoss()) | {"seconds": 0} for trainer in (kept, again)]
    assert metrics[0] == metrics[1]


def count_calls(trainer: TitanTrainer) -> list[int]:
    """A counter of how often a layer of the model has attended to anything."""
    count = [0]

    def called(*_: Any) -> None:
        count[0] += 1

    for name, part in trainer.model.module.named_modules():
        if name.endswith("inner_attention"):
            part.register_forward_hook(called)
    return count


@pytest.mark.parametrize(("mode", "times"), [("attention", 2), ("full", 4)])
def test_kept_attention_is_not_computed_again(folders, make, mode, times):
    calls = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function == torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
                calls.append(function)
            return function(*args, **(kwargs or {}))

    trainer = make(folders["qwen3"], activation_checkpoint=mode)  # of two layers
    tokens = torch.arange(12)[None]
    with Watch():
        trainer.model.logits(tokens, None, torch.arange(12)).sum().backward()
    assert len(calls) == times


def test_an_unknown_kind_of_activation_checkpointing_is_refused(folders, make):
    with pytest.raises(UserError, match="activation_checkpoint is 'some'.*none, selective, attention, full"):
        make(folders["qwen3"], activation_checkpoint="some")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["none", "full"])
def test_compiled_blocks_take_the_same_step(with_blocks, make, mode):
    samples = some_samples()
    compiled = make(with_blocks, compile=True, activation_checkpoint=mode, eps=1e-3)
    plain = make(with_blocks, eps=1e-3)
    for _ in range(2):
        ours, expected = (trainer.train_step(samples, SFTLoss()) for trainer in (compiled, plain))
        assert ours | {"seconds": 0} == pytest.approx(expected | {"seconds": 0}, abs=1e-4)


# -- folders that cannot be trained ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("qwen2.5", {"use_sliding_window": True, "layer_types": ..., "max_window_layers": 28, "sliding_window": 8}),
        ("qwen3", {"use_sliding_window": False, "layer_types": ..., "sliding_window": 4096, "max_window_layers": 0}),
        ("qwen2.5", {"attention_bias": True}),
        ("llama-3.2", {"architectures": ..., "num_key_value_heads": 2, "logit_scale": 1}),
    ],
)
def test_settings_that_are_switched_off_do_not_refuse_a_config(folders, make, tmp_path, name, changes):
    copy = change_config(Path(shutil.copytree(folders[name], tmp_path / "copy")), **changes)
    tokens = random_tokens()
    assert torch.equal(logits(make(copy), tokens), logits(make(folders[name]), tokens))


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        (
            "qwen2.5",
            {"model.layers.1.self_attn.k_proj.bias": None},
            "lacks weight model.layers.1.self_attn.k_proj.bias",
        ),
        ("llama-3", {"model.layers.0.self_attn.q_norm.weight": (16,)}, "superfluous weight .*q_norm"),
        ("llama-3", {"model.layers.0.self_attn.q_proj.weight": (64, 32)}, r"q_proj.weight has shape \(64, 32\)"),
        ("llama-3-tied", {"model.embed_tokens.weight": None}, "lacks weight model.embed_tokens.weight"),
        ("qwen3", {"lm_head.weight": None}, "lacks weight lm_head.weight"),
    ],
)
def test_weights_that_do_not_fit_are_named_as_in_the_folder(folders, make, tmp_path, name, change, match):
    copy = Path(shutil.copytree(folders[name], tmp_path / "copy"))
    weights = load_file(copy / "model.safetensors")
    for weight, shape in change.items():
        weights.pop(weight, None)
        if shape is not None:
            weights[weight] = torch.zeros(shape)
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=match):
        make(copy)


def test_copies_that_old_folders_keep_are_passed_over(folders, make, tmp_path):
    copy = Path(shutil.copytree(folders["llama-3-tied"], tmp_path / "copy"))
    weights = load_file(copy / "model.safetensors")
    head = weights["model.embed_tokens.weight"].clone()
    extra = {"lm_head.weight": head, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    save_file({**weights, **extra}, copy / "model.safetensors", metadata={"format": "pt"})
    state = weights_of(make(copy))
    assert state.keys() == weights.keys() and all(torch.equal(state[name], weights[name]) for name in weights)
    head[-1, -1] += 1
    save_file({**weights, **extra}, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"holds a lm_head.weight that differs from its model.embed_tokens.weight"):
        make(copy)


def test_the_plan_knows_every_tensor_of_a_family(folders, make):
    for folder in folders.values():
        expected = {name: tuple(weight.shape) for name, weight in weights_of(make(folder)).items()}
        config = read_config(folder)
        assert family_of(config).weights(config) == expected
