"""The model of a checkpoint is the export of the trainer that saved it."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("torchtitan")
from safetensors.torch import load_file

from agents.model_folder import find_model, trained_model
from forge_env.core.errors import UserError
from forge_env.utils.settings import with_values
from tests.trainers.titan.test_trainer import SETTINGS, make_samples
from trainers.checkpoints import path_of
from trainers.lora import Lora
from trainers.losses import SFTLoss
from trainers.run.checkpoint_model import export_checkpoint
from trainers.sft import Config
from trainers.titan.trainer import TitanTrainer


@pytest.mark.parametrize("lora", [None, Lora(rank=4, alpha=8.0)])
def test_it_is_the_export_of_the_trainer(tiny_model: Path, tmp_path: Path, lora: Lora | None) -> None:
    shutil.copytree(tiny_model, tmp_path / "run" / "initial_model")
    config = asdict(with_values(Config(), {"model.path": "not/there"}))
    extra = {"algorithm": "sft", "command": "trainers.sft", "config": config}
    trainer = TitanTrainer(tiny_model, with_values(SETTINGS, {"lora": lora, "learning_rate": 1e-2}))
    for step in (1, 2):
        trainer.train_step(make_samples(), SFTLoss())
        trainer.save(path_of(tmp_path / "run", step), step, extra)
    trainer.export_hf(tmp_path / "expected")
    trainer.close()
    run = (tmp_path / "run").rename(tmp_path / "renamed")
    export_checkpoint(path_of(run, 2))
    model = trained_model(str(run))
    assert model == find_model(str(path_of(run, 2))) == path_of(run, 2) / "model"
    expected, weights = (load_file(folder / "model.safetensors") for folder in (tmp_path / "expected", model))
    assert expected.keys() == weights.keys() and all((expected[name] == weights[name]).all() for name in expected)


def test_a_damaged_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    folder = path_of(tmp_path, 1)
    folder.mkdir(parents=True)
    (folder / "forge_env.json").write_text("{}")
    with pytest.raises(UserError, match="the model of the checkpoint .* cannot be written: .* is damaged"):
        find_model(str(folder))
