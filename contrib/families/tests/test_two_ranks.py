"""Steps of two ranks: the experts of Qwen3.5 spread over them, and the slices of transformers' own modules."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torchtitan")
from contrib.families.tests.folders import UNTIED, make_folder
from tests.trainers.titan.test_trainer import FSDP, PACKED, compare_with_one, run_cases


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_ranks_with_the_experts_of_each_other_take_the_steps_of_one(tmp_path: Path, make) -> None:
    folder = make_folder(tmp_path / "model", "qwen3.5-moe", tied=True)
    smooth = {"eps": 1e-3}  # else Adam's first steps blow up the rounding of small gradients
    cases = {"ep": (folder.name, {"expert_parallel_degree": 2, "pack_length": 64, **smooth})}
    compare_with_one(folder, run_cases(tmp_path, cases) / "ep", make, **smooth)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_ranks_with_slices_of_a_module_take_the_steps_of_one(tmp_path: Path, make) -> None:
    cases = {
        "gemma3-fsdp": ("gemma3", FSDP | PACKED | {"activation_checkpoint": "full"}),
        "olmo3-fsdp": ("olmo3", FSDP | {"activation_checkpoint": "selective"}),
    }
    for name, _ in cases.values():
        make_folder(tmp_path / name, name, tied=name not in UNTIED)
    run_cases(tmp_path, cases, seconds=840)
    for case, (name, _) in cases.items():
        compare_with_one(tmp_path / name, tmp_path / case, make)
