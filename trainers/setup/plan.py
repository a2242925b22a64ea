"""make_plan: from the config of a run to its `RunPlan`. Nothing is started and nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from agents.model_folder import fetch_config
from forge_env.core.errors import ForgeError, UserError
from forge_env.data.rows import find_file
from forge_env.runtime.host_settings import slurm_nodes
from forge_env.utils.settings import with_values
from trainers.algorithm import Algorithm
from trainers.config import RunConfig
from trainers.families.shape import ModelShape
from trainers.model.find import find_shape
from trainers.objective.loss_call import LossCall
from trainers.objective.objective import Objective
from trainers.objective.plugins import resolve
from trainers.objective.trials import try_advantages, try_loss
from trainers.settings.distill import SELF
from trainers.setup.card import GIB, gib
from trainers.setup.checks import machine_checks, model_checks, run_checks
from trainers.setup.checks.output_folder import check_output
from trainers.setup.checks.resume_checks import checkpoint_of
from trainers.setup.expert_need import with_room_for_expert
from trainers.setup.held_out import HeldOutSet, check_sets, held_out_sets
from trainers.setup.mixture import of, views, with_views
from trainers.setup.options.defaults import LARGER_MICRO_BATCHES, MICRO_BATCH, Default, take_defaults
from trainers.setup.options.parser import check_bounds
from trainers.setup.options.read_config import give_dataset
from trainers.setup.packages import check_ours, check_packages
from trainers.setup.run_plan import EnvShare, RunPlan
from trainers.setup.run_tasks import RunTasks, first_task, own_data, read_run_tasks, resolve_sources
from trainers.setup.sizing.engine import check_engine, check_sleep
from trainers.setup.sizing.fit import check_fit, check_store_room, with_sizes

C = TypeVar("C", bound=RunConfig)
TEACHER = "--distill.teacher"
ALMOST = 0.9
"""Part of the engine's cache that a larger micro-batch leaves, and of the card that one above `USUAL` may take."""
USUAL = 16384
"""Tokens above which the logits must be kept, too: a GPU is busy with so many, and would compute them again."""


def plan_settings(config: RunConfig, algorithm: Algorithm) -> RunPlan:
    """The plan as far as the settings decide it, of a run on any machine: it has no tasks and no memory."""
    check_bounds(user_config := config)
    config = config.resolved()
    model = find_shape(config.model.path, config.model.size)
    config = with_values(config, {"model.path": model.path})
    config, defaults, environments = _with_environments(config, model.shape)
    objective = plan_objective(config, algorithm)
    for label, each in {"": config, **{share.label: share.config for share in environments}}.items():
        with of(label):
            each.check()
    if objective is not None:
        objective, environments = _with_group_sizes(objective, environments, algorithm)
    return RunPlan(
        user_config=user_config,
        config=config,
        defaults=defaults,
        algorithm=algorithm,
        model=model,
        teachers={name: find_shape(name, option=TEACHER) for name in config.teachers if name != SELF},
        objective=objective,
        environments=environments,
        steps=max(0, config.training.steps),
    )


def make_plan(config: RunConfig, algorithm: Algorithm) -> RunPlan:
    """Make the plan of a run. What this machine lacks for it becomes its `problems`."""
    check_ours()
    plan = plan_settings(config, algorithm)
    config, model, objective = plan.config, plan.model, plan.objective
    if config.resume:
        plan = replace(plan, checkpoint=checkpoint_of(plan))
    else:
        check_output(config.output or "outputs/new")
    check_sets(*plan.views)
    model_checks.check_sizes(plan)
    config.parallelism.check_procs(config.services.trainer.procs)
    machine_checks.check_trainer(plan)
    run_checks.check_deterministic(plan)
    plan.placement.check(config.parallelism.tensor_parallel_degree)
    check_sleep(plan)
    check_engine(plan)
    if model.folder is not None:
        plan = replace(plan, model=model_checks.check_folder(plan, model.folder))
    for name, teacher in plan.teachers.items():
        if teacher.folder is not None:
            model_checks.check_teacher(plan, name, teacher.folder, model.folder)
    about_data = config.check_data(model.folder)
    environments = [_with_local_tasks(share, objective) for share in plan.environments]
    about = [text for share in environments if share.tasks for text in share.about(share.tasks.about)]
    card, about = machine_checks.card_size(plan), [*about, *about_data]
    plan = replace(plan, card=card, environments=environments, about_data=about)
    plan = _with_micro_batch(with_sizes(plan))
    return replace(plan, problems=_problems(plan))


