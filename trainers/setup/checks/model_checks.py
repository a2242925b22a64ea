"""Checks of the model: its folder, thinking, context, heads, experts and adapters."""

from __future__ import annotations

from pathlib import Path

from agents.model_folder import find_model as find_folder
from forge_env.core.errors import UserError
from trainers.config import RunConfig
from trainers.lora import IN_ATTENTION, IN_MLP, check_trainer
from trainers.model.shape import FoundModel, find_shape
from trainers.setup.draft import Draft


def find_model(config: RunConfig) -> FoundModel:
    """Find the model of a run without downloading it, and check that a local folder is complete.

    Raises:
        UserError: when there is none, or it lacks something.
    """
    if config.model.path and config.model.size != "tiny":
        raise UserError(
            f"--model.size is {config.model.size}, which is for a model made on the spot, and --model is "
            f"{config.model.path}: leave one of them out"
        )
    if config.model.path and Path(config.model.path).expanduser().exists():
        find_folder(config.model.path)
    return find_shape(config.model.path, config.model.size)


def check_thinking(draft: Draft) -> None:
    """Check `env.thinking` against the model, as far as it is known.

    Raises:
        UserError: for thinking that the model does not have.
    """
    env, path = draft.env, draft.config.model.path
    folder = Path(path).expanduser()
    if env.thinking != "off" and path and (folder / "config.json").is_file():
        from agents.renderer.families import check_thinking as check  # slow import, which most runs do not need

        check(folder, env.thinking)
    elif env.thinking == "on" and draft.shape is not None and not draft.shape.thinks:
        raise UserError(f"--env.thinking is on, and the model {path} has none: set it to off, or choose another model")


def check_length(draft: Draft) -> None:
    """Check that an episode fits into the model's context, and has one length only."""
    seq_len, longest, shape = draft.training.seq_len, draft.env.max_tokens, draft.shape
    if seq_len and longest != seq_len:
        raise UserError(
            f"--training.seq_len is {seq_len} and --env.max_tokens is {longest}: both are the most tokens of an "
            "episode; give one of them"
        )
    if shape is None or not 0 < shape.max_position_embeddings < longest:
        return
    name = "training.seq_len" if seq_len else "env.max_tokens"
    raise UserError(
        f"--{name} is {longest}, and the model {draft.config.model.path or 'made on the spot'} reads "
        f"{shape.max_position_embeddings} tokens at most: set it to that or less"
    )


def check_heads(draft: Draft) -> None:
    shape = draft.shape
    if shape is None:
        return
    degrees = {
        "parallelism.tensor_parallel_degree": draft.config.parallelism.tensor_parallel_degree,
        "services.generator.procs": draft.services.generator.procs,
    }
    for name, degree in degrees.items():
        for what in ("num_attention_heads", "num_key_value_heads"):
            heads = getattr(shape, what)
            if heads % degree:
                raise UserError(
                    f"--{name} is {degree}, which does not divide the model's {what}, {heads}: choose "
                    f"{_divisors(shape.num_attention_heads, shape.num_key_value_heads)}"
                )


def check_experts(draft: Draft) -> None:
    """Check that experts can be spread, cut and adapted as they are wanted.

    Raises:
        UserError: when they cannot, or the model has none.
    """
    shape, lora, services, parallelism = draft.shape, draft.lora, draft.services, draft.config.parallelism
    degree = parallelism.expert_parallel_degree
    wanted = f"--parallelism.expert_parallel_degree is {degree}"
    if shape is not None and degree > 1 and not shape.num_experts:
        raise UserError(f"{wanted}, and the model is dense, and has no experts to spread: set it to 1")
    ranks = max(1, services.trainer.procs // parallelism.data_parallel_replicate_degree)
    if ranks % degree:
        raise UserError(
            f"{wanted}, which does not divide the number of trainer processes that hold the weights together, {ranks}: "
            f"choose {_divisors(ranks)}"
        )
    draft.training.check_head(degree)
    if shape is None or not shape.num_experts:
        return
    if shape.num_experts % degree:
        raise UserError(
            f"{wanted}, which does not divide the model's experts, {shape.num_experts}: choose "
            f"{_divisors(shape.num_experts, ranks)}"
        )
    cuts = {"services.generator.procs": services.generator.procs}
    if degree == 1:
        cuts["parallelism.tensor_parallel_degree"] = parallelism.tensor_parallel_degree
    for name, cut in cuts.items():
        if shape.moe_intermediate_size % cut:
            raise UserError(
                f"--{name} is {cut}, which does not divide the model's moe_intermediate_size, "
                f"{shape.moe_intermediate_size}: choose a divisor"
            )
    if lora is not None and lora.publish == "adapter":
        raise UserError(
            f"--lora.publish is {draft.config.lora.publish}, which sends the adapter alone, and the model has experts, "
            "whose kernels differ in an engine that holds adapters: set it to merged"
        )
    if lora is not None and set(lora.targets) & set(IN_MLP):
        raise UserError(
            f"--lora.targets is {','.join(draft.config.lora.targets)}, and the model has experts, whose matrices "
            f"{', '.join(IN_MLP)} get no adapter: set it to {','.join(IN_ATTENTION)}, or to some of these"
        )


def check_lora(draft: Draft) -> None:
    """The other settings work with adapters."""
    training, procs, lora = draft.training, draft.services.ref_model.procs, draft.lora
    if lora is None:
        return
    check_trainer(lora, training.optimizer_state, cpu_offload=training.cpu_offload)
    if procs:
        raise UserError(
            f"--services.ref_model.procs is {procs} and --lora.rank is {lora.rank}: a trainer of adapters is "
            "its own reference model, without them: set --services.ref_model.procs to 0"
        )
    if not draft.config.model.path:
        raise UserError(
            f"--lora.rank is {lora.rank}, and there is no --model: adapters beside the random weights of a "
            "model made on the spot learn nothing; name a --model that has learned, or set --lora.rank to 0"
        )


def _divisors(*numbers: int) -> str:
    """The common divisors, as "1, 2 or 4"."""
    divisors = [str(n) for n in range(1, min(numbers) + 1) if not any(number % n for number in numbers)]
    return " or ".join([", ".join(divisors[:-1]), divisors[-1]] if len(divisors) > 1 else divisors)
