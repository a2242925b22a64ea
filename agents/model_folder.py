"""The folder of a model: a local one, or a download from the hub."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from forge_env.core.errors import UserError
from forge_env.records.run_files import read_object
from forge_env.records.run_weights import RunWeights, run_of, run_weights
from forge_env.utils.atomic import Target

INITIAL = "initial_model"
"""The folder of a model that was made for a run, in the run's folder."""
EXPORTER = "trainers.run.checkpoint_model"
"""The program that writes the model of a checkpoint, by name: agents do not import trainers."""
EXPORT_SECONDS = 3600.0


def find_model(name: str, *, option: str = "--model") -> Path:
    """The folder of a local model, or of a download from the hub.

    Args:
        name: a Hugging Face folder, weights of a training run (see `run_weights`), or a hub id.
    """
    if run_of(name) is not None:
        return trained_model(name)
    folder = Path(name).expanduser()
    if not folder.exists():
        check_hub_id(name)
        patterns = ["*.json", "*.safetensors", "*.jinja", "*.txt"]
        # Mistral publishes its weights twice; these are not read.
        others = ["consolidated*.safetensors"]
        return _from_hub(name, lambda hub: hub.snapshot_download(name, allow_patterns=patterns, ignore_patterns=others))
    return _complete(folder, option)


def trained_model(name: str) -> Path:
    """The Hugging Face folder of weights of a training run; a checkpoint's is written when it is first asked for."""
    weights = run_weights(name)
    if not weights.is_checkpoint:
        return _complete(weights.folder)
    model = weights.folder / "model"
    if not model.is_dir():
        with Target(model, name=f"the model of the checkpoint {weights.folder}") as target:
            _write_model(weights.folder, target.path)
            target.commit()
    return model


def export_model(name: str, out: Path) -> RunWeights:
    """Write weights of a training run as a Hugging Face folder, which is there only when it is complete.

    Args:
        out: a folder that does not exist yet, or an empty one.
    """
    weights = run_weights(name)
    model = weights.folder / "model" if weights.is_checkpoint else weights.folder
    for own in (weights.folder, weights.run / "checkpoints"):
        if out.expanduser().resolve().is_relative_to(own.resolve()):
            raise UserError(f"--out {out} is within {own}, which belongs to the run: name a folder elsewhere")
    with Target(out) as target:
        try:
            if model.is_dir():
                shutil.copytree(_complete(model), target.path)
            else:
                _write_model(weights.folder, target.path)
            target.commit()
        except OSError as error:
            reason = error.args[0][0][-1] if isinstance(error, shutil.Error) else error.strerror or error
            raise UserError(f"--out {out} cannot be written: {reason}") from None
    return weights


def split_adapter(name: str, adapter: str = "") -> tuple[str, str]:
    """The model and its adapter. The name may be an adapter's folder, which names its model.

    Args:
        adapter: the folder of an adapter that is given in addition; "" is none.
    """
    folder = Path(name).expanduser()
    file = folder / "adapter_config.json"
    if not file.is_file() or (folder / "config.json").is_file():
        return name, adapter
    if adapter:
        raise UserError(f"{name} is an adapter, and {adapter} is given beside it: leave one of the two out")
    base = read_object(file).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise UserError(f"{file} names no base_model_name_or_path: name the model, and {name} with --adapter")
    beside = folder.parent / Path(base).name  # the run of both may have been renamed or copied
    return str(beside) if (beside / "config.json").is_file() else base, name


