"""The options of a run that change nothing in it, each with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from forge_env.utils.settings import leaves
from trainers.setup.run_plan import RunPlan
from trainers.setup.run_tasks import chat_data

PARTS_OF_LOSS = "clip_low clip_high dual_clip correction correction_low correction_high aggregation constant clip_ratio"


class Rule(NamedTuple):
    """Settings that have no effect in some runs."""

    applies: bool
    """Whether the run is one of them."""
    names: str
    """Of settings, or of sections with a dot at the end."""
    why: str


def rules(plan: RunPlan) -> Iterator[Rule]:
    """All rules, and whether they apply to a run; of two for a setting the first counts."""
    config, placement, model = plan.config, plan.placement, plan.model
    warmup, evaluation, checkpoint, services = config.warmup, config.evaluation, config.checkpoint, config.services
    dense, engine = plan.shape is not None and not plan.shape.num_experts, plan.has_engine
    yield Rule(True, "services.trainer.ping_seconds", "the trainer is not pinged")
    all_weights = "--lora.rank is 0, and all weights are trained"
    yield Rule(not config.lora.is_on, "lora.alpha lora.targets lora.publish", all_weights)
    if config.algorithm is not None:
        yield from _of_algorithm(plan)
    no_reference = "no reference model is started: nothing asks for one"
    yield Rule(not placement.has_reference, "services.ref_model.", no_reference)
    untaught = "--distill.teacher is empty, and nothing is distilled"
    yield Rule(not config.teachers, "distill.coef distill.top_k services.teacher.", untaught)
    yield Rule(not plan.teachers, "services.teacher.", "the policy teaches itself")
    yield Rule(dense, "moe.", "the model has no experts")
    routes = "the trainer does not replay the engine's routes"
    yield Rule(not plan.replays_routes, "moe.compare_interval moe.record_routes", routes)
    yield Rule(not services.trainer.with_gpus, "training.keep_logits_gib", "the trainer is on the CPU")
    of_gpu = "cuda_graphs worker_process gpu_memory_utilization"
    yield Rule(not services.generator.with_gpus, _within("services.generator", of_gpu), "the engine is on the CPU")
    no_engine = "no engine is started: the run has data and no environment"
    yield Rule(not engine, "services.generator.", no_engine)
    yield Rule(not config.training.most_behind, "training.cache_on_update", "--training.staleness is 0")
    of_warmup = "until_success until_each_kind probe_every probe_tasks demonstrations expert batch_size balance "
    of_warmup += "learning_rate learning_rate_warmup"
    has_no_warmup = not plan.is_supervised and not warmup.steps
    yield Rule(has_no_warmup, _within("warmup", of_warmup), "--warmup.steps is 0")
    yield Rule(bool(chat_data(config)), "warmup.", "--sft.data has the demonstrations")
    no_probe = f"--warmup.until_success is {warmup.until_success}, and nothing is probed"
    yield Rule(warmup.until_success >= 1, _within("warmup", "until_each_kind probe_every probe_tasks"), no_probe)
    yield Rule(plan.trainer_dtype == "float32", "training.fp32_head", "the trainer computes in float32")
    yield Rule(services.trainer.procs == 1, "training.reshard_after_forward", "one process has all weights")
    yield Rule(plan.is_supervised, "audit.", "supervised training has no rewards")
    yield Rule(config.audit.tasks == 0, "audit.seconds", "--audit.tasks is 0")
    yield Rule(plan.hosts is not None, "launcher.restarts", "a run on several hosts is not started again by itself")
    yield Rule(not plan.has_several, "training.mixture_by", "the run has one environment")
    yield Rule(plan.is_supervised, "env.reward_scale dataset.sampler", "supervised training has no rewards")
    drops = "--env.on_fault is drop: one fault drops a group"
    yield Rule(config.env.on_fault == "drop", "env.min_valid", drops)
    yield Rule(not evaluation.temperature, _within("evaluation", "top_p greedy"), "--evaluation.temperature is 0")
    has_one = not checkpoint.interval and not (checkpoint.keep_best and evaluation.interval)
    once = "--checkpoint.interval is 0: there is one checkpoint, after the last step"
    yield Rule(has_one, "checkpoint.keep_last checkpoint.asynchronous", once)
    between = "--evaluation.interval is 0: no step between the first and the last is evaluated"
    yield Rule(not evaluation.interval, "checkpoint.keep_best", between)
    for name in ("evaluation.interval", "checkpoint.interval"):
        is_never = 0 < plan.steps < attrgetter(name)(config)
        yield Rule(is_never, name, f"the run ends after {plan.steps} steps, before the first of them")
    local = "--launcher.kind is local: there is one machine"
    yield Rule(plan.hosts is None, _within("launcher", "hosts lease_seconds silence_seconds port"), local)
    of_gpus = _within("launcher", "gpus_per_host gpu_memory_gib share_gpus")
    yield Rule(not placement.gpus_wanted, of_gpus, "no service is on a GPU")
    learns = "there is no --model: a model made on the spot learns all rows"
    yield Rule(not model.path, "model.new_rows", learns)
    no_new_rows = "the template uses no token with an untrained row"
    yield Rule(model.folder is not None and not model.untrained_tokens, "model.new_rows", no_new_rows)
    yield Rule(not engine, "dataset.", "--sft.data has the conversations, and there is no environment")
    of_env = _within("env", "max_turns step_seconds episode_seconds scoring_seconds on_fault min_valid group_reward")
    yield Rule(not engine, of_env, "there is no environment")


def _of_algorithm(plan: RunPlan) -> Iterator[Rule]:
    section, name = plan.config.algorithm, plan.config.algorithm_name
    assert section is not None
    kl = f"--{name}.beta is 0, and there is no KL penalty"
    yield Rule(not section.beta, _within(name, "kl kl_in"), kl)
    constant = f"--{name}.aggregation is {section.aggregation}"
    yield Rule(section.aggregation != "constant", f"{name}.constant", constant)
    of_correction = _within(name, "correction_low correction_high")
    yield Rule(section.correction == "none", of_correction, f"--{name}.correction is none")
    deviation = f"--{name}.normalization is {section.normalization}, and no standard deviation is taken"
    yield Rule(section.normalization in ("none", "mean"), _within(name, "std_ddof std_eps"), deviation)
    of_rewards = f"training.advantages {_within(name, 'normalization std_ddof std_eps dynamic_sampling')}"
    yield Rule(
        plan.config.distill.only, of_rewards, "--distill.only is true, and rewards are no part of the advantages"
    )
    yield Rule(bool(plan.config.training.loss), _within(name, PARTS_OF_LOSS), "--loss is a loss of your own")
    is_unpunished = getattr(section, "overlong_penalty", 1) == 0
    yield Rule(is_unpunished, _within(name, "overlong_length overlong_buffer"), f"--{name}.overlong_penalty is 0")


def _within(section: str, names: str) -> str:
    return " ".join(f"{section}.{name}" for name in names.split())


def no_effect(plan: RunPlan) -> list[str]:
    """A sentence for each option that differs from its default and changes nothing in this run."""
    usual, sentences = plan.usual, []
    reasons = [(rule.why, name) for rule in rules(plan) if rule.applies for name in rule.names.split()]
    for setting in leaves(plan.config):
        # Services are on GPUs if the machine has some, unless that is given.
        if setting.name.endswith(".with_gpus") or setting.value == usual[setting.name]:
            continue
        for why, name in reasons:
            if setting.name == name or (name.endswith(".") and setting.name.startswith(name)):
                sentences.append(f"--{setting.name} {setting.value}, because {why}")
                break
    return sentences
