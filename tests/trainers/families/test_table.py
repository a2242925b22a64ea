"""Families of installed packages."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_env.core.errors import UserError
from trainers.families.table import families, family_of, known_shapes, read_config

SOURCE = """
from trainers.families.family import Family, sizes

ROSE = Family(
    model_type="rose",
    architecture="RoseForCausalLM",
    builder="trainers.titan.builder:Builder",
    published_sizes={"gardens/rose": sizes(64, 96, 2, 4, 2, 16, 97, 128)},
)
THORN = 3
"""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    families.cache_clear()
    known_shapes.cache_clear()


def package(site: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Install a package with a family, as far as its entry points go."""
    folder = site / "gardens-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: gardens\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[forge_env.models]\nrose = {target}\n")
    (site / "roses.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "roses", raising=False)
    families.cache_clear()
    known_shapes.cache_clear()


def test_a_package_adds_a_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, monkeypatch, "roses:ROSE")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {"model_type": "rose", **sizes, "vocab_size": 97, "max_position_embeddings": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert family_of(read_config(tmp_path)).architecture == "RoseForCausalLM"
    assert known_shapes()["gardens/rose"].vocab_size == 97
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "tulip"}))
    with pytest.raises(UserError, match=r"tulip: only .*LlamaForCausalLM.*RoseForCausalLM.* can be trained"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("target", "match"),
    [
        ("roses:THORN", "the package gardens: roses:THORN is 3: it has to be a Family"),
        ("tulips:TULIP", "the package gardens: 'tulips:TULIP': there is no module 'tulips'"),
    ],
)
def test_what_is_no_family_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, match: str) -> None:
    package(tmp_path, monkeypatch, target)
    with pytest.raises(UserError, match=match):
        families()
