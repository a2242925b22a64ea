"""Describes a plan in words, for --dry-run and for the messages at the start of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agents.generator.engine_args import approximations
from forge_env.utils.settings import BY_CASE, leaves
from trainers.model.shape import FoundModel
from trainers.setup.memory import gib, state_bytes
from trainers.setup.options.defaults import RECIPE, Default, case_of, is_warmed_up, value_of
from trainers.setup.run_plan import RunPlan
from trainers.setup.run_tasks import HELD_OUT_TASKS, TRAIN_TASKS

FAR = 30
"""A learning rate that differs from the usual one by this factor is warned of."""
FEW = 8
"""A turn that has so small a part of the usual tokens is warned of."""


def settings_with_defaults(plan: RunPlan) -> list[tuple[str, Any, Any]]:
    """Dotted name, value and default of every setting, in the order of the config."""
    config, general = plan.config, type(plan.config)()
    return [
        (was.name, now.value, plan.defaults[was.name].value if was.name in plan.defaults else was.value)
        for now, was in zip(leaves(config), leaves(general), strict=True)
        if was.name != "dry_run"
    ]


def meaning(plan: RunPlan) -> list[tuple[str, str]]:
    """The consequences of the settings: a name and a text for each line."""
    return [
        ("model", _about_model(plan.model)),
        ("environment", _about_env(plan)),
        *[("data", sentence) for sentence in plan.about_data],
        *_about_steps(plan),
        ("algorithm", _about_algorithm(plan)),
        *([("importance ratio", about_ratio(plan))] if plan.objective else []),
        ("KL reference", _about_reference(plan)),
        ("weights", _about_weights(plan)),
        *([("", plan.store_reason)] if plan.store_reason else []),
        *([("engine", plan.about_engine)] if plan.about_engine else []),
        *([("", about_approximations(plan))] if about_approximations(plan) else []),
        *([("adapters", about_adapters(plan))] if plan.lora else []),
        *([("routing replay", about_replay(plan))] if about_replay(plan) else []),
        ("optimizer", _about_optimizer(plan)),
        ("precision", _about_precision(plan)),
        *_labelled("defaults", about_defaults(plan)),
        *_labelled("warning", unusual_settings(plan)),
    ]


def about_defaults(plan: RunPlan) -> list[str]:
    """The defaults that a run has, with the reason for them: a text for each reason."""
    shown = {name: default for name, default in plan.defaults.items() if default.reason and default.is_taken}
    if plan.training.warmup_steps == BY_CASE and plan.steps:
        why = "10, or half of fewer steps: the first steps of AdamW are the largest" if plan.model.path else RECIPE
        shown["training.warmup_steps"] = Default(value=plan.rising_steps, reason=why)
    taken: dict[str, list[str]] = {}
    for name, default in shown.items():
        taken.setdefault(default.reason, []).append(f"{name} {default.value:g}")
    return [f"{', '.join(names)} ({reason})" for reason, names in taken.items()]


def unusual_settings(plan: RunPlan) -> list[str]:
    """A warning for each setting that is far from the usual value of its case."""
    config, env, defaults = plan.config, plan.env, plan.defaults
    case, warnings = case_of(config), []
    rates = ["training.learning_rate", *(["warmup.learning_rate"] if is_warmed_up(config, case) else [])]
    for name in rates:
        value, usual = value_of(config, name), defaults[name]
        if value >= 0 and not usual.value / FAR <= value <= usual.value * FAR:
            side = "below" if value < usual.value else "above"
            warnings.append(f"--{name} is {value:g}, far {side} what is usual for {case.name}: {usual.value:g}")
    limit = "env.max_turn_tokens"
    least = min(defaults[limit].value, case.limits.max_turn_tokens)
    if env.name and env.max_turn_tokens < least / FEW:
        warnings.append(
            f"--{limit} is {env.max_turn_tokens}, far below what is usual for {case.name}: {least:g}; a turn "
            "that is longer is cut off"
        )
    return warnings


def _labelled(name: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    """A line for each text; the first has the name."""
    return [(name if text is texts[0] else "", text) for text in texts]


def about_ratio(plan: RunPlan) -> str:
    """The model that gives the denominator of the importance ratio."""
    if plan.old_logprobs == "generator":
        return "against the engine's logprobs"
    steps = plan.window
    whole = f"a window of {steps} steps, whose groups are all sampled before it" if steps > 1 else "each step"
    return f"against the trainer's own logprobs, frozen before {whole}; the correction takes trainer / engine"


def about_approximations(plan: RunPlan) -> str:
    """Warning about settings of vLLM that make the engine's logprobs inexact; "" if there are none."""
    settings = approximations(plan.engine.engine_args)
    if not settings:
        return ""
    return (
        f"{', '.join(settings)}: the engine's logprobs differ from the trainer's by more than rounding; each step says "
        "by how much (mean_abs_logprob_difference)"
    )


