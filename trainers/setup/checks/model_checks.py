"""Checks of the model: its folder, thinking, context, heads, experts and adapters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agents.generator.adapter_folder import WEIGHTS
from agents.model_folder import trained_model, weight_files
from agents.model_weights import places
from forge_env.core.errors import UserError
from forge_env.records.run_weights import run_of
from forge_env.utils.settings import with_values
from trainers.config import RunConfig
from trainers.families.gpt_oss import is_quantized
from trainers.families.table import family_of, read_config
from trainers.families.weights import check_weights
from trainers.lora import adapter_shapes, check_adapter_shapes
from trainers.model.find import FoundModel
from trainers.setup.draft import Draft


def with_model_of_run(config: RunConfig) -> RunConfig:
    """The config with the folder of the model, if `model.path` names weights of a training run."""
    path = config.model.path
    return (
        with_values(config, {"model.path": str(trained_model(path))}) if path and run_of(path) is not None else config
    )


def check_thinking(draft: Draft) -> None:
    """Check `env.thinking` of a model whose folder is not here."""
    is_asked = draft.env.thinking == "on" and draft.model.folder is None
    if is_asked and draft.shape is not None and not draft.shape.thinks:
        raise UserError(
            f"--env.thinking is on, and the model {draft.model.path} has none: set it to off, or choose another model"
        )


def check_folder(draft: Draft, folder: Path) -> FoundModel:
    """Check the files of the model: template, tokenizer, thinking, and the tensors; returns what was found out."""
    assert draft.shape is not None, "the folder has a config.json"
    from agents.folder_checks import check_folder as check  # slow import, which a plan without a folder does not need
    from trainers.model.new_rows import untrained

    tensors = {name: place.shape for name, place in places(weight_files(folder)).items()}
    model = read_config(folder)
    check_weights(folder, family_of(model).weights(model), tensors)
    checked = check(folder, draft.env.thinking, draft.renderer.tools)
    if (lora := draft.lora) is not None and lora.adapter:
        halves = places([Path(lora.adapter) / WEIGHTS])
        shapes = {name: place.shape for name, place in halves.items()}
        check_adapter_shapes(Path(lora.adapter), lora, adapter_shapes(lora, draft.shape), shapes)
    renderer = checked.renderer
    rows = untrained(folder, renderer)
    if rows and draft.config.model.new_rows == "on" and is_quantized(model):
        raise UserError(
            f"--model.new_rows is on, and the experts of {folder} are in MXFP4, of which the run writes a copy in "
            "bfloat16: run with new_rows off once, and name its initial_model with --model"
        )
    return replace(
        draft.model,
        untrained=rows,
        template=renderer.notes,
        tools_problem=renderer.format.tools_problem,
        tokenizer=checked.tokenizer,
    )


def check_length(draft: Draft) -> None:
    """Check that an episode fits into the model's context, and has one length only."""
    seq_len, longest, shape = draft.training.seq_len, draft.env.max_tokens, draft.shape
    if seq_len and longest != seq_len:
        raise UserError(
            f"--training.seq_len is {seq_len} and --env.max_tokens is {longest}: both are the most tokens of an "
            "episode; give one of them"
        )
    if shape is None or longest <= shape.max_position_embeddings:
        return
    name = "training.seq_len" if seq_len else "env.max_tokens"
    raise UserError(
        f"--{name} is {longest}, and the model {draft.config.model.path or 'made on the spot'} reads "
        f"{shape.max_position_embeddings} tokens at most: set it to that or less"
    )


def check_shape(draft: Draft) -> None:
    """Check that the model can be cut, spread and adapted as the settings ask for."""
    if (shape := draft.shape) is not None:
        draft.trainer.check_model(shape)
        shape.check_cut("services.generator.procs", draft.services.generator.procs)


def check_lora(draft: Draft) -> None:
    """Check that adapters have a model that can do something, and no second reference model."""
    if (lora := draft.lora) is None:
        return
    if procs := draft.services.ref_model.procs:
        raise UserError(
            f"--services.ref_model.procs is {procs} and --lora.rank is {lora.rank}: a trainer of adapters is "
            "its own reference model, without them: set --services.ref_model.procs to 0"
        )
    if not draft.config.model.path:
        raise UserError(
            f"--lora.rank is {lora.rank}, and there is no --model: adapters beside the random weights of a "
            "model made on the spot learn nothing; name a --model that has learned, or set --lora.rank to 0"
        )
