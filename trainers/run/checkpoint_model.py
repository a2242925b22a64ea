"""The model of a checkpoint: `python -m trainers.run.checkpoint_model RUN/checkpoints/step_000040` writes its `model/`.

`agents.model_folder.find_model` starts it for whoever names a checkpoint as a model. It computes nothing, and uses no
GPU. The folder is removed with its checkpoint.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from agents.folder_checks import check_folder
from agents.model_folder import INITIAL, find_model
from agents.renderer.served import texts_of_export
from agents.served_tokenizer import plain_config
from forge_env.core.errors import ForgeError, UserError
from trainers.checkpoints import read_manifest
from trainers.lora import Lora


def export_checkpoint(folder: Path) -> None:
    """Write the weights of a checkpoint, adapters merged, as a Hugging Face folder."""
    from trainers.titan.checkpoint import load_weights
    from trainers.titan.export import export_hf
    from trainers.titan.settings import TitanSettings
    from trainers.titan.trainer import TitanTrainer

    manifest = read_manifest(folder)
    config, lora = manifest["extra"]["config"], manifest["lora"]
    own = folder.parent.parent / INITIAL
    base = own if own.is_dir() else find_model(config["model"]["path"])
    settings = TitanSettings(dtype="float32", lora=Lora(**lora) if lora else None)
    trainer = TitanTrainer(base, replace(settings, attention="sdpa"), is_frozen=True)
    load_weights(trainer.model, folder)
    section = config.get(manifest["extra"]["algorithm"]) or {}
    thinking, tools = config["env"]["thinking"], config["renderer"]["tools"]
    texts, _ = texts_of_export(base, thinking, tools, temperature=section.get("temperature", 1.0))
    if check_folder(base, thinking, tools).tokenizer:
        texts["tokenizer_config.json"] = plain_config(base)
    export_hf(trainer.model, folder / "model", texts=texts)
    trainer.close()


def main() -> int:
    try:
        export_checkpoint(Path(sys.argv[1]))
    except ForgeError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