def about_adapters(plan: RunPlan) -> str:
    """The adapters that are trained, and their way to the engine; "" if all weights are trained."""
    shape, lora = plan.model.shape, plan.lora
    if lora is None:
        return ""
    count = f", {lora.parameters(shape):,} of {shape.parameters:,} parameters" if shape else ""
    start = f", started from {lora.adapter}" if lora.adapter else ""
    return f"rank {lora.rank}, alpha {lora.alpha:g}, on {', '.join(lora.targets)}{count}{start}; {_publishing(plan)}"


def about_replay(plan: RunPlan) -> str:
    """The model that chooses the experts in training; "" for a dense model, and without an engine."""
    shape, moe = plan.model.shape, plan.config.moe
    if shape is None or not shape.num_experts or plan.is_supervised:
        return ""
    if not plan.replays_routes:
        return "off, as --moe.replay says: the trainer's router chooses the experts of each token itself"
    often = f"; every {moe.compare_interval} steps also measured without" if moe.compare_interval else ""
    return f"the trainer computes each token with the experts that the engine chose for it{often}"


def _publishing(plan: RunPlan) -> str:
    """How adapters reach the engine, and why so."""
    dtype = plan.services.generator.dtype
    choice, reason = plan.config.lora.choose_publish(dtype, plan.shape)
    if choice == "merged":
        return f"merged in float32 for the engine, and cast to its {dtype}: {reason}"
    return f"the engine computes with the adapters, which alone are sent to it: {reason}"


def about_services(plan: RunPlan) -> str:
    """Which services are up, and where each one runs."""

    def where(name: str) -> str:
        service = getattr(plan.services, name)
        kind = "GPU" if service.with_gpus else f"CPU, {service.threads} thread{'s' * (service.threads != 1)}"
        replicas = f"{service.num_replicas} of " if service.num_replicas > 1 else ""
        if service.procs == 1:
            return f"{replicas}{name} on {kind}"
        return f"{replicas}{name} on {service.procs} processes, each on {kind}"

    if plan.environment is None:
        return f"the trainer is up: {where('trainer')}"
    count = plan.services.envs.num_replicas
    envs = "in a process of their own" if count == 1 else f"in {count} processes of their own"
    reference = f" {where('ref_model')};" if plan.placement.has_reference else ""
    return (
        "trainer, environments and weight store are up, the engine is starting: "
        f"{where('generator')}; {where('trainer')};{reference} environments {envs}"
    )


def _about_weights(plan: RunPlan) -> str:
    interval, staleness = plan.training.sync_interval, plan.staleness
    often = "after every optimizer step" if interval == 1 else f"after every {interval} optimizer steps"
    age = f"weights at most {_count(staleness, 'step')} older than those" if staleness else "the weights"
    return f"go to the engine {often}; a group is sampled from {age} that it trains"


def _about_optimizer(plan: RunPlan) -> str:
    training, shape = plan.training, plan.shape
    rise = f", rising over {_count(plan.rising_steps, 'step')}" if plan.rising_steps else ""
    rate = f"learning rate {training.learning_rate:g} {training.lr_schedule}{rise}"
    kept = {"float32": "", "bfloat16": ", moments in bfloat16", "8bit": ", moments in 8 bits"}[training.optimizer_state]
    if plan.is_offloaded:
        copies = plan.config.parallelism.data_parallel_replicate_degree
        size = f" ({gib(copies * state_bytes(shape, training.optimizer_state))} GiB of the host)" if shape else ""
        kept += f", on the CPU with offloaded weights{size}"
    return (
        f"AdamW{kept}, {rate}, weight decay {training.weight_decay:g}, gradient norm at most {training.max_grad_norm:g}"
    )


