"""make_plan: from the config of a run to its `RunPlan`. Nothing is started and nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from forge_env.core.errors import ForgeError, UserError
from forge_env.data.rows import find_file
from forge_env.rollout.factory import EnvFactory
from forge_env.runtime.host_settings import slurm_nodes
from forge_env.utils.settings import with_values
from trainers.algorithm import Algorithm
from trainers.config import RunConfig
from trainers.families.table import read_shape
from trainers.model.find import find_shape
from trainers.objective.loss_call import LossCall
from trainers.objective.objective import Objective
from trainers.objective.plugins import resolve
from trainers.objective.trials import try_advantages, try_loss
from trainers.setup.card import gib
from trainers.setup.checks import engine_checks, machine_checks, model_checks, run_checks
from trainers.setup.expert_need import with_room_for_expert
from trainers.setup.held_out import HeldOutSet, check_sets, held_out_sets
from trainers.setup.options.defaults import LARGER_MICRO_BATCHES, MICRO_BATCH, Default, take_again, take_defaults
from trainers.setup.options.parser import check_bounds
from trainers.setup.options.read_config import give_dataset
from trainers.setup.packages import check_ours, check_packages
from trainers.setup.run_plan import RunPlan
from trainers.setup.run_tasks import RunTasks, own_data, read_run_tasks, resolve_sources
from trainers.setup.sizing.fit import check_fit, check_store_room, with_sizes

Check = Callable[[RunPlan], None]
ALMOST = 0.9
"""Part of the engine's cache that a larger micro-batch has to leave."""

OF_SETTINGS: tuple[Check, ...] = (
    lambda plan: check_sets(plan.config),
    run_checks.check_folder,
    model_checks.check_shape,
    lambda plan: plan.config.parallelism.check_procs(plan.config.services.trainer.procs),
    machine_checks.check_trainer,
    machine_checks.check_context,
    run_checks.check_deterministic,
    model_checks.check_thinking,
    lambda plan: plan.placement.check(plan.config.parallelism.tensor_parallel_degree),
    engine_checks.check_sleep,
)
OF_SIZES: tuple[Check, ...] = (model_checks.check_length, model_checks.check_shape, engine_checks.check_engine)
"""Checks that the sizes of the model decide."""
OF_MEMORY: tuple[Check, ...] = (check_store_room, check_fit, machine_checks.check_host_memory)
"""Checks of what this machine has room for."""


def make_plan(config: RunConfig, algorithm: Algorithm) -> RunPlan:
    """Make the plan of a run. What this machine lacks for it becomes its `problems`."""
    check_ours()
    check_bounds(config)
    config = model_checks.with_model_of_run(config.resolved())
    model = find_shape(config.model.path, config.model.size)
    config, defaults = with_room_for_expert(*take_defaults(config, model.shape))
    objective = plan_objective(config, algorithm)
    source = own_data(config) or config.dataset.path  # as the user wrote it
    config = give_dataset(resolve_sources(config))
    environment = run_checks.make_environment(config)
    config.check()
    plan = RunPlan(
        config=config,
        defaults=defaults,
        algorithm=algorithm,
        model=model,
        objective=objective,
        environment=environment,
        steps=max(0, config.training.steps),
    )
    for check in (*OF_SETTINGS, *OF_SIZES):
        check(plan)
    if model.folder is not None:
        plan = replace(plan, model=model_checks.check_folder(plan, model.folder))
    config.check_data(model.folder)
    tasks = _local_tasks(config, environment, source)
    if tasks is not None and environment is not None:
        run_checks.check_demonstrations(config, environment, tasks.train, source)
    run_checks.check_reward(objective, environment, tasks.train if tasks else ())
    about = [*(tasks.about if tasks else ()), *config.describe_data()]
    plan = replace(plan, card=machine_checks.card_size(plan), tasks=tasks, about_data=about)
    plan = _with_micro_batch(with_sizes(plan))
    return replace(plan, problems=_problems(plan))


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
    objective = resolve(objective, config.training, has_reference=has_reference)
    training = config.training
    if training.loss or algorithm.target:
        try_loss(objective.loss, f"--loss {training.loss}" if training.loss else f"the loss of {algorithm.target}")
    if training.advantages:
        try_advantages(objective.advantages, objective.group_size, f"--advantages {training.advantages}")
    return objective


def with_model(plan: RunPlan, folder: Path) -> RunPlan:
    """The plan with the sizes of the model in a folder; the same object if it has them already."""
    if plan.shape is not None:
        return plan
    shape = read_shape(folder)
    config, defaults = with_room_for_expert(*take_again(plan.config, plan.defaults, shape))
    model = replace(plan.model, shape=shape, where=f"the folder {folder}", missing="")
    plan = replace(plan, config=config, defaults=defaults, model=model)
    for check in OF_SIZES:
        check(plan)
    plan = _with_micro_batch(with_sizes(plan))
    for check in OF_MEMORY:
        check(plan)
    return plan


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
        if has_same_engine and max(usage.worst for usage in larger.cards) <= card:
            return larger
    return plan


def _problems(plan: RunPlan) -> list[str]:
    """Why this machine cannot start the run, as sentences."""
    checks: list[Callable[[], object]] = [check_packages, plan.config.training.check_packages]
    if plan.config.launcher.kind == "slurm":
        checks.append(slurm_nodes)
    checks += [plan.placement.check_gpus, *(partial(check, plan) for check in OF_MEMORY)]
    problems = []
    for check in checks:
        try:
            check()
        except UserError as error:
            problems.append(str(error))
    return problems


def with_folder(plan: RunPlan, folder: Path) -> RunPlan:
    """The plan with the facts of the model's files; the same object if they were here when it was made."""
    if plan.model.folder is not None:
        return plan
    plan = with_model(plan, folder)
    return replace(plan, model=model_checks.check_folder(plan, folder)) if plan.model.path else plan


def tasks_of(plan: RunPlan) -> tuple[RunTasks, dict[str, HeldOutSet]]:
    """The tasks of a run, and its held-out sets; tasks that are not a local file's are read now."""
    if plan.environment is None:
        return RunTasks(), {}
    tasks = plan.tasks or read_run_tasks(plan.config, plan.environment)
    run_checks.check_demonstrations(plan.config, plan.environment, tasks.train, own_data(plan.config))
    run_checks.check_reward(plan.objective, plan.environment, tasks.train)
    return tasks, held_out_sets(plan.config, tasks.held_out)


def _local_tasks(config: RunConfig, environment: EnvFactory | None, source: str) -> RunTasks | None:
    """The tasks of a local file; None if they are not those of a file, and are read at the start.

    `source` is the file as the user wrote it, for errors.
    """
    file = find_file(own_data(config), config.dataset.split)
    if file is None or environment is None:
        return None
    if not file.is_file():
        raise UserError(f"--dataset.path is {source!r}, and there is no file {file}")
    try:
        return read_run_tasks(config, environment)
    except UserError as error:
        raise UserError(str(error).replace(own_data(config), source)) from error
