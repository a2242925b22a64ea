"""What the trainer leaves on disk: checkpoints to go on from, and Hugging Face folders for everybody else.

A checkpoint is a folder with TorchTitan's files, which any number of ranks can read again, and a manifest that names
every file with its size. Folders appear whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException

# First of all TorchTitan imports: it settles the device for the others.
from trainers.titan_model import Qwen3  # isort: skip
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer

from forge_env.errors import UserError

MANIFEST = "forge_env.json"
CHECKPOINT_VERSION = 1
# TorchTitan's manager files a checkpoint under its step and restores only the weights of a step 0. The step is kept in
# the manifest, and the manager is always told this one.
MANAGER_STEP = 1
# Copied from the model's folder into an export, so that transformers and vLLM can load it.
EXPORT_PATTERNS = ("config.json", "generation_config.json", "*token*", "vocab.*", "merges.txt", "*.jinja", "*.model")


@dataclass(frozen=True, slots=True)
class TrainingState:
    """All that a step reads and changes, torch's random state included. Every rank calls its methods."""

    model: Qwen3
    optimizer: OptimizersContainer
    scheduler: LRSchedulersContainer

    def save(self, folder: Path, *, step: int, optimizer_steps: int, extra: Mapping[str, Any]) -> None:
        """Write a checkpoint that replaces `folder`; `extra` must be JSON."""
        text = json.dumps(dict(extra))  # fail before anything is written
        with _replacement(folder) as partial:
            self._manager(partial).save(MANAGER_STEP)
            _barrier()  # the manifest lists the files of all ranks
            if _is_first():
                manifest = {
                    "version": CHECKPOINT_VERSION,
                    "step": step,
                    "optimizer_steps": optimizer_steps,
                    "model": _shape(self.model.hf_config),
                    "files": {str(path.relative_to(partial)): path.stat().st_size for path in _files(partial)},
                    "extra": json.loads(text),
                }
                _write(partial / MANIFEST, json.dumps(manifest))

    def load(self, folder: Path) -> dict[str, Any]:
        """Restore everything from a checkpoint and return its manifest.

        Raises:
            UserError: the folder is missing, truncated, not a checkpoint of a trainer, or of another model.
        """
        manifest = _read_manifest(folder)
        if manifest["model"] != _shape(self.model.hf_config):
            raise UserError(f"{folder} was saved from a model of another shape: {manifest['model']}.")
        try:
            with warnings.catch_warnings():  # the schedule recomputes its rate in a way that torch warns about
                warnings.simplefilter("ignore", UserWarning)
                self._manager(folder).load(MANAGER_STEP)
        except (Exception, CheckpointException) as error:  # there is no common base for what a damaged file raises
            raise UserError(f"{folder} is damaged: its contents cannot be restored.") from error
        return manifest

    def _manager(self, folder: Path) -> CheckpointManager:
        config = CheckpointManager.Config(
            enable=True,
            folder="state",
            interval=1,
            keep_latest_k=0,
            initial_load_model_only=False,
            exclude_from_loading=["dataloader"],
        )
        return CheckpointManager(
            config,
            dataloader=None,
            model_parts=[self.model.module],
            optimizers=self.optimizer,
            lr_schedulers=self.scheduler,
            states={"rng": _RandomState()},
            sd_adapter=None,
            base_folder=str(folder),
        )


def export_hf(model: Qwen3, folder: Path) -> None:
    """Write a Hugging Face folder: safetensors in config.json's dtype, and the tokenizer's files beside them.

    Every rank calls it.
    """
    weights = model.hf_state_dict()
    with _replacement(folder) as partial:
        if _is_first():
            name = str(model.hf_config.get("dtype") or model.hf_config.get("torch_dtype") or "float32")
            dtype = getattr(torch, name.removeprefix("torch."))
            weights = {key: value.to(device="cpu", dtype=dtype) for key, value in weights.items()}
            save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
            for source in {path for pattern in EXPORT_PATTERNS for path in model.folder.glob(pattern)}:
                if source.is_file():
                    shutil.copy(source, partial / source.name)


class _RandomState:
    """torch's generators, in the form that checkpoints want."""

    def state_dict(self) -> dict[str, Tensor]:
        state = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state()
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        torch.set_rng_state(state["cpu"])
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"])


def _shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """What two models must share for one's checkpoint to fit the other."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    return {name: config.get(name) for name in (*names, "num_key_value_heads", "head_dim", "tie_word_embeddings")}


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's manifest and compare it with the files that are there."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a checkpoint: there is no such folder.")
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        files, version = manifest["files"], manifest["version"]
    except FileNotFoundError:
        raise UserError(f"{folder} is not a checkpoint of this trainer: it has no {MANIFEST}.") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{folder} is damaged: its {MANIFEST} cannot be read.") from None
    if version != CHECKPOINT_VERSION:
        raise UserError(f"{folder} has checkpoint version {version}, this trainer reads {CHECKPOINT_VERSION}.")
    for name, size in files.items():
        found = (folder / name).stat().st_size if (folder / name).is_file() else 0
        if found != size:
            raise UserError(f"{folder} is damaged: {name} has {found} bytes of {size}.")
    return manifest


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _write(path: Path, text: str) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _replacement(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder`, the same one on every rank, that takes its place when the block has ended.

    The first rank has to be the last to write. If the block raises, `folder` stays as it was.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    old = folder.with_name(f".{folder.name}.old")
    if _is_first():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    _barrier()
    yield partial
    if _is_first():  # a folder cannot be renamed over a full one, so the old one steps aside first
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    _barrier()


def _is_first() -> bool:
    return dist.get_rank() == 0


def _barrier() -> None:
    if dist.get_world_size() > 1:
        dist.barrier()