def _about_precision(plan: RunPlan) -> str:
    dtype = plan.trainer_dtype
    head = ", output layer in float32" if plan.training.head_dtype(dtype) != dtype else ""
    weights = "float32 adapters and frozen weights in its dtype" if plan.lora else "float32 weights"
    return f"trainer {dtype} over {weights}{head}, engine {plan.services.generator.dtype}"


def _about_model(model: FoundModel) -> str:
    if model.shape is None:
        return f"{model.where}; its sizes are not known here"
    shape, experts = model.shape, ""
    if shape.num_experts:
        experts = f"{shape.num_experts} experts in each, of which {shape.num_experts_per_tok} compute a token, "
    return (
        f"{model.where}: {shape.parameters:,} parameters, {shape.num_hidden_layers} layers of {shape.hidden_size}, "
        f"{experts}vocabulary {shape.vocab_size:,}"
    )


def _about_env(plan: RunPlan) -> str:
    env, data, interval = plan.env, plan.config.dataset, plan.evaluation.interval
    source = f"the split {data.split} of {data.path}" if data.path else "its own tasks"
    if plan.tasks is not None:
        count, held_out = f"{len(plan.tasks.train):,}", f"{len(plan.tasks.held_out):,}"
    else:
        count = (
            f"{data.tasks:,}"
            if data.tasks
            else "all"
            if data.path and not data.streaming
            else f"at most {TRAIN_TASKS:,}"
        )
        held_out = f"{data.held_out:,}" if data.held_out else f"at most {HELD_OUT_TASKS:,}"
    limits = f"{_count(env.max_turns, 'turn')}, {env.max_turn_tokens:,} tokens a turn, {env.max_tokens:,} in all"
    if env.thinking != "off":
        thought = f", a thought of at most {env.max_thinking_tokens:,} tokens" if env.max_thinking_tokens else ""
        limits += f"; thinking {env.thinking}{thought}"
    every = f" and evaluated every {interval} steps" if interval else ""
    return f"{env.name}, {count} of {source}, {held_out} held out{every}; an episode has at most {limits}"


def _about_steps(plan: RunPlan) -> list[tuple[str, str]]:
    training, objective, most = plan.training, plan.objective, plan.env.max_tokens
    if objective is None:
        demonstrations = plan.warmup.batch_size
        tokens = demonstrations * most
        return [
            ("optimizer step", f"{demonstrations} demonstrations, at most {tokens:,} tokens"),
            (
                "run",
                _count(plan.steps, "optimizer step") if plan.steps else "as many steps as the epochs of the data have",
            ),
        ]
    groups, size = training.groups_per_step, objective.group_size
    episodes = groups * size
    whole = f"{groups * training.steps:,} groups, {episodes * training.steps:,} episodes"
    return [
        (
            "optimizer step",
            f"{_count(groups, 'group')} = batch_size {training.batch_size} x gradient_accumulation_steps "
            f"{training.gradient_accumulation_steps}; {episodes:,} episodes = {groups} x n_samples {size}; at most "
            f"{episodes * most:,} tokens",
        ),
        ("run", f"{_count(training.steps, 'optimizer step')}: {whole}"),
    ]


def _about_algorithm(plan: RunPlan) -> str:
    training, section = plan.training, plan.config.algorithm
    if section is None:
        return "supervised: minus the logprob of the expert's tokens"
    assert plan.objective is not None
    loss = training.loss or type(plan.objective.loss).__name__
    advantages = f", advantages {training.advantages}" if training.advantages else ""
    return (
        f"{plan.algorithm}, loss {loss}, aggregation {section.aggregation}, correction {section.correction}, "
        f"temperature {section.temperature:g}{advantages}"
    )


def _about_reference(plan: RunPlan) -> str:
    if plan.placement.has_reference:
        return f"a frozen model of its own on {'GPU' if plan.services.ref_model.with_gpus else 'CPU'}"
    if plan.objective is not None and plan.objective.kl_reference == "model":
        return "the trainer without its adapters, or with those that it started from: there is no second model"
    if plan.objective is not None and plan.objective.kl_reference:
        return "the generator's own logprobs: there is no ref_model"
    return "none: nothing asks for it"


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'s' * (number != 1)}"
