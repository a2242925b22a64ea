"""open_run: starts the services of a plan, and ends all of them however the run ends."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from agents.model_folder import fetch_config, find_model
from agents.renderer.families import check_thinking
from forge_env.core.errors import ServiceError, UserError, first_error
from forge_env.core.types import Task
from forge_env.evaluation.digests import changed, environment_digests
from forge_env.evaluation.kinds import Kinds
from forge_env.runtime.hosts.hosts import Hosts
from forge_env.runtime.launcher import Launcher
from forge_env.utils.disks import full_disk
from forge_env.utils.gc_settings import shorten_collections
from trainers.checkpoints import Checkpoint, steps_of
from trainers.metrics.report import Report
from trainers.model.make import count_parameters, make_model
from trainers.model.shape import made_model
from trainers.run.evaluations import Evaluations
from trainers.run.rollouts import Rollouts
from trainers.run.run_folder import checkpoint_of, claim_folder, locked, new_folder
from trainers.run.run_record import add_fact, check_data, code_at_start, write_facts
from trainers.run.services import Services, start_services
from trainers.run.startup import Startup
from trainers.run.training_run import TrainingRun
from trainers.setup.meaning import about_adapters, about_defaults, about_services, unusual_settings
from trainers.setup.plan import tasks_of, with_model
from trainers.setup.run_plan import RunPlan


class TrainingData(Protocol):
    """Training data that replaces an environment's tasks; the run then needs no environment."""

    def make_model(self, folder: Path) -> int:
        """Make a model of `model.size` for it; returns its number of parameters."""
        ...

    async def prepare(self, model: Path, say: Callable[[str], None]) -> int:
        """Prepare the data for this model, before anything is started; returns the number of optimizer steps."""
        ...

    def record(self) -> dict[str, Any]:
        """What was prepared and what was left out, as JSON, for run.json."""
        ...


@asynccontextmanager
async def open_run(plan: RunPlan, data: TrainingData | None = None) -> AsyncIterator[TrainingRun]:
    """Start the services of a run; ends them all, however the run ends.

    Args:
        plan: of the run. Without an environment, the trainer is the only service.
        data: to train on instead of the environment's tasks.

    Raises:
        UserError: for mistakes of the user, before anything is started where possible.
    """
    startup, checkpoint = Startup(), checkpoint_of(plan)
    folder = Path(plan.output) if checkpoint else claim_folder(plan.output or new_folder(plan))
    state = _FolderState(folder)
    with _with_remedies(state, plan.command):
        async with AsyncExitStack() as stack:
            stack.enter_context(locked(folder))
            state.is_empty = checkpoint is None
            report = stack.enter_context(Report(folder, plan.record, startup.command))
            report.console.under_way = lambda: [*startup.under_way.items(), *report.timeline.under_way]
            stack.enter_context(_with_what_is_kept(report, plan.command))
            if checkpoint:
                report.check(checkpoint.extra["report"])
            with startup.phase("tasks"):
                tasks, held_out = tasks_of(plan)
                record = check_data(folder, plan.config)
            report.say(
                f"{plan.algorithm} on {plan.env.name or 'data'}, seed {plan.training.seed}; everything is written "
                f"to {folder}"
            )
            for sentence in tasks.about:
                report.say(sentence)
            with startup.phase("model"):
                model, parameters = await _prepare_model(plan, report, checkpoint, data)
            plan = with_model(plan, model)
            check_thinking(model, plan.env.thinking)
            results = {"command": plan.command, "model": str(model), "model_parameters": parameters}
            _write_facts(plan, report, results)
            add_fact(folder, "data", record | tasks.record)
            kinds = _kinds(report, [*tasks.train, *(task for each in held_out.values() for task in each.tasks)])
            if data is not None:
                with startup.phase("data"):
                    plan = plan.with_steps(await data.prepare(model, report.say))
                    add_fact(folder, "data", record | data.record())
            _say_defaults(plan, report)
            launcher, services = await _start(plan, stack, startup, report, str(model))
            results["setup_seconds"] = time.perf_counter() - report.started
            _say_what_is_up(plan, report)
            state.is_empty = False
            rollouts = Rollouts(plan, report, services)
            run = TrainingRun(
                plan=plan,
                report=report,
                startup=startup,
                services=services,
                rollouts=rollouts,
                evaluations=Evaluations(plan, report, rollouts, services.weights, held_out, kinds),
                train_tasks=tasks.train,
                checkpoint=checkpoint,
                pids=launcher.pids,
                results=results,
            )
            if not checkpoint:  # a resumed run first cuts its record back, see `restore`
                run.measure_system()
            shorten_collections()
            stack.callback(setattr, report.console, "otherwise", "ending the processes of the run")
            yield run


@dataclass(slots=True)
class _FolderState:
    path: Path
    is_empty: bool = False
    """Whether nothing has run in it yet; the folder of a run that cannot start is removed."""


