"""make_plan: from the config of a run to its `RunPlan`. Nothing is started and nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from agents.generator.engine_args import read_engine_args
from forge_env.core.errors import UserError
from forge_env.data.rows import find_file
from forge_env.rollout.factory import EnvFactory
from forge_env.runtime.weights import WeightStore
from trainers.algorithm import Algorithm
from trainers.config import RunConfig
from trainers.model.shape import FoundModel, ModelShape, read_shape
from trainers.objective.objective import kl_remark
from trainers.objective.old_logprobs import whose_old_logprobs
from trainers.setup.checks import machine_checks, model_checks, run_checks
from trainers.setup.deadlines import Deadlines, patience
from trainers.setup.held_out import HeldOutSet, check_sets, held_out_sets
from trainers.setup.objective import needs_reference, plan_objective
from trainers.setup.options.defaults import take_again, take_defaults
from trainers.setup.options.parser import check_bounds
from trainers.setup.options.read_config import give_dataset
from trainers.setup.packages import check_ours, check_packages, missing_packages
from trainers.setup.placement import Placement, make_placement
from trainers.setup.run_plan import RunPlan
from trainers.setup.run_tasks import RunTasks, check_demonstrations, own_data, read_run_tasks, resolve_sources
from trainers.setup.sizing.engine import check_engine, episodes_at_once
from trainers.setup.sizing.estimates import snapshot_bytes
from trainers.setup.sizing.fit import Given, card_size, check_fit, check_sleep, check_speculation, plan_memory
from trainers.setup.titan_settings import reference_settings, trainer_settings
from trainers.setup.weight_store import find_store

T = TypeVar("T")


OF_SETTINGS: tuple[Callable[[RunConfig], None], ...] = (
    check_sets,
    run_checks.check_plugins,
    run_checks.check_metrics,
    run_checks.check_pace,
    run_checks.check_schedule,
    run_checks.check_resume,
    machine_checks.check_services,
    machine_checks.check_parallelism,
    machine_checks.check_optimizer,
    model_checks.check_lora,
    machine_checks.check_context,
    machine_checks.check_attention,
    lambda config: config.launcher.check(),
)
"""Checks that the settings alone decide."""
OF_SIZES: tuple[Callable[[RunConfig, ModelShape | None], None], ...] = (
    model_checks.check_length,
    model_checks.check_heads,
    model_checks.check_experts,
)
"""Checks that the sizes of the model decide, too."""


class Problems(list[str]):
    """The sentences of mistakes, in the order in which they are found."""

    def attempt(self, make: Callable[..., T], *arguments: object, **options: object) -> T | None:
        """Call `make` and return its result; on a UserError add its sentence and return None."""
        try:
            return make(*arguments, **options)
        except UserError as error:
            if str(error) not in self:
                self.append(str(error))
            return None


def make_plan(config: RunConfig, algorithm: Algorithm) -> RunPlan:
    """Make the plan of a run. What would keep the run from starting becomes its `problems`.

    Raises:
        UserError: for a mistake with which nothing can be planned: a foreign package with the name of one of ours, a
            number out of its bounds, an algorithm or a loss that cannot be used, or a model that is not there.
    """
    check_ours()
    check_bounds(config)
    config = config.settled()
    model = model_checks.find_model(config)
    shape = model.shape
    config, defaults = take_defaults(config, shape)
    objective = plan_objective(config, algorithm)
    old_logprobs = whose_old_logprobs(config, objective.loss) if objective else "generator"
    placement = make_placement(config, has_reference=needs_reference(config, objective))

    problems = Problems()
    problems.attempt(check_packages)
    data = own_data(config) or config.dataset.path  # as the user wrote it
    config = resolve_sources(config)
    config = problems.attempt(give_dataset, config) or config
    environment = problems.attempt(run_checks.make_environment, config)
    for check in OF_SETTINGS:
        problems.attempt(check, config)
    problems.attempt(run_checks.check_deterministic, config, old_logprobs)
    problems.attempt(model_checks.check_thinking, config, shape)
    for check_sizes in OF_SIZES:
        problems.attempt(check_sizes, config, shape)
    card = problems.attempt(card_size, config, placement)
    store = problems.attempt(_find_store, config, placement, shape, card)
    problems.attempt(machine_checks.check_sharing, config, placement)
    problems.attempt(machine_checks.check_gpus, placement)
    problems.attempt(machine_checks.check_places, config, placement)
    engine_args = problems.attempt(read_engine_args, config.services.generator.engine) or {}
    given = Given(card=card, old_logprobs=old_logprobs, engine_args=engine_args)
    problems.attempt(check_engine, config, shape, engine_args)
    problems.attempt(check_sleep, config, placement, given)
    problems.attempt(check_speculation, config, given)
    tasks = problems.attempt(_local_tasks, config, environment, data)
    if tasks is not None and environment is not None:
        problems.attempt(check_demonstrations, config, environment, tasks.train, data)
    about_chats = problems.attempt(config.about_data) or []
    memory = plan_memory(config, placement, shape, store[0] if store else None, given)
    problems.attempt(check_fit, config, memory, shape, given, has_reference=placement.has_reference)
    host = machine_checks.host_memory(placement)
    problems.attempt(machine_checks.check_host_memory, config, memory.processes, host)

    return RunPlan(
        config=config,
        defaults=defaults,
        algorithm=algorithm.name,
        command=algorithm.command,
        own_algorithm=algorithm if algorithm.target else None,
        steps=max(0, config.training.steps),
        environment=environment,
        objective=objective,
        old_logprobs=old_logprobs,
        kl_remark=kl_remark(config),
        model=model,
        hosts=None if config.launcher.kind == "local" else config.launcher,
        placement=placement,
        card=card,
        engine=memory.engine,
        about_engine=memory.about_engine,
        trainer=trainer_settings(config, shape),
        reference=reference_settings(config),
        store=store[0] if store else None,
        store_reason=store[1] if store else "",
        deadlines=Deadlines(config.deadlines, shape.parameters if shape else 0),
        patience=patience(config),
        episodes_at_once=episodes_at_once(config),
        processes=memory.processes,
        tasks=tasks,
        about_data=[*(tasks.about if tasks else ()), *about_chats],
        missing=_missing(config, model, placement, card),
        problems=problems,
    )


def with_model(plan: RunPlan, folder: Path) -> RunPlan:
    """The plan with the sizes of the model in a folder; the same object if it has them already.

    Raises:
        UserError: when the model's config.json, or the weight store for a model of its size, cannot be used; when the
            model does not read as many tokens, or cannot be cut over so many processes, as the run asks for; or when
            the run does not fit on its GPUs.
    """
    if plan.model.shape is not None:
        return plan
    placement = plan.placement
    shape = read_shape(folder / "config.json")
    config, defaults = take_again(plan.config, plan.defaults, shape)
    for check_sizes in OF_SIZES:
        check_sizes(config, shape)
    check_engine(config, shape, plan.engine.engine_args)
    store, reason = find_store(config, placement, snapshot_bytes(config, shape), plan.card)
    given = Given(card=plan.card, old_logprobs=plan.old_logprobs, engine_args=plan.engine.engine_args)
    memory = plan_memory(config, placement, shape, store, given)
    check_fit(config, memory, shape, given, has_reference=placement.has_reference)
    host = machine_checks.host_memory(placement)
    machine_checks.check_host_memory(config, memory.processes, host)
    return replace(
        plan,
        config=config,
        defaults=defaults,
        model=replace(plan.model, shape=shape, where=f"the folder {folder}", missing=""),
        engine=memory.engine,
        about_engine=memory.about_engine,
        processes=memory.processes,
        trainer=trainer_settings(config, shape),
        store=store,
        store_reason=reason,
        deadlines=Deadlines(config.deadlines, shape.parameters),
    )


def tasks_of(plan: RunPlan) -> tuple[RunTasks, dict[str, HeldOutSet]]:
    """The tasks of a run, and its held-out sets; tasks that are not a local file's are read now.

    Raises:
        UserError: the tasks cannot be read, there are too few, or none can be demonstrated to a run that needs it.
    """
    if plan.environment is None:
        return RunTasks(), {}
    tasks = plan.tasks or read_run_tasks(plan.config, plan.environment)
    check_demonstrations(plan.config, plan.environment, tasks.train, own_data(plan.config))
    return tasks, held_out_sets(plan.config, tasks.held_out)


def _local_tasks(config: RunConfig, environment: EnvFactory | None, data: str) -> RunTasks | None:
    """The tasks of a local file; None where they are not those of a file, and are read at the start.

    `data` is the file as the user wrote it, for errors.

    Raises:
        UserError: there is no such file, or no run can be made of it.
    """
    file = find_file(own_data(config), config.dataset.split)
    if file is None or environment is None:
        return None
    if not file.is_file():
        raise UserError(f"--dataset.path is {data!r}, and there is no file {file}")
    return read_run_tasks(config, environment)


def _find_store(
    config: RunConfig, placement: Placement, shape: ModelShape | None, card: float | None
) -> tuple[WeightStore, str] | None:
    """The weight store and the reason for it; None while the model's sizes, which decide on it, are not known.

    Raises:
        UserError: when the store that the config names cannot work, as far as that is known.
    """
    store = find_store(config, placement, snapshot_bytes(config, shape) if shape else 0, card)
    return store if shape else None


def _missing(config: RunConfig, model: FoundModel, placement: Placement, card: float | None) -> list[str]:
    missing = [f"{package} is not installed" for package in missing_packages()]
    missing += [model.missing] if model.missing else []
    if model.shape is None:
        missing.append("the sizes of the model, and so the estimates of its memory")
    data = config.dataset
    if data.path and find_file(data.path, data.split) is None:
        missing.append(f"the data set {data.path} is no local file: the start reads it from the hub, or from its cache")
    if placement.gpus_wanted and card is None:
        missing.append(
            "the memory of the GPUs, which --launcher.gpu_memory_gib says: whether the run fits is not known"
        )
    needed = placement.gpus_needed
    available = placement.num_hosts * placement.gpus_per_host if needed else 0
    if needed > available:
        missing.append(f"{needed - available} of {needed} GPUs")
    return missing
