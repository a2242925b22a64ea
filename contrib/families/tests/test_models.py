"""The numbers and the weights of transformers: the tests of the heart's families, on these."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torchtitan")
from contrib.families.gpt_oss import EPS
from contrib.families.tests.folders import FAMILIES, GPT_OSS, make_folder
from forge_env.core.errors import UserError
from tests.trainers.titan import test_models as models
from tests.trainers.titan.test_hf_weights import check_checkpoints, run_cases
from trainers.families.table import read_config
from trainers.titan.trainer import TitanSettings, TitanTrainer

SETTINGS = models.SETTINGS
ROPE = GPT_OSS["rope_parameters"]
NAMES = {"qwen3.5": False, "qwen3.5-tied": True, "qwen3.5-moe": False, "qwen3.5-moe-tied": True, "gpt-oss": False}
"""Whether the output layer is the embedding."""

test_logits_equal_transformers = models.test_logits_equal_transformers
test_packed_rows_have_the_logits_that_each_has_alone = models.test_packed_rows_have_the_logits_that_each_has_alone
test_weights_come_back = models.test_weights_come_back_as_they_were_under_the_same_names
test_a_trained_export_is_what_transformers_loads = models.test_a_trained_export_is_what_transformers_loads
test_every_weight_takes_the_step = models.test_every_weight_takes_the_step_that_transformers_takes
test_fused_projections_and_bfloat16_as_on_a_gpu = models.test_fused_projections_and_bfloat16_as_on_a_gpu
test_activation_checkpointing_changes_no_gradient = models.test_activation_checkpointing_changes_no_gradient
test_compiled_blocks_take_the_same_step = models.test_compiled_blocks_take_the_same_step
test_the_plan_knows_every_tensor_of_a_family = models.test_the_plan_knows_every_tensor_of_a_family


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: make_folder(root / name, name.removesuffix("-tied"), tied=tied) for name, tied in NAMES.items()}


@pytest.fixture(scope="module", params=NAMES)
def untouched(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Iterator[tuple[Path, TitanTrainer]]:
    trainer = TitanTrainer(folders[request.param], TitanSettings(dtype="float32"))
    yield folders[request.param], trainer
    trainer.close()


@pytest.fixture(params=["qwen3.5-moe-tied", "gpt-oss"])
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


@pytest.fixture
def with_blocks(folders: dict[str, Path]) -> Path:
    return folders["qwen3.5-moe"]


@given(family=st.sampled_from(sorted(FAMILIES)), tied=st.booleans(), **models.ANY)
@settings(max_examples=4, deadline=None)
def test_any_sizes_give_the_logits_of_transformers(
    tmp_path_factory, family, tied, groups, head_dim, theta, eps
) -> None:
    is_fixed = family == "gpt-oss"
    changes = models.any_sizes(FAMILIES, family, groups, head_dim, theta) | {"rms_norm_eps": EPS if is_fixed else eps}
    models.check_logits(make_folder(tmp_path_factory.mktemp("any"), family, tied=tied and not is_fixed, **changes))


@pytest.mark.slow  # the quick one is of the heart's families
def test_two_ranks_of_fsdp_read_their_slices_and_stream_full_tensors(tmp_path: Path) -> None:
    cases = {"qwen3.5-moe-tied": {"data_parallel_shard_degree": 2}}
    make_folder(tmp_path / "qwen3.5-moe-tied", "qwen3.5-moe", tied=True)
    ranks = run_cases(tmp_path, 2, cases)
    assert [rank["same"] for rank in ranks] == [dict.fromkeys(cases, True), dict.fromkeys(cases, False)]
    check_checkpoints(tmp_path, cases, ranks)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"swiglu_limit": 6.0}, r"swiglu_limit 6.0 instead of 7.0.*GptOssForCausalLM"),
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps 1e-06 instead of 1e-05"),
        ({"attention_bias": False}, "attention_bias False instead of True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types other than sliding"),
        ({"sliding_window": None}, "sliding_window None"),
        ({"num_local_experts": ...}, "num_local_experts = None"),
        ({"quantization_config": {"quant_method": "fp8"}}, "weights quantized by fp8"),
        ({"rope_parameters": models.YARN}, "yarn without beta_fast, beta_slow"),
        (
            {"rope_parameters": {name: value for name, value in ROPE.items() if name != "rope_theta"}},
            "yarn without rope_theta",
        ),
        ({"rope_parameters": {**ROPE, "attention_factor": 1.2}}, "attention_factor 1.2 of yarn"),
        ({"rope_parameters": ...}, "rope scaling 'default'"),
    ],
)
def test_what_gpt_oss_does_not_compute_is_refused(folders, tmp_path, changes, match) -> None:
    copy = Path(shutil.copytree(folders["gpt-oss"], tmp_path / "copy"))
    with pytest.raises(UserError, match=match):
        read_config(models.change_config(copy, **changes))