def _with_environments(config: C, shape: ModelShape | None) -> tuple[C, Mapping[str, Default], list[EnvShare]]:
    """Give each setting of -1 its default, and make each environment, with its data; returns also the defaults."""
    made, environments = {}, list[EnvShare]()
    for label, weight, view in views(config):
        with of(label):
            check_bounds(view)
            view, defaults = take_defaults(view, shape)
            source = own_data(view) or view.dataset.path
            view = give_dataset(resolve_sources(view))
            if (factory := run_checks.make_environment(view)) is not None:
                view, defaults = with_room_for_expert(view, defaults, factory)
                share = EnvShare(
                    label=label, weight=weight, config=view, defaults=defaults, factory=factory, source=source
                )
                environments.append(share)
            made[label] = view
    if len(made) == 1:
        return view, defaults, environments
    config, defaults = take_defaults(with_views(resolve_sources(config), made), shape)
    return config, defaults, environments


def plan_objective(config: RunConfig, algorithm: Algorithm) -> Objective | None:
    """The objective that an algorithm makes of a config; None for supervised training."""
    if algorithm.objective is None:
        return None
    try:
        objective = algorithm.make_objective(config)
        LossCall(objective.loss)
    except Exception as error:
        if isinstance(error, ForgeError) or not algorithm.target:
            raise
        raise UserError(f"{algorithm.target}: its objective cannot be made: {type(error).__name__}: {error}") from error
    has_reference = config.services.ref_model.procs > 0 or config.lora.is_on
    distill = config.distill if config.teachers else None
    objective = resolve(objective, config.training, distill, has_reference=has_reference)
    training = config.training
    if training.loss or algorithm.target:
        try_loss(objective.loss, f"--loss {training.loss}" if training.loss else f"the loss of {algorithm.target}")
    if training.advantages:
        try_advantages(objective.advantages, objective.group_size, f"--advantages {training.advantages}")
    return objective


def _with_group_sizes(
    objective: Objective, environments: Sequence[EnvShare], algorithm: Algorithm
) -> tuple[Objective, list[EnvShare]]:
    """The environments with the sizes of their groups, and the objective with the rewards of each."""
    scales = {share.label: share.config.env.reward_scale for share in environments}
    parts, several = {}, len(environments) > 1
    for share in environments:
        with of(share.label):
            parts[share.label] = algorithm.make_objective(share.config) if several else objective
    reward = objective.reward
    if several and reward.addition is not None:
        additions = {label: part.reward.addition or (lambda episode: 0.0) for label, part in parts.items()}
        reward = replace(reward, addition=lambda episode: additions[episode.env](episode))
    if any(scale != 1 for scale in scales.values()):
        reward = replace(reward, scale=lambda episode: scales[episode.env if several else ""])
    objective = replace(objective, reward=reward, group_size=max(part.group_size for part in parts.values()))
    return objective, [replace(share, group_size=parts[share.label].group_size) for share in environments]


def _with_micro_batch(plan: RunPlan) -> RunPlan:
    """The plan with the largest micro-batch by default that fits on the card beside the same engine."""
    is_by_case, card = plan.defaults[MICRO_BATCH].is_taken, plan.card
    if not is_by_case or card is None or plan.shape is None or not plan.cards:
        return plan
    for tokens in LARGER_MICRO_BATCHES:
        default = Default(tokens, f"a GPU of {gib(card)} GiB has room for it", is_taken=True)
        config = with_values(plan.config, {MICRO_BATCH: tokens})
        larger = with_sizes(replace(plan, config=config, defaults={**plan.defaults, MICRO_BATCH: default}))
        has_same_engine = larger.engine.sleep == plan.engine.sleep and (
            larger.engine.kv_cache_gib >= ALMOST * plan.engine.kv_cache_gib
        )
        logits, limit = 2 * tokens * plan.shape.vocab_size, plan.config.training.keep_logits_gib * GIB
        most = card if tokens <= USUAL else ALMOST * card if logits <= limit else 0
        if has_same_engine and max(usage.worst for usage in larger.cards) <= most:
            return larger
    return plan


