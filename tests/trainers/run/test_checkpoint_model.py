"""The model of a checkpoint is the export of the trainer that saved it."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchtitan")
import torch
from safetensors.torch import load_file

from agents.model_folder import export_model, find_model, trained_model
from forge_env.core.errors import UserError
from forge_env.utils.settings import with_values
from tests.helpers.forks import run_ranks
from tests.helpers.model_folders import make_model_folder
from tests.trainers.titan.folders import EXPERTS
from tests.trainers.titan.test_trainer import SETTINGS, make_samples
from trainers.checkpoints import path_of
from trainers.lora import Lora
from trainers.losses import SFTLoss
from trainers.run.checkpoint_model import export_checkpoint
from trainers.sft import Config
from trainers.titan.parallel import init_process_group
from trainers.titan.trainer import TitanTrainer

EXTRA = {
    "algorithm": "sft",
    "command": "trainers.sft",
    "config": asdict(with_values(Config(), {"model.path": "not/there"})),
}


@pytest.mark.parametrize("lora", [None, Lora(rank=4, alpha=8.0)])
def test_it_is_the_export_of_the_trainer(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: Lora | None
) -> None:
    """In this process here; test_resume.py has one of its own."""
    monkeypatch.setattr("agents.model_folder._write_model", export_checkpoint)
    shutil.copytree(tiny_model, tmp_path / "run" / "initial_model")
    trainer = TitanTrainer(tiny_model, with_values(SETTINGS, {"lora": lora, "learning_rate": 1e-2}))
    for step in (1, 2):
        trainer.train_step(make_samples(), SFTLoss())
        trainer.save(path_of(tmp_path / "run", step), step, EXTRA)
    trainer.export_hf(tmp_path / "expected")
    trainer.close()
    run = (tmp_path / "run").rename(tmp_path / "renamed")
    model = trained_model(str(run))
    assert model == find_model(str(path_of(run, 2))) == find_model(f"{run}@2") == path_of(run, 2) / "model"
    expected, weights = (load_file(folder / "model.safetensors") for folder in (tmp_path / "expected", model))
    assert expected.keys() == weights.keys() and all((expected[name] == weights[name]).all() for name in expected)


RANKS: dict[str, dict[str, Any]] = {
    "adapters": {"lora": Lora(rank=4, alpha=8.0)},
    "experts": {"expert_parallel_degree": 2},
    "tied tensor": {"tensor_parallel_degree": 2},
}


def be_a_rank(root: Path, names: tuple[str, ...]) -> None:
    init_process_group()
    for name in names:
        trainer = TitanTrainer(root / name / "initial_model", replace(SETTINGS, learning_rate=1e-2, **RANKS[name]))
        trainer.train_step(make_samples(2), SFTLoss())
        trainer.save(path_of(root / name, 1), 1, EXTRA)
        trainer.export_hf(root / name / "expected")
        trainer.close()
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    "names", [("adapters", "experts"), pytest.param(("tied tensor",), marks=pytest.mark.slow)], ids=" ".join
)
def test_a_checkpoint_of_two_ranks_is_read_by_one_process(
    tiny_model: Path, tmp_path: Path, names: tuple[str, ...]
) -> None:
    experts = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], **EXPERTS}
    for name in names:
        (tmp_path / name).mkdir()
        changes = {"tied tensor": {"tie_word_embeddings": True}, "experts": experts}.get(name, {})
        make_model_folder(tmp_path / name / "initial_model", tiny_model, num_hidden_layers=1, **changes)
    run_ranks(be_a_rank, tmp_path, names, world=2, seconds=120)
    for name in names:
        out = tmp_path / name / "out"
        export_checkpoint(path_of(tmp_path / name, 1), out)
        start, expected, weights = (
            load_file(tmp_path / name / folder / "model.safetensors") for folder in ("initial_model", "expected", "out")
        )
        assert expected.keys() == weights.keys() == start.keys(), name
        assert all((expected[key] == weights[key]).all() for key in expected), name
        assert any((start[key] != weights[key]).any() for key in start), name


def test_a_damaged_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    folder = path_of(tmp_path, 1)
    folder.mkdir(parents=True)
    (folder / "forge_env.json").write_text("{}")
    for use in (find_model, lambda name: export_model(name, tmp_path / "out" / "model")):
        with pytest.raises(UserError, match="the model of the checkpoint .* cannot be written: .* is damaged"):
            use(str(folder))
    assert [path.name for path in folder.iterdir()] == ["forge_env.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