def weight_files(folder: Path) -> list[Path]:
    """The files with the weights of a Hugging Face folder: one, or all that its index names. Nothing else is read."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if not index.is_file():
        if single.is_file():
            _check_alone(folder, {single.name}, "*.safetensors", "vLLM")
            return [single]
        raise UserError(
            f"the model folder {folder} holds neither {single.name} nor {index.name}: save its weights there in that "
            "format"
        )
    places = read_object(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UserError(f"{index} is damaged: it has no weight_map; copy it from the model again")
    files = sorted({str(name) for name in places.values()})
    if outside := [name for name in files if Path(name).name != name]:
        raise UserError(f"{index} names {outside[0]!r}, which is not a file beside it: take another copy of the model")
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(
            f"the model folder {folder} lacks {missing[0]}{more} of the {len(files)} files of its weights: copy what "
            "is missing from the model"
        )
    _check_alone(folder, set(files), single.name, "transformers")
    return [folder / name for name in files]


def _check_alone(folder: Path, files: Collection[str], pattern: str, reader: str) -> None:
    """Refuse further files that a package would read as well, or instead: it would compute another model."""
    others = sorted(path.name for path in folder.glob(pattern) if path.name not in files)
    if others:
        raise UserError(
            f"the model folder {folder} holds {others[0]} beside its weights in {min(files)}, and {reader} would read "
            "it too: move what is not the model's to another folder"
        )


_TIED = ("gemma3_text", "smollm3")
"""Types of models with the embedding as their output layer, unless config.json says otherwise."""


def config_of(folder: Path) -> dict[str, Any]:
    """The config.json of a Hugging Face folder, which says in any case whether the output layer is the embedding."""
    path = _config_file(folder)
    config = read_object(path)
    if config.get("model_type") in _TIED and "tie_word_embeddings" not in config:
        config["tie_word_embeddings"] = True
    check_booleans(config, path)
    return config


def _config_file(folder: Path, option: str = "--model") -> Path:
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(
            f"{folder} holds no config.json: {option} wants a Hugging Face folder, a training run or a hub id"
        )
    return path


def check_booleans(config: Mapping[str, Any], path: Path) -> None:
    """Refuse a text that stands for a boolean: programs take "false" for true."""
    for name, value in config.items():
        if isinstance(value, str) and value.lower() in ("true", "false"):
            raise UserError(f"{path} says {name} = {value!r}, which is a text: write {value.lower()} without quotes")


def context_length(folder: Path) -> int | None:
    """The context length in tokens (prompt and completion) from config.json; None if the config has none."""
    length = config_of(folder).get("max_position_embeddings")
    return length if isinstance(length, int) and length > 0 else None


def has_linear_attention(folder: Path) -> bool:
    """Whether layers of the model have a gated delta rule, as in Qwen3.5."""
    return bool(config_of(folder).get("linear_num_value_heads"))


def check_engine_packages(folder: Path) -> None:
    """Check that vLLM can import its class of the model: its file of linear attention also has models that see."""
    if has_linear_attention(folder) and importlib.util.find_spec("torchvision") is None:
        raise UserError(
            f"the package torchvision is not installed, and vLLM needs it for {folder}, a model with linear "
            "attention: pip install the torchvision that fits this torch"
        )


def fetch_config(name: str) -> Path:
    """Download only the config.json of a model of the hub; returns its folder in the hub's cache."""
    return _from_hub(name, lambda hub: hub.hf_hub_download(name, "config.json")).parent


def check_hub_id(name: str) -> None:
    """Refuse what is not a local folder and cannot be a hub id either."""
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(f"there is no model folder {name}, and a hub id looks like Qwen/Qwen3-1.7B")


def _complete(folder: Path, option: str = "--model") -> Path:
    """The folder of a model, which holds all that a model needs."""
    _config_file(folder, option)
    if not (folder / "tokenizer.json").is_file():
        raise UserError(f"the model folder {folder} holds no tokenizer.json: save its tokenizer there as well")
    weight_files(folder)
    return folder


def _write_model(checkpoint: Path, out: Path) -> None:
    """Write the model of a checkpoint, in a process of its own: the GPUs are not for it."""
    command = [sys.executable, "-m", EXPORTER, str(checkpoint), str(out)]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    try:
        process = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=EXPORT_SECONDS)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"the model of the checkpoint {checkpoint} was not written within {EXPORT_SECONDS:g} s: look at the disk"
        ) from None
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or [f"it ended with {process.returncode}"])[-1]
        raise UserError(f"the model of the checkpoint {checkpoint} cannot be written: {reason}")


def _from_hub(name: str, download: Callable[[Any], str]) -> Path:
    try:
        import huggingface_hub
    except ImportError:
        raise UserError(
            f"to download {name} the package huggingface-hub is needed: pip install 'forge-env[cpu]'"
        ) from None
    try:
        return Path(download(huggingface_hub))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"the model {name} is no local folder and could not be downloaded: {reason}") from None
