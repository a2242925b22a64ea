"""Configs of models that cannot be trained: each setting that nobody computes is refused with a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forge_env.core.errors import UserError
from tests.helpers.rows import rows
from tests.trainers.titan.folders import FAMILIES, make_folder
from trainers.families.table import read_config

ABSENT = "(absent)"
"""In the place of a setting that the config does not have."""


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The config.json of a model of each family that can be trained."""
    root = tmp_path_factory.mktemp("families")
    folders = {name: make_folder(root / name, name, tied=False) for name in FAMILIES}
    return {name: (folder / "config.json").read_text() for name, folder in folders.items()}


@pytest.mark.parametrize(("name", "changes", "match"), rows(__file__, "refusals.tsv"))
def test_what_cannot_be_trained_is_refused_with_a_sentence(
    configs: dict[str, str], tmp_path: Path, name: str, changes: str, match: str
) -> None:
    check_refusal(tmp_path, configs[name], changes, match)


def check_refusal(folder: Path, text: str, changes: str, match: str) -> None:
    """A config.json is read, and with these changes refused."""
    config, path = json.loads(text), folder / "config.json"
    path.write_text(text)
    read_config(folder)
    changed = (config | json.loads(changes)).items()
    path.write_text(json.dumps({setting: value for setting, value in changed if value != ABSENT}))
    with pytest.raises(UserError, match=match):
        read_config(folder)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[]", "holds no JSON object"),
        ('{"model_type": "qwen3", "tie_word_embeddings": "False"}', "'False', which is a text: write false without"),
    ],
)
def test_a_config_that_is_no_config_is_refused(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=match):
        read_config(tmp_path)
