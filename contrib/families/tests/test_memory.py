"""The plan's formulas of memory against the bytes of a real trainer, for these families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchtitan")
from contrib.families.tests.folders import GPT_OSS, KINDS, make_folder
from tests.trainers.titan.test_memory_counts import LONG, SIZES, check_activations, check_bytes

SPECIAL: dict[str, dict[str, Any]] = {
    "gemma3": KINDS,
    "glm4-moe": {},
    "gpt-oss": {"rope_parameters": GPT_OSS["rope_parameters"] | {"factor": 32.0}},
    "qwen3.5-moe": {"full_attention_interval": 1},  # no delta rule, for which a GPU has kernels that keep less
}


@pytest.mark.parametrize("family", SPECIAL)
def test_bytes_of_weights_gradients_moments_and_published_tensors(tmp_path: Path, family: str) -> None:
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim" or family == "qwen3.5-moe"}
    sizes = sizes | (KINDS if family == "gemma3" else {})
    check_bytes(make_folder(tmp_path / "model", family, tied=family == "gemma3", **sizes))


@pytest.mark.parametrize("family", SPECIAL)
@pytest.mark.parametrize(("mode", "most"), [("none", 1.3), ("full", 1.05)])
def test_activations_kept_for_the_backward_pass(tmp_path: Path, family: str, mode: str, most: float) -> None:
    folder = make_folder(tmp_path / "model", family, tied=False, **LONG | SPECIAL[family])
    check_activations(folder, mode, most)
