"""The options of a run that change nothing in it, each with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forge_env.utils.settings import Setting, leaves
from trainers.setup.run_plan import RunPlan
from trainers.setup.run_tasks import chat_data

CLIPPING = "clip_low clip_high dual_clip"
CORRECTION = "correction correction_low correction_high"


@dataclass(frozen=True, slots=True)
class Rule:
    """Settings that have no effect in some runs."""

    names: str
    """Of settings, or of sections with a dot at the end; ALG. is the section of the algorithm."""
    why: str
    """The reason, in which {name} is the value of a setting."""
    applies: Callable[[RunPlan], bool] = lambda plan: True


def _has_gpus(plan: RunPlan) -> bool:
    return bool(plan.placement.gpus_wanted)


def _is_dense(plan: RunPlan) -> bool:
    return plan.shape is not None and not plan.shape.num_experts


RULES = (
    Rule("services.trainer.ping_seconds", "the trainer is not pinged"),
    Rule(
        "lora.alpha lora.targets lora.publish",
        "--lora.rank is 0, and all weights are trained",
        lambda plan: not plan.config.lora.is_on,
    ),
    Rule(
        "ALG.kl ALG.kl_in ALG.kl_straight_through",
        "--ALG.beta is 0, and there is no KL penalty",
        lambda plan: plan.config.algorithm is not None and not plan.config.algorithm.beta,
    ),
    Rule(
        "ALG.constant",
        "--ALG.aggregation is {ALG.aggregation}",
        lambda plan: plan.config.algorithm is not None and plan.config.algorithm.aggregation != "constant",
    ),
    Rule(
        "ALG.correction_low ALG.correction_high",
        "--ALG.correction is none",
        lambda plan: plan.config.algorithm is not None and plan.config.algorithm.correction == "none",
    ),
    Rule(
        "ALG.std_ddof ALG.std_eps",
        "--ALG.normalization is {ALG.normalization}, and no standard deviation is taken",
        lambda plan: plan.config.algorithm is not None and plan.config.algorithm.normalization in ("none", "mean"),
    ),
    Rule(
        " ".join(f"ALG.{name}" for name in f"{CLIPPING} {CORRECTION} aggregation constant clip_ratio".split()),
        "--loss is a loss of your own",
        lambda plan: bool(plan.config.training.loss),
    ),
    Rule(
        "services.ref_model.",
        "no reference model is started: nothing asks for one",
        lambda plan: not plan.placement.has_reference,
    ),
    Rule("moe.", "the model has no experts", _is_dense),
    Rule(
        "moe.compare_interval moe.record_routes",
        "the trainer does not replay the engine's routes",
        lambda plan: not _is_dense(plan) and not plan.replays_routes,
    ),
    Rule(
        "training.keep_logits_gib",
        "the trainer is on the CPU",
        lambda plan: not plan.config.services.trainer.with_gpus,
    ),
    Rule(
        "services.generator.cuda_graphs services.generator.worker_process services.generator.gpu_memory_utilization",
        "the engine is on the CPU",
        lambda plan: not plan.config.services.generator.with_gpus,
    ),
    Rule(
        "services.generator.",
        "no engine is started: the run has data and no environment",
        lambda plan: not plan.has_engine,
    ),
    Rule("training.cache_on_update", "--training.staleness is 0", lambda plan: not plan.config.training.most_behind),
    Rule(
        "warmup.until_success warmup.until_each_kind warmup.probe_every warmup.probe_tasks warmup.demonstrations "
        "warmup.batch_size warmup.balance warmup.learning_rate warmup.learning_rate_warmup",
        "--warmup.steps is 0",
        lambda plan: not plan.is_supervised and not plan.config.warmup.steps,
    ),
    Rule(
        "warmup.",
        "--sft.data has the demonstrations",
        lambda plan: bool(chat_data(plan.config)),
    ),
    Rule(
        "warmup.until_each_kind warmup.probe_every warmup.probe_tasks",
        "--warmup.until_success is {warmup.until_success}, and nothing is probed",
        lambda plan: plan.config.warmup.until_success >= 1,
    ),
    Rule(
        "ALG.overlong_length ALG.overlong_buffer",
        "--ALG.overlong_penalty is 0",
        lambda plan: getattr(plan.config.algorithm, "overlong_penalty", 1) == 0,
    ),
    Rule("training.fp32_head", "the trainer computes in float32", lambda plan: plan.trainer_dtype == "float32"),
    Rule(
        "training.reshard_after_forward",
        "one process has all weights",
        lambda plan: plan.config.services.trainer.procs == 1,
    ),
    Rule(
        "env.min_valid",
        "--env.on_fault is drop: one fault drops a group",
        lambda plan: plan.config.env.on_fault == "drop",
    ),
    Rule(
        "evaluation.top_p evaluation.greedy",
        "--evaluation.temperature is 0",
        lambda plan: not plan.config.evaluation.temperature,
    ),
    Rule(
        "checkpoint.keep_last checkpoint.asynchronous",
        "--checkpoint.interval is 0: there is one checkpoint, after the last step",
        lambda plan: (
            not plan.config.checkpoint.interval
            and not (plan.config.checkpoint.keep_best and plan.config.evaluation.interval)
        ),
    ),
    Rule(
        "checkpoint.keep_best",
        "--evaluation.interval is 0: no step between the first and the last is evaluated",
        lambda plan: not plan.config.evaluation.interval,
    ),
    Rule(
        "launcher.hosts launcher.lease_seconds launcher.silence_seconds launcher.port",
        "--launcher.kind is local: there is one machine",
        lambda plan: plan.hosts is None,
    ),
    Rule(
        "launcher.gpus_per_host launcher.gpu_memory_gib launcher.share_gpus",
        "no service is on a GPU",
        lambda plan: not _has_gpus(plan),
    ),
    Rule(
        "model.new_rows",
        "there is no --model: a model made on the spot learns all rows",
        lambda plan: not plan.model.path,
    ),
    Rule(
        "model.new_rows",
        "the template uses no token with an untrained row",
        lambda plan: plan.model.folder is not None and not plan.model.untrained,
    ),
    Rule(
        "dataset.",
        "--sft.data has the conversations, and there is no environment",
        lambda plan: not plan.has_engine,
    ),
    Rule(
        "env.max_turns env.step_seconds env.episode_seconds env.scoring_seconds env.on_fault env.min_valid",
        "there is no environment",
        lambda plan: not plan.has_engine,
    ),
)


def no_effect(plan: RunPlan) -> list[str]:
    """A sentence for each option that differs from its default and changes nothing in this run."""
    usual = {setting.name: setting.value for setting in leaves(type(plan.config)())}
    usual |= {name: default.value for name, default in plan.defaults.items()}
    settings = leaves(plan.config)
    values = {setting.name: setting.value for setting in settings}
    sentences = []
    for setting in settings:
        if setting.name.endswith(".with_gpus"):  # what the machine has, unless it is given
            continue
        if setting.value != usual[setting.name] and (why := _reason(plan, setting, values)):
            sentences.append(f"--{setting.name} {setting.value}, because {why}")
    return sentences


def _reason(plan: RunPlan, setting: Setting, values: dict[str, object]) -> str:
    algorithm = plan.config.algorithm_name
    for rule in RULES:
        names = rule.names.replace("ALG.", f"{algorithm}.").split()
        is_named = any(setting.name == name or (name.endswith(".") and setting.name.startswith(name)) for name in names)
        if is_named and rule.applies(plan):
            why = rule.why.replace("ALG.", f"{algorithm}.")
            for name, value in values.items():
                why = why.replace(f"{{{name}}}", str(value))
            return why
    return ""
