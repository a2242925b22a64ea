"""Checks of the model: its folder, thinking, context, heads, experts and adapters."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

from agents.generator.adapter_folder import WEIGHTS
from agents.model_folder import check_engine_packages, trained_model, weight_files
from agents.model_weights import places
from forge_env.core.errors import UserError
from forge_env.records.run_weights import run_of
from forge_env.utils.settings import with_values
from trainers.config import RunConfig
from trainers.families.family import Family
from trainers.families.gpt_oss import is_quantized
from trainers.families.table import family_of, read_config
from trainers.families.weights import check_weights
from trainers.lora import adapter_shapes, check_adapter_shapes
from trainers.model.find import FoundModel
from trainers.setup.run_plan import RunPlan


def with_model_of_run(config: RunConfig) -> RunConfig:
    """The config with the folder of the model, if `model.path` names weights of a training run."""
    path = config.model.path
    return (
        with_values(config, {"model.path": str(trained_model(path))}) if path and run_of(path) is not None else config
    )


def check_thinking(plan: RunPlan) -> None:
    """Check `env.thinking` of a model whose folder is not here."""
    is_asked = plan.config.env.thinking == "on" and plan.model.folder is None
    if is_asked and plan.shape is not None and not plan.shape.thinks:
        raise UserError(
            f"--env.thinking is on, and the model {plan.model.path} has none: set it to off, or choose another model"
        )


def check_folder(plan: RunPlan, folder: Path) -> FoundModel:
    """Check the files of the model: template, tokenizer, thinking, and the tensors; returns what was found out."""
    assert plan.shape is not None, "the folder has a config.json"
    from agents.folder_checks import check_folder as check  # slow import, which a plan without a folder does not need
    from trainers.model.new_rows import untrained

    model = read_config(folder)
    family = family_of(model)
    parts = [family.parts(name, place.shape) for name, place in places(weight_files(folder)).items()]
    check_weights(folder, family.weights(model), {name: size for part in parts for name, size in part.items()})
    check_packages(plan, family)
    if plan.has_engine:
        check_engine_packages(folder)
    checked = check(folder, plan.config.env.thinking, plan.config.renderer.tools)
    if (lora := plan.lora) is not None and lora.adapter:
        halves = places([Path(lora.adapter) / WEIGHTS])
        shapes = {name: place.shape for name, place in halves.items()}
        check_adapter_shapes(Path(lora.adapter), lora, adapter_shapes(lora, plan.shape), shapes)
    renderer = checked.renderer
    rows = untrained(folder, renderer)
    if rows and plan.config.model.new_rows == "on" and is_quantized(model):
        raise UserError(
            f"--model.new_rows is on, and the experts of {folder} are in MXFP4, of which the run writes a copy in "
            "bfloat16: run with new_rows off once, and name its initial_model with --model"
        )
    return replace(
        plan.model,
        unread=parts.count({}),
        untrained=rows,
        template=renderer.notes,
        tools_problem=renderer.format.tools_problem,
        tokenizer=checked.tokenizer,
    )


def check_packages(plan: RunPlan, family: Family) -> None:
    """Check that the packages are installed that this family alone needs."""
    for module, package in family.gpu_packages.items():
        if plan.config.services.trainer.with_gpus and importlib.util.find_spec(module) is None:
            raise UserError(
                f"the package {package} is not installed, and a trainer of {family.architecture} on a GPU needs it: "
                f"pip install {package}"
            )


def check_length(plan: RunPlan) -> None:
    """Check that an episode fits into the model's context."""
    seq_len, longest, shape = plan.config.training.seq_len, plan.config.env.max_tokens, plan.shape
    if shape is None or longest <= shape.max_position_embeddings:
        return
    name = "training.seq_len" if seq_len else "env.max_tokens"
    raise UserError(
        f"--{name} is {longest}, and the model {plan.config.model.path or 'made on the spot'} reads "
        f"{shape.max_position_embeddings} tokens at most: set it to that or less"
    )


def check_shape(plan: RunPlan) -> None:
    """Check that the model can be cut, spread and adapted as the settings ask for."""
    if (shape := plan.shape) is not None:
        plan.trainer.check_model(shape)
        shape.check_cut("services.generator.procs", plan.config.services.generator.procs)
