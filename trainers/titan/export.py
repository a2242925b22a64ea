"""Exports the weights of a model to files, tensor by tensor, written by the first rank."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from trainers.titan.model import TitanModel
from trainers.titan.weight_files import MAX_FILE_BYTES, write_file, write_folder
from trainers.titan.whole_folder import is_first, replacement, write_texts

# Files of the model's folder that an export gets too, so that transformers and vLLM can load it.
PATTERNS = ("config.json", "generation_config.json", "*token*", "vocab.*", "merges.txt", "*.jinja", "*.model")


def export_hf(
    model: TitanModel, folder: Path, *, texts: Mapping[str, str] | None = None, max_file_bytes: int = MAX_FILE_BYTES
) -> None:
    """Write a Hugging Face folder: safetensors in config.json's dtype, and the tokenizer's files beside them.

    Every rank calls it. The folder appears complete or not at all.

    Args:
        max_file_bytes: larger weights are split over several files, with an index.
    """
    name = str(model.hf_config.get("dtype") or model.hf_config.get("torch_dtype") or "float32")
    dtype: torch.dtype = getattr(torch, name.removeprefix("torch."))
    with replacement(folder) as partial, model.weights.stream(dtype) as tensors:
        if is_first():
            write_folder(partial, model.weights.layout(dtype), tensors, max_file_bytes=max_file_bytes)
            for source in {path for pattern in PATTERNS for path in model.folder.glob(pattern)}:
                if source.is_file():
                    shutil.copy(source, partial / source.name)
            config = model.hf_config
            if left_out := model.builder.family.left_out & config.keys():
                public_config = {name: value for name, value in config.items() if name not in left_out}
                (partial / "config.json").write_text(json.dumps(public_config, indent=2) + "\n", encoding="utf-8")
            write_texts(partial, texts)


def write_weights(model: TitanModel, path: Path) -> None:
    """See `TitanTrainer.write_weights`."""
    dtype = torch.float32
    partial_path = path.with_name(f"{path.name}.unfinished")
    with model.weights.stream(dtype) as tensors:
        if is_first():
            write_file(partial_path, model.weights.layout(dtype), tensors)
            os.replace(partial_path, path)
