"""Folders of random models with the tokenizer and the template of another one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from trainers.families.table import family_of, read_config


def make_model_folder(folder: Path, like: Path, **config: Any) -> Path:
    """A folder with random weights for a config.json that differs from that of `like` in some entries."""
    folder.mkdir()
    for path in like.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, folder)
    settings = json.loads((like / "config.json").read_text())
    vocabulary = {"vocab_size": settings["vocab_size"]}
    (folder / "config.json").write_text(json.dumps(settings | config | vocabulary))
    generator = torch.Generator().manual_seed(0)
    model = read_config(folder)
    shapes = family_of(model).weights(model)
    weights = {name: torch.randn(shape, generator=generator) * 0.02 for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def change_weights(folder: Path, **changes: Tensor | None) -> None:
    """Replace tensors of a folder by name, with __ for each dot; None removes one."""
    weights = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        weights.pop(name.replace("__", "."), None)
        if tensor is not None:
            weights[name.replace("__", ".")] = tensor.contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def change_json(path: Path, **changes: Any) -> None:
    """Change entries of a file of JSON."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