def _problems(plan: RunPlan) -> list[str]:
    checks: list[Callable[[], object]] = [check_packages, plan.config.training.check_packages]
    if plan.config.launcher.kind == "slurm":
        checks.append(slurm_nodes)
    of_memory = (check_store_room, check_fit, machine_checks.check_host_memory)
    checks += [plan.placement.check_gpus, *(partial(check, plan) for check in of_memory)]
    problems = []
    for check in checks:
        try:
            check()
        except UserError as error:
            problems.append(str(error))
    return problems


def ready(plan: RunPlan) -> RunPlan:
    """The plan that is executed, which this machine can start."""
    plan.check()
    plan = with_hub(plan)
    plan.check()
    return plan


def with_hub(plan: RunPlan) -> RunPlan:
    """The plan, made again with the sizes of its models on the hub; the same object without one.

    Only their config.json is downloaded: what cannot be trained here is refused before any weights come.
    """
    missing = [model.path for model in (plan.model, *plan.teachers.values()) if model.missing]
    for name in missing:
        fetch_config(name)
    return make_plan(plan.user_config, plan.algorithm) if missing else plan


def with_folders(plan: RunPlan, model: Path, teachers: Mapping[str, Path]) -> RunPlan:
    """The plan with what the folders of the model and its teachers say, if they were downloaded for the start."""
    if plan.model.path and plan.model.folder is None:
        plan = replace(plan, model=model_checks.check_folder(plan, model))
    for name, folder in teachers.items():
        model_checks.check_teacher(plan, name, folder, model)
    with_paths = {name: replace(plan.teachers[name], path=str(folder)) for name, folder in teachers.items()}
    return replace(plan, teachers=with_paths)


def tasks_of(plan: RunPlan) -> tuple[dict[str, RunTasks], dict[str, list[HeldOutSet]]]:
    """The tasks of each environment by label, and the held-out sets by name, each with a part of every environment that
    it measures. Tasks that are not a local file's are read now."""
    tasks, held_out = dict[str, RunTasks](), dict[str, list[HeldOutSet]]()
    for share in plan.environments:
        with of(share.label):
            tasks[share.label] = read = share.tasks or _read_tasks(share, plan.objective)
            for name, part in held_out_sets(share.config, read.held_out, env=share.label).items():
                held_out.setdefault(name, []).append(part)
    return tasks, held_out


def _with_local_tasks(share: EnvShare, objective: Objective | None) -> EnvShare:
    """The environment with its tasks, if they are of a local file, or its own ones of a profile; else the start reads
    them."""
    data, dataset = own_data(share.config), share.config.dataset
    with of(share.label):
        if (file := find_file(data, dataset.split)) is not None and not file.is_file():
            raise UserError(f"--dataset.path is {share.source!r}, and there is no file {file}")
        if file is not None or (dataset.pass_rate and not data):
            return replace(share, tasks=_read_tasks(share, objective))
        splits, seed = dict.fromkeys((dataset.split, "test")), share.config.training.seed
        tasks = [task for split in splits if (task := first_task(share.factory, split, seed)) is not None]
        run_checks.check_reward(objective, share.factory, tasks)
    return share


def _read_tasks(share: EnvShare, objective: Objective | None) -> RunTasks:
    data = own_data(share.config)
    try:
        tasks = read_run_tasks(share.config, share.factory)
    except UserError as error:
        raise UserError(str(error).replace(data, share.source) if data else str(error)) from error
    run_checks.check_demonstrations(share.config, share.factory, tasks.train, share.source)
    run_checks.check_reward(objective, share.factory, tasks.train)
    return tasks
