"""make_plan: from the config of a run to its `RunPlan`. Nothing is started and nothing is downloaded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from agents.generator.engine_args import read_engine_args
from forge_env.core.errors import UserError
from forge_env.data.rows import find_file
from forge_env.rollout.factory import EnvFactory
from forge_env.runtime.weights import WeightStore
from trainers.config import RunConfig
from trainers.model.shape import FoundModel, ModelShape, read_shape
from trainers.objective.objective import kl_remark
from trainers.objective.old_logprobs import whose_old_logprobs
from trainers.setup.checks import machine_checks, model_checks, run_checks
from trainers.setup.deadlines import Deadlines, patience
from trainers.setup.held_out import HeldOutSet, check_sets, held_out_sets
from trainers.setup.hosts import check_hosts, host_settings
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


class Problems:
    """Error messages of a config, in the order in which they were added, without duplicates."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def attempt(self, make: Callable[..., T], *arguments: object) -> T | None:
        """Call `make` and return its result; on a UserError add its message and return None."""
        try:
            return make(*arguments)
        except UserError as error:
            self.add(str(error))
            return None

    def add(self, *sentences: str) -> None:
        self.sentences = list(dict.fromkeys([*self.sentences, *sentences]))


def make_plan(config: RunConfig) -> RunPlan:
    """Make the plan of a run. Mistakes become its `problems`; defaults replace what they leave undecided.

    Raises:
        UserError: for a foreign package with the name of one of ours; then nothing can be planned.
    """
    check_ours()
    config = copy.deepcopy(config)  # the plan owns its config: nobody else can change it later
    problems, of_numbers, of_algorithm, of_model = Problems(), Problems(), Problems(), Problems()
    of_numbers.attempt(check_bounds, config)
    of_algorithm.attempt(config.settle)
    model = of_model.attempt(model_checks.find_model, config) or _unknown(config)
    defaults = take_defaults(config, model.shape)
    objective = of_algorithm.attempt(plan_objective, config)
    # With a number out of range, such as 0 engines, nothing can be placed: plan with the defaults instead.
    sound = config
    if of_numbers.sentences:
        sound = type(config)()
        take_defaults(sound, None)
    placement = make_placement(sound, has_reference=needs_reference(config, objective))
    old_logprobs = whose_old_logprobs(config, objective.loss) if objective else "generator"

    problems.attempt(check_packages)
    problems.add(*of_numbers.sentences)
    resolve_sources(config)
    problems.attempt(give_dataset, config)
    environment = problems.attempt(run_checks.make_environment, config)
    problems.attempt(check_sets, config)
    problems.attempt(run_checks.check_plugins, config)
    problems.attempt(run_checks.check_metrics, config)
    problems.attempt(run_checks.check_pace, sound)
    problems.attempt(run_checks.check_deterministic, sound, old_logprobs)
    problems.attempt(run_checks.check_schedule, sound)
    problems.attempt(run_checks.check_resume, config)
    problems.add(*of_model.sentences)
    problems.attempt(model_checks.check_length, config, model.shape)
    problems.attempt(model_checks.check_thinking, sound, model.shape)
    problems.attempt(machine_checks.check_services, config)
    card = problems.attempt(card_size, sound, placement)
    store = problems.attempt(_find_store, config, placement, model.shape, card)
    problems.attempt(machine_checks.check_parallelism, sound)
    problems.attempt(machine_checks.check_optimizer, sound)
    problems.attempt(model_checks.check_lora, sound)
    problems.attempt(machine_checks.check_context, sound)
    problems.attempt(machine_checks.check_attention, sound)
    problems.attempt(model_checks.check_heads, sound, model.shape)
    problems.attempt(model_checks.check_experts, sound, model.shape)
    problems.attempt(check_hosts, config)
    problems.attempt(machine_checks.check_sharing, sound, placement)
    problems.attempt(machine_checks.check_gpus, placement)
    problems.attempt(machine_checks.check_places, sound, placement)
    engine_args = problems.attempt(read_engine_args, config.services.generator.engine) or {}
    given = Given(card=card, old_logprobs=old_logprobs, engine_args=engine_args)
    problems.attempt(check_engine, sound, model.shape, engine_args)
    problems.attempt(check_sleep, sound, placement, given)
    problems.attempt(check_speculation, sound, given)
    problems.add(*of_algorithm.sentences)
    tasks = problems.attempt(_local_tasks, config, environment)
    if tasks is not None and environment is not None:
        problems.attempt(check_demonstrations, config, environment, tasks.train)
    about_chats = problems.attempt(config.about_data) or []
    memory = plan_memory(sound, placement, model.shape, store[0] if store else None, given)
    fit = partial(check_fit, has_reference=placement.has_reference)
    problems.attempt(fit, sound, memory, model.shape, given)
    host = machine_checks.host_memory(placement)
    problems.attempt(machine_checks.check_host_memory, sound, model.shape, memory.processes, host)

    return RunPlan(
        config=config,
        defaults=defaults,
        algorithm=config.algorithm_name or "sft",
        steps=max(0, config.training.steps),
        environment=environment,
        objective=objective,
        old_logprobs=old_logprobs,
        kl_remark=kl_remark(config),
        model=model,
        hosts=host_settings(config),
        placement=placement,
        card=card,
        engine=memory.engine,
        about_engine=memory.about_engine,
        trainer=trainer_settings(config, model.shape),
        reference=reference_settings(config),
        store=store[0] if store else None,
        store_reason=store[1] if store else "",
        deadlines=Deadlines(config.deadlines, model.shape.parameters if model.shape else 0),
        patience=patience(config),
        episodes_at_once=episodes_at_once(config),
        processes=memory.processes,
        tasks=tasks,
        about_data=[*(tasks.about if tasks else ()), *about_chats],
        missing=_missing(config, model, placement, card),
        problems=problems.sentences,
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
    config, placement = copy.deepcopy(plan.config), plan.placement
    shape = read_shape(folder / "config.json")
    defaults = take_again(config, plan.defaults, shape)
    model_checks.check_length(config, shape)
    model_checks.check_heads(config, shape)
    model_checks.check_experts(config, shape)
    check_engine(config, shape, plan.engine.engine_args)
    store, reason = find_store(config, placement, snapshot_bytes(config, shape), plan.card)
    given = Given(card=plan.card, old_logprobs=plan.old_logprobs, engine_args=plan.engine.engine_args)
    memory = plan_memory(config, placement, shape, store, given)
    check_fit(config, memory, shape, given, has_reference=placement.has_reference)
    host = machine_checks.host_memory(placement)
    machine_checks.check_host_memory(config, shape, memory.processes, host)
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
    check_demonstrations(plan.config, plan.environment, tasks.train)
    return tasks, held_out_sets(plan.config, tasks.held_out)


def _local_tasks(config: RunConfig, environment: EnvFactory | None) -> RunTasks | None:
    """The tasks of a local file; None where they are not those of a file, and are read at the start.

    Raises:
        UserError: there is no such file, or no run can be made of it.
    """
    file = find_file(own_data(config), config.dataset.split)
    if file is None or environment is None:
        return None
    if not file.is_file():
        raise UserError(f"--dataset.path is {own_data(config)!r}, and there is no file {file}")
    return read_run_tasks(config, environment)


def _unknown(config: RunConfig) -> FoundModel:
    return FoundModel(shape=None, where=f"not found: {config.model.path}", path=config.model.path)


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
