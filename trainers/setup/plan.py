"""make_plan: from the config of a run to its `RunPlan`. Nothing is started and nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from agents.generator.engine_args import read_engine_args
from forge_env.core.errors import UserError
from forge_env.data.rows import find_file
from forge_env.rollout.factory import EnvFactory
from forge_env.utils.settings import checked_sections
from trainers.algorithm import Algorithm
from trainers.config import RunConfig
from trainers.model.shape import read_shape
from trainers.setup.checks import engine_checks, machine_checks, model_checks, run_checks
from trainers.setup.draft import Draft, plan_objective
from trainers.setup.held_out import HeldOutSet, check_sets, held_out_sets
from trainers.setup.options.defaults import take_again, take_defaults
from trainers.setup.options.parser import check_bounds
from trainers.setup.options.read_config import give_dataset
from trainers.setup.packages import check_ours, check_packages, missing_packages
from trainers.setup.run_plan import RunPlan
from trainers.setup.run_tasks import RunTasks, own_data, read_run_tasks, resolve_sources
from trainers.setup.sizing.fit import check_fit, find_store, plan_memory

T = TypeVar("T")
Check = Callable[[Draft], None]

OF_SETTINGS: tuple[Check, ...] = (
    lambda draft: check_sets(draft.config),
    run_checks.check_plugins,
    run_checks.check_metrics,
    run_checks.check_pace,
    run_checks.check_schedule,
    run_checks.check_resume,
    machine_checks.check_parallelism,
    machine_checks.check_optimizer,
    model_checks.check_lora,
    machine_checks.check_context,
    machine_checks.check_attention,
    run_checks.check_deterministic,
    model_checks.check_thinking,
)
OF_SIZES: tuple[Check, ...] = (model_checks.check_length, model_checks.check_heads, model_checks.check_experts)
"""Checks that the sizes of the model decide."""
OF_PLACES: tuple[Check, ...] = (machine_checks.check_sharing, machine_checks.check_gpus, machine_checks.check_places)
OF_ENGINE: tuple[Check, ...] = (
    engine_checks.check_engine,
    engine_checks.check_sleep,
    engine_checks.check_speculation,
)


class Problems(list[str]):
    """The sentences of mistakes, in the order in which they are found."""

    def attempt(self, make: Callable[..., T], *arguments: object) -> T | None:
        """Call `make` and return its result; on a UserError add its sentence and return None."""
        try:
            return make(*arguments)
        except UserError as error:
            if str(error) not in self:
                self.append(str(error))
            return None

    def attempt_all(self, checks: Iterable[Check], draft: Draft) -> None:
        for check in checks:
            self.attempt(check, draft)


def make_plan(config: RunConfig, algorithm: Algorithm) -> RunPlan:
    """Make the plan of a run. What would keep the run from starting becomes its `problems`.

    Raises:
        UserError: for a mistake with which nothing can be planned: a foreign package with the name of one of ours, a
            number out of its bounds, an algorithm or a loss that cannot be used, or a model that is not there.
    """
    check_ours()
    check_bounds(config)
    draft, problems = _draft(config.settled(), algorithm), Problems()
    problems.attempt(check_packages)
    source = own_data(draft.config) or draft.config.dataset.path  # as the user wrote it
    config = resolve_sources(draft.config)
    draft = replace(draft, config=problems.attempt(give_dataset, config) or config)
    environment = problems.attempt(run_checks.make_environment, draft.config)
    for section in checked_sections(draft.config):
        problems.attempt(section.check)
    problems.attempt_all((*OF_SETTINGS, *OF_SIZES), draft)
    draft = replace(draft, card=problems.attempt(machine_checks.card_size, draft))
    store = problems.attempt(find_store, draft)
    problems.attempt_all(OF_PLACES, draft)
    engine_args = problems.attempt(read_engine_args, draft.services.generator.engine) or {}
    draft = replace(draft, engine_args=engine_args)
    problems.attempt_all(OF_ENGINE, draft)
    tasks = problems.attempt(_local_tasks, draft.config, environment, source)
    if tasks is not None and environment is not None:
        problems.attempt(run_checks.check_demonstrations, draft.config, environment, tasks.train, source)
    about_chats = problems.attempt(draft.config.about_data) or []
    memory = plan_memory(draft, store[0] if store else None)
    problems.attempt(check_fit, draft, memory)
    problems.attempt(machine_checks.check_host_memory, draft, memory.processes)
    return RunPlan(
        **_parts(draft),
        steps=max(0, draft.training.steps),
        environment=environment,
        engine=memory.engine,
        about_engine=memory.about_engine,
        store=store[0] if store else None,
        store_reason=store[1] if store else "",
        processes=memory.processes,
        tasks=tasks,
        about_data=[*(tasks.about if tasks else ()), *about_chats],
        missing=_missing(draft),
        problems=problems,
    )


def with_model(plan: RunPlan, folder: Path) -> RunPlan:
    """The plan with the sizes of the model in a folder; the same object if it has them already.

    Raises:
        UserError: when the model's config.json, or the weight store for a model of its size, cannot be used; when the
            model does not read as many tokens, or cannot be cut over so many processes, as the run asks for; or when
            the run does not fit on its GPUs.
    """
    if plan.shape is not None:
        return plan
    shape = read_shape(folder / "config.json")
    config, defaults = take_again(plan.config, plan.defaults, shape)
    model = replace(plan.model, shape=shape, where=f"the folder {folder}", missing="")
    plan = replace(plan, config=config, defaults=defaults, model=model)
    for check in (*OF_SIZES, engine_checks.check_engine):
        check(plan)
    store = find_store(plan)
    assert store is not None
    memory = plan_memory(plan, store[0])
    check_fit(plan, memory)
    machine_checks.check_host_memory(plan, memory.processes)
    return replace(
        plan,
        engine=memory.engine,
        about_engine=memory.about_engine,
        processes=memory.processes,
        store=store[0],
        store_reason=store[1],
    )


def tasks_of(plan: RunPlan) -> tuple[RunTasks, dict[str, HeldOutSet]]:
    """The tasks of a run, and its held-out sets; tasks that are not a local file's are read now.

    Raises:
        UserError: the tasks cannot be read, there are too few, or none can be demonstrated to a run that needs it.
    """
    if plan.environment is None:
        return RunTasks(), {}
    tasks = plan.tasks or read_run_tasks(plan.config, plan.environment)
    run_checks.check_demonstrations(plan.config, plan.environment, tasks.train, own_data(plan.config))
    return tasks, held_out_sets(plan.config, tasks.held_out)


def _draft(config: RunConfig, algorithm: Algorithm) -> Draft:
    model = model_checks.find_model(config)
    config, defaults = take_defaults(config, model.shape)
    objective = plan_objective(config, algorithm)
    return Draft(config=config, defaults=defaults, trained_by=algorithm, model=model, objective=objective)


def _parts(draft: Draft) -> dict[str, Any]:
    return {field.name: getattr(draft, field.name) for field in fields(draft) if field.init}


def _local_tasks(config: RunConfig, environment: EnvFactory | None, source: str) -> RunTasks | None:
    """The tasks of a local file; None if they are not those of a file, and are read at the start.

    `source` is the file as the user wrote it, for errors.

    Raises:
        UserError: there is no such file, or no run can be made of it.
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


def _missing(draft: Draft) -> list[str]:
    model, placement, data = draft.model, draft.placement, draft.config.dataset
    missing = [f"{package} is not installed" for package in missing_packages()]
    missing += [model.missing] if model.missing else []
    if model.shape is None:
        missing.append("the sizes of the model, and so the estimates of its memory")
    if data.path and find_file(data.path, data.split) is None:
        missing.append(f"the data set {data.path} is no local file: the start reads it from the hub, or from its cache")
    if placement.gpus_wanted and draft.card is None:
        missing.append(
            "the memory of the GPUs, which --launcher.gpu_memory_gib says: whether the run fits is not known"
        )
    needed = placement.gpus_needed
    available = placement.num_hosts * placement.gpus_per_host if needed else 0
    if needed > available:
        missing.append(f"{needed - available} of {needed} GPUs")
    return missing
