"""Checks of a run's environment, algorithm, schedule and data."""

from __future__ import annotations

from collections.abc import Sequence

from forge_env.core.env import Env
from forge_env.core.errors import UserError
from forge_env.core.types import Task
from forge_env.rollout.factory import EnvFactory, make
from forge_env.utils.targets import load
from trainers.config import RunConfig
from trainers.objective.objective import Objective
from trainers.objective.reward_parts import check_names
from trainers.objective.trials import try_group_reward, try_reward
from trainers.settings.distill import SELF
from trainers.setup.placement import FROZEN
from trainers.setup.run_plan import RunPlan
from trainers.setup.run_tasks import chat_data


def make_environment(config: RunConfig) -> EnvFactory | None:
    """Make the environments' factory; None for supervised training without an environment."""
    if not config.env.name and config.algorithm is None:
        return None
    factory = make(config.env.name, **config.env.options)
    factory.declared_limits()
    factory.check_compacts(config.env.compact_at, "--env.compact_at")
    factory.add_group_reward(config.env.group_reward)
    if config.algorithm is not None:
        algorithm = f"--{config.algorithm_name}"
        factory.check_group_size(config.algorithm.n_samples, f"{algorithm}.n_samples")
        names = [part.name for part in factory.group_rewards]
        check_names(config.algorithm.reward_parts, factory.env_class, names, f"{algorithm}.reward_parts")
        if config.distill.teacher == SELF and not hasattr(factory.env_class, "hint"):
            raise UserError(
                f"--distill.teacher is {SELF}, and the environment {config.env.name} has no hint, which the "
                "policy as its own teacher needs in its prompt: write a static method hint(episode, siblings) "
                "that returns a text, or name a model"
            )
    if config.evaluation.temperature:  # greedy attempts at a task are all the same
        factory.check_group_size(config.evaluation.n, "--evaluation.n")
    if config.algorithm is not None:
        size = config.algorithm.n_samples
        if 1 < size < config.env.min_valid:
            raise UserError(
                f"--env.min_valid is {config.env.min_valid}, and a group has --{config.algorithm_name}.n_samples, "
                f"{size}, episodes, so that none would be trained on: set it to {size} or less"
            )
        _check_expert(config, factory.env_class)
    return factory


def _check_expert(config: RunConfig, environment: type[Env]) -> None:
    if config.warmup.expert:
        load(config.warmup.expert, option="--warmup.expert")
    if hasattr(environment, "expert") or (config.warmup.expert and config.model.path):
        return
    if config.warmup.steps > 0 or not config.model.path:
        why = f"--warmup.steps is {config.warmup.steps}" if config.model.path else "there is no --model"
        raise UserError(
            f"the environment {config.env.name} has no expert, whose demonstrations the warm-up and the tiny model are "
            f"made from, and {why}: train a --model that can do some of it already, with --warmup.steps 0, or name a "
            "--warmup.expert"
        )


def check_demonstrations(config: RunConfig, environment: EnvFactory, tasks: Sequence[Task], data: str) -> None:
    """Check that the expert can show some task, if the run begins with demonstrations or consists of them.

    `data` is where the tasks come from, for errors; "" for an environment's own.
    """
    if chat_data(config):
        return
    needs_expert = config.warmup.steps > 0 or config.algorithm is None
    has_expert = bool(config.warmup.expert) or any(map(environment.env_class.can_demonstrate, tasks))
    if not (needs_expert or not config.model.path) or has_expert:
        return
    what = data or "these tasks"
    why = f"--warmup.steps is {config.warmup.steps}" if config.warmup.steps > 0 else "there is no --model"
    if config.algorithm is None:
        raise UserError(
            f"the expert of {config.env.name} has no solutions for the tasks of {what}, so there is nothing to learn "
            "from: give demonstrations of your own as --sft.data"
        )
    raise UserError(
        f"the expert of {config.env.name} has no solutions for the tasks of {what}, whose demonstrations the warm-up "
        f"and the tiny model are made from, and {why}: give a --model that can do some of it already, with "
        "--warmup.steps 0; python -m trainers.sft --sft.data makes one of demonstrations of your own"
    )


def check_reward(objective: Objective | None, environment: EnvFactory | None, tasks: Sequence[Task]) -> None:
    """Try the user's reward functions on a task of the run."""
    if objective is None or environment is None:
        return
    for task in tasks[:1]:
        if objective.reward.user_reward:
            try_reward(objective.reward.user_reward, task)
        if environment.group_reward:
            try_group_reward(environment.group_rewards[-1], task)


def check_deterministic(plan: RunPlan) -> None:
    """Check `deterministic`, which needs one engine on a CPU, and groups that do not overlap with training."""
    training, services, window = plan.config.training, plan.config.services, plan.window
    if not training.deterministic:
        return
    if training.most_behind and training.sync_interval > window:
        raise UserError(
            f"--training.deterministic needs --training.sync_interval 1 or --training.old_logprobs trainer, and it is "
            f"{training.sync_interval}: which groups a step takes must not depend on the clock"
        )
    if training.most_behind > window - 1:
        raise UserError(
            f"--training.deterministic needs --training.staleness {window - 1}, and it is {training.most_behind}: "
            f"which weights sample a group must not depend on the clock"
        )
    for name in ("generator", "envs"):
        replicas = getattr(services, name).num_replicas
        if replicas > 1:
            raise UserError(
                f"--training.deterministic needs one replica of each service, and --services.{name}.num_replicas is "
                f"{replicas}: set it to 1"
            )
    for name in ("generator", "trainer", *FROZEN):
        if getattr(services, name).with_gpus:
            raise UserError(
                f"--training.deterministic is for CPU, and --services.{name}.with_gpus is true: a GPU's sums do not "
                f"repeat bit by bit"
            )
