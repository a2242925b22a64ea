"""The model of a checkpoint: `python -m trainers.run.checkpoint_model CHECKPOINT OUT` writes a Hugging Face folder.

`agents.model_folder` starts it for whoever names a checkpoint as a model. It computes nothing, and uses no GPU. One
process reads a checkpoint of any number of ranks.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from agents.model_folder import INITIAL, find_model
from agents.renderer.served import texts_of_export
from agents.served_tokenizer import check_folder, plain_config
from forge_env.core.errors import ForgeError, UserError
from forge_env.runtime.process.children import die_with
from forge_env.utils.quick_imports import quick_imports
from trainers.checkpoints import read_manifest
from trainers.lora import Lora


def export_checkpoint(folder: Path, out: Path) -> None:
    """Write the weights of a checkpoint, adapters merged, as a Hugging Face folder."""
    manifest = read_manifest(folder)
    config, lora = manifest["extra"]["config"], manifest["lora"]
    own = folder.absolute().parent.parent / INITIAL
    base = own if own.is_dir() else find_model(config["model"]["path"])

    # Imported now: they take seconds, and a damaged checkpoint has been refused before.
    with quick_imports():
        from trainers.titan.checkpoint import load_weights
        from trainers.titan.export import export_hf
        from trainers.titan.settings import TitanSettings
        from trainers.titan.trainer import TitanTrainer

    settings = TitanSettings(dtype="float32", lora=Lora(**lora) if lora else None)
    trainer = TitanTrainer(base, replace(settings, attention="sdpa"), is_frozen=True)
    load_weights(trainer.model, folder)
    section = config.get(manifest["extra"]["algorithm"]) or {}
    thinking, tools = config["env"]["thinking"], config["renderer"]["tools"]
    texts, _ = texts_of_export(base, thinking, tools, temperature=section.get("temperature", 1.0))
    if check_folder(base, thinking, tools).tokenizer:
        texts["tokenizer_config.json"] = plain_config(base)
    export_hf(trainer.model, out, texts=texts)
    trainer.close()


def main() -> int:
    die_with(os.getppid())
    try:
        export_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]))
    except ForgeError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
