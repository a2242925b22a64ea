"""The families that can be trained, by the model_type of config.json: the `FAMILIES` of the files of this folder.

read_config(folder)     the config.json of a family, in which every setting is computed
family_of(config)       the family of such a config
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from agents.model_folder import config_of
from forge_env.core.errors import UserError
from trainers.families.family import Family
from trainers.families.shape import ModelShape

_MODULES = [f"{__package__}.{module.name}" for module in iter_modules([str(Path(__file__).parent)])]
FAMILIES: dict[str, Family] = {
    family.model_type: family
    for module in _MODULES
    if module != __name__
    for family in getattr(import_module(module), "FAMILIES", ())
}
KNOWN_SHAPES: dict[str, ModelShape] = {
    name: family.shape(sizes) for family in FAMILIES.values() for name, sizes in family.published_sizes.items()
}
"""The published sizes of the recipes' models, for a plan before they are downloaded."""


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of a family that can be trained, in which every setting would be computed."""
    config, path = config_of(folder), folder / "config.json"
    architecture = (config.get("architectures") or [config.get("model_type", "unknown")])[0]
    family = FAMILIES.get(config.get("model_type", ""))
    # A folder made by hand may leave the architecture out; then the model type counts.
    if f"{config.get('model_type')}_text" in FAMILIES:
        raise UserError(
            f"{path} is a {architecture}, which also reads images, and only its text can be trained: save that as a "
            "folder of its own, with AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER) of "
            "transformers, and copy the tokenizer's files to it"
        )
    if family is None or architecture not in (family.architecture, config["model_type"]):
        architectures = ", ".join(sorted(family.architecture for family in FAMILIES.values()))
        raise UserError(f"{path} is a {architecture}: only {architectures} can be trained.")
    family.check(config, path)
    return config


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a config, as `read_config` returns it."""
    return FAMILIES[config["model_type"]]


def read_shape(folder: Path) -> ModelShape:
    """The sizes in the config.json of a folder."""
    config = read_config(folder)
    return family_of(config).shape(config)
