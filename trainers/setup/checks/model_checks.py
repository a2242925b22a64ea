"""Checks of the model: its folder, thinking, context, heads, experts and adapters."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents.generator.adapter_folder import WEIGHTS
from agents.model_folder import check_engine_packages, weight_files
from agents.model_weights import check_weights, places
from forge_env.core.errors import UserError
from trainers.families.family import Family
from trainers.families.table import family_of, read_config
from trainers.lora import adapter_shapes, check_adapter_shapes
from trainers.model.find import FoundModel
from trainers.setup.run_plan import RunPlan


def check_sizes(plan: RunPlan) -> None:
    """Check what the sizes of the model say of a run, if they are known; of its files see `check_folder`."""
    shape, longest = plan.shape, plan.config.env.max_tokens
    if shape is None:
        return
    plan.trainer.check_model(shape)
    shape.check_cut("services.generator.procs", plan.config.services.generator.procs)
    if plan.config.env.thinking == "on" and plan.model.folder is None and not shape.thinks:
        raise UserError(
            f"--env.thinking is on, and the model {plan.model.path} has none: set it to off, or choose another model"
        )
    if longest > shape.max_position_embeddings:
        raise UserError(
            f"--{'training.seq_len' if plan.config.training.seq_len else 'env.max_tokens'} is {longest}, and the model "
            f"{plan.config.model.path or 'made on the spot'} reads {shape.max_position_embeddings} tokens at most: set "
            "it to that or less"
        )


def check_folder(plan: RunPlan, folder: Path) -> FoundModel:
    """Check the files of the model: template, tokenizer, thinking, and the tensors; returns what was found out."""
    assert plan.shape is not None, "the folder has a config.json"
    from agents.served_tokenizer import (
        check_folder as check,  # slow import, which a plan without a folder does not need
    )
    from trainers.model.new_rows import untrained_tokens

    model, unread = _check_tensors(folder)
    check_packages(plan, family_of(model))
    if plan.has_engine:
        check_engine_packages(folder)
    files = check(folder, plan.config.env.thinking, plan.config.renderer.tools)
    if (lora := plan.lora) is not None and lora.adapter:
        halves = places([Path(lora.adapter) / WEIGHTS])
        shapes = {name: place.shape for name, place in halves.items()}
        check_adapter_shapes(Path(lora.adapter), lora, adapter_shapes(lora, plan.shape), shapes)
    renderer = files.renderer
    rows = untrained_tokens(folder, renderer)
    if rows and plan.config.model.new_rows == "on" and plan.model.quantization:
        raise UserError(
            f"--model.new_rows is on, and {folder} has {plan.model.quantization}, of which the run writes a copy in "
            "bfloat16: run with new_rows off once, and name its initial_model with --model"
        )
    return replace(
        plan.model,
        unread=unread,
        untrained_tokens=rows,
        template=renderer.notes,
        tools_problem=renderer.format.tools_problem,
        tokenizer=files.tokenizer,
    )


def _check_tensors(folder: Path) -> tuple[dict[str, Any], int]:
    """Check that a model's folder has its weights; returns its config, and the number of tensors that are not read."""
    model = read_config(folder)
    family = family_of(model)
    parts = [family.parts(name, place.shape) for name, place in places(weight_files(folder)).items()]
    check_weights(folder, family.weights(model), {name: size for part in parts for name, size in part.items()})
    return model, parts.count({})


def check_teacher(plan: RunPlan, name: str, folder: Path, model: Path | None) -> None:
    """Check that a teacher can judge the tokens of the model, a folder, or None if that is not here yet."""
    longest, shape = plan.config.env.max_tokens, plan.teachers[name].shape
    _check_tensors(folder)
    if quantization := plan.teachers[name].quantization:
        raise UserError(
            f"--distill.teacher is {name}, which has {quantization}: name a copy in bfloat16, such as the "
            "initial_model that a run with --model writes"
        )
    if shape is not None and shape.max_position_embeddings < longest:
        raise UserError(
            f"--distill.teacher is {name}, which reads {shape.max_position_embeddings} tokens at most, and "
            f"--env.max_tokens is {longest}: set it to that or less, or take another teacher"
        )
    if shape is not None and plan.config.distill.top_k > shape.vocab_size:
        raise UserError(
            f"--distill.top_k is {plan.config.distill.top_k}, and the vocabulary has {shape.vocab_size} tokens: set it "
            "to that or less"
        )
    if model is None:
        return
    from agents.renderer.tokenizer import FastTokenizer  # slow import

    ours, others = (FastTokenizer(each).vocabulary for each in (model, folder))
    differing = min((token for token in {*ours.items()} ^ {*others.items()}), key=lambda token: token[1], default=None)
    if differing is not None:
        text, number = differing
        raise UserError(
            f"--distill.teacher is {name}, which has another vocabulary than the model {model}: only one of them has "
            f"the token {text!r} as number {number}; take a teacher with the tokenizer of the model"
        )


def check_packages(plan: RunPlan, family: Family) -> None:
    for module, package in family.gpu_packages.items():
        if plan.config.services.trainer.with_gpus and importlib.util.find_spec(module) is None:
            raise UserError(
                f"the package {package} is not installed, and a trainer of {family.architecture} on a GPU needs it: "
                f"pip install {package}"
            )