@contextmanager
def _with_what_is_kept(report: Report, command: str) -> Iterator[None]:
    """Say of a run that is stopped what is kept of it. Its processes have ended by then."""
    try:
        yield
    except asyncio.CancelledError:
        onward = _onward(report.folder, command)
        nothing = f"stopped; no checkpoint is kept, and a new run needs another --output than {report.folder}"
        report.say(f"stopped; a checkpoint is kept: {onward}" if onward else nothing)
        raise


def _onward(folder: Path, command: str) -> str:
    """How to go on from the newest checkpoint of a run; "" where there is none."""
    saved = steps_of(folder)
    return f"go on from step {max(saved)} with python -m {command} --output {folder} --resume" if saved else ""


@contextmanager
def _with_remedies(folder: _FolderState, command: str) -> Iterator[None]:
    """Add to an error that ends a run how to go on from its newest checkpoint."""
    try:
        yield
    except BaseException as error:
        cause, onward = first_error(error), _onward(folder.path, command)
        if isinstance(cause, ServiceError) and onward:
            raise ServiceError(f"{cause}; {onward}") from error
        if isinstance(cause, OSError) and (full := full_disk(cause, folder.path)):
            remedy = f"make room, and {onward or 'start again'}"
            raise UserError(f"{folder.path} cannot be written: {full}; {remedy}") from error
        if folder.is_empty and isinstance(cause, UserError):
            shutil.rmtree(folder.path, ignore_errors=True)  # the next try may have the same folder
        raise


async def _prepare_model(
    plan: RunPlan, report: Report, checkpoint: Checkpoint | None, data: TrainingData | None
) -> tuple[Path, int]:
    """The folder of the model that the run begins with, and its number of parameters."""
    if plan.model.path:
        if plan.model.missing:  # what cannot be trained here is refused before its weights are downloaded
            with_model(plan, fetch_config(plan.model.path).parent)
        model = find_model(plan.model.path)
        report.say(f"model {model}")
        return model, count_parameters(model)
    model = report.folder / "initial_model"
    if checkpoint:
        return find_model(str(model)), count_parameters(model)
    if data is not None:
        parameters = data.make_model(model)
    else:
        assert plan.environment is not None, "without data there is an environment"
        parameters = await make_model(
            model, plan.environment, seed=plan.training.seed, limits=plan.limits, size=plan.model.size
        )
    report.say(f"made {made_model(plan.model.size)} with {parameters:,} parameters")
    return model, parameters


def _write_facts(plan: RunPlan, report: Report, results: Mapping[str, Any]) -> None:
    """Write run.json and config.yaml; a resumed run warns if the environment's code has changed."""
    code = environment_digests(plan.environment) if plan.environment else {}
    if before := code_at_start(report.folder):
        for part in changed({"environment": before}, {"environment": code}):
            report.warn(f"{part} has changed since this run began, and its earlier figures are of what it was")
    write_facts(report.folder, plan.algorithm, plan.config, results, code)


def _kinds(report: Report, tasks: Sequence[Task]) -> Kinds:
    """The kinds of the run's tasks, which run.json names for the report; warns of those without figures."""
    kinds = Kinds.of(tasks)
    if kinds.names:
        add_fact(report.folder, "kinds", asdict(kinds))
    if kinds.note:
        report.warn(kinds.note)
    return kinds


async def _start(
    plan: RunPlan, stack: AsyncExitStack, startup: Startup, report: Report, model: str
) -> tuple[Launcher, Services]:
    """Start the processes; the stack ends them."""
    assert plan.store is not None, "the sizes of the model are known by now"
    stack.push_async_callback(plan.store.close)
    hosts = Hosts(plan.hosts) if plan.hosts else None
    with startup.phase("launcher"):
        launcher = await stack.enter_async_context(Launcher(report.folder / "logs", say=report.warn, hosts=hosts))
    for sentence in hosts.summary() if hosts else ():
        report.say(sentence)
    services = await start_services(plan, launcher, model, plan.store, startup, report.timeline)
    stack.push_async_callback(services.stop_waiting)
    stack.callback(report.stop_measuring)
    return launcher, services


def _say_defaults(plan: RunPlan, report: Report) -> None:
    for text in about_defaults(plan):
        report.say(f"defaults: {text}")
    for text in unusual_settings(plan):
        report.warn(text)


def _say_what_is_up(plan: RunPlan, report: Report) -> None:
    report.say(about_services(plan))
    if plan.environment is None:
        return
    report.say(plan.store_reason)
    if plan.lora:
        report.say(f"adapters: {about_adapters(plan)}")
    if plan.about_engine:
        report.say(plan.about_engine)
    step_seconds = plan.training.step_seconds
    if plan.patience > step_seconds:
        report.say(
            f"groups are waited for while nothing moves for {plan.patience:g} s, not for training.step_seconds "
            f"({step_seconds:g}): a legal episode may take so long"
        )
