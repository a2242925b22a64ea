"""The families that can be trained: those of Llama and Qwen, and those of others.

Others are rows of the table [models] of a contrib/NAME/names.toml, and entry points of installed packages.

read_config(folder)     the config.json of a family, in which every setting is computed
family_of(config)       the family of such a config
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from agents.model_folder import config_of
from forge_env.core.errors import UserError
from forge_env.registry.contrib import rows
from forge_env.utils.targets import load
from trainers.families import llama, qwen
from trainers.families.family import Family
from trainers.families.shape import ModelShape

GROUP = "forge_env.models"
"""The entry points of installed packages that name a `Family`."""


@functools.cache
def families() -> Mapping[str, Family]:
    """Every family, by its model_type."""
    every = [*llama.FAMILIES, *qwen.FAMILIES]
    targets = {row.target: f"the outbuilding {row.folder}:" for row in rows("models").values()}
    for point in entry_points(group=GROUP):
        targets[f"{point.module}:{point.attr}"] = f"the package {point.dist.name if point.dist else point.name}:"
    for target, whose in targets.items():
        family = load(target, option=whose)
        if not isinstance(family, Family):
            raise UserError(f"{whose} {target} is {family!r}: it has to be a Family of trainers/families/family.py")
        every.append(family)
    return {family.model_type: family for family in every}


@functools.cache
def known_shapes() -> Mapping[str, ModelShape]:
    """The published sizes of the recipes' models, for a plan before they are downloaded."""
    return {
        name: family.shape(sizes) for family in families().values() for name, sizes in family.published_sizes.items()
    }


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of a family that can be trained, in which every setting would be computed."""
    config, path = config_of(folder), folder / "config.json"
    architecture = (config.get("architectures") or [config.get("model_type", "unknown")])[0]
    family = families().get(config.get("model_type", ""))
    # A folder made by hand may leave the architecture out; then the model type counts.
    if f"{config.get('model_type')}_text" in families():
        raise UserError(
            f"{path} is a {architecture}, which also reads images, and only its text can be trained: save that as a "
            "folder of its own, with AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER) of "
            "transformers, and copy the tokenizer's files to it"
        )
    if family is None or architecture not in (family.architecture, config["model_type"]):
        architectures = ", ".join(sorted(family.architecture for family in families().values()))
        raise UserError(f"{path} is a {architecture}: only {architectures} can be trained.")
    family.check(config, path)
    return config


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a config, as `read_config` returns it."""
    return families()[config["model_type"]]


def read_shape(folder: Path) -> ModelShape:
    """The sizes in the config.json of a folder."""
    config = read_config(folder)
    return family_of(config).shape(config)
