"""open_run: starts the services of a plan, and ends all of them however the run ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from agents.model_folder import INITIAL, find_model
from forge_env.core.episode import Episode
from forge_env.core.errors import ServiceError, UserError, first_error
from forge_env.core.types import Task
from forge_env.evaluation.digests import changed_parts, environment_digests, target_digests
from forge_env.evaluation.kinds import Kinds
from forge_env.records.run_files import steps_of
from forge_env.registry.contrib import rows
from forge_env.runtime.launcher import Launcher
from forge_env.runtime.machines import Machines
from forge_env.utils.by_value import write
from forge_env.utils.folders import full_disk, remove_empty
from forge_env.utils.gc_settings import shorten_collections
from forge_env.utils.targets import load
from trainers.checkpoints import Checkpoint
from trainers.families.table import family_of, read_config
from trainers.metrics.startup import Startup
from trainers.model.find import made_model
from trainers.model.make import count_parameters, make_model
from trainers.model.new_rows import make_folder
from trainers.run.audit import audit_tasks
from trainers.run.evaluations import Evaluations
from trainers.run.rollouts import Rollouts
from trainers.run.run import Run, model_facts
from trainers.run.run_record import RunRecord, write_facts
from trainers.run.start import start_parts
from trainers.run.training_run import TrainingRun
from trainers.run.warmup import demonstrate
from trainers.setup.checks.output_folder import check_output, claim_folder, clear, is_free, new_folder
from trainers.setup.checks.resume_checks import check_data, data_at_start, lock_folder
from trainers.setup.describe import AT_START, describe_plan, describe_services
from trainers.setup.held_out import HeldOutSet
from trainers.setup.plan import TEACHER, tasks_of, with_folders
from trainers.setup.run_plan import RunPlan


class TrainingData(Protocol):
    """Training data that replaces an environment's tasks; the run then needs no environment."""

    def make_model(self, folder: Path) -> int:
        """Make a model of `model.size` for it; returns its number of parameters."""
        ...

    async def prepare(self, model: Path, say: Callable[[str], None], began: Mapping[str, Any] | None) -> int:
        """Prepare the data for this model, before anything is started; returns the number of optimizer steps.

        `began` is the `record` of the run that goes on; None for a new run.
        """
        ...

    def record(self) -> dict[str, Any]:
        """What was prepared and what was left out, as JSON, for run.json."""
        ...


@asynccontextmanager
async def open_run(
    plan: RunPlan, caller: TrainingRun | None = None, data: TrainingData | None = None
) -> AsyncIterator[Run]:
    """Start the services of a run; ends them all, however the run ends.

    Without an environment, the trainer is the only service. `caller` hears of the run, and may stop it.
    """
    startup, checkpoint = Startup(), plan.checkpoint
    config, algorithm = plan.config, plan.algorithm
    folder = Path(config.output or new_folder(algorithm.name, config.env.name))
    new_folders = [] if checkpoint else claim_folder(str(folder))
    caller = caller or TrainingRun()
    caller.folder, caller.from_step = folder.absolute(), checkpoint.step if checkpoint else 0
    state = _FolderState(folder, caller, new_folders if config.output else [folder], is_empty=checkpoint is None)
    with _with_remedies(state, algorithm.command):
        async with AsyncExitStack() as stack:
            record = _open_record(plan, stack, state, startup)
            with record.phase("tasks"):
                tasks, held_out = tasks_of(plan)
                files = check_data(folder, plan.views)
            what = f"{algorithm.name} on {config.env.name or 'data'}, seed {config.training.seed}"
            about = [text for share in plan.environments for text in share.about(tasks[share.label].about)]
            for sentence in (f"{what}; everything is written to {folder}", *about):
                record.say(sentence)
            tasks, audit, cheats = await audit_tasks(plan, tasks, record)
            with record.phase("model"):
                model, parameters = await _prepare_model(plan, record, checkpoint, data)
            plan = with_folders(plan, model, {name: find_model(name, option=TEACHER) for name in plan.teachers})
            model = _with_new_rows(plan, record, model)
            _write_facts(plan, record, model_facts(plan, folder, model, parameters) | audit)
            record.add_restarts(map(asdict, caller.restarts))
            if data is None:
                records = {label: of_env.record for label, of_env in tasks.items() if of_env.record}
                record.add_fact("data", files | records.get("", records))
            else:
                with record.phase("data"):
                    steps = await data.prepare(model, record.say, data_at_start(folder) if checkpoint else None)
                plan = replace(plan, steps=steps)
                record.add_fact("steps", steps)
                record.add_fact("data", files | data.record())
            train_tasks = {label: of_env.train for label, of_env in tasks.items()}
            kinds = _kinds(record, train_tasks, held_out)
            _say_plan(plan, record)
            launcher = await _open_launcher(plan, stack, record)
            demonstrations: list[Episode] = []

            async def prepare_warmup(rollouts: Rollouts) -> None:
                if plan.has_warmup:
                    state.is_empty = False  # it has episodes that show what the expert does
                    demonstrations.extend(await demonstrate(rollouts, train_tasks))

            trainer, rollouts = await start_parts(plan, launcher, str(model), record, with_environments=prepare_warmup)
            stack.push_async_callback(rollouts.weights.stop_waiting)
            stack.callback(record.stop_observing)
            setup_seconds = time.perf_counter() - record.start_time
            _say_what_is_up(plan, record)
            state.is_empty, state.is_up = False, True
            run = Run(
                plan=plan,
                rollouts=rollouts,
                trainer=trainer,
                weights=rollouts.weights,
                record=record,
                evaluations=Evaluations(rollouts=rollouts, held_out=held_out, kinds=kinds),
                launcher=launcher,
                model=model,
                parameters=parameters,
                setup_seconds=setup_seconds,
                caller=caller,
                train_tasks=train_tasks,
                cheats=cheats,
                demonstrations=demonstrations,
                checkpoint=checkpoint,
            )
            if not checkpoint:  # a resumed run first cuts its record back, see `restore`
                record.begin(run)
            stack.callback(shorten_collections())
            stack.callback(setattr, record.console, "otherwise", "ending the processes of the run")
            yield run


def _open_record(plan: RunPlan, stack: AsyncExitStack, state: _FolderState, startup: Startup) -> RunRecord:
    """Lock the folder of the run, and open its record; a new run clears what another has left that trained nothing."""
    folder, command = state.path, plan.algorithm.command
    stack.enter_context(lock_folder(folder))
    if state.is_empty:
        check_output(str(folder))  # nobody else can change it from now on
        clear(folder)
    for share in plan.environments:
        write(share.config.env.name)
    stack.enter_context(_left_as_it_was(state))
    record = stack.enter_context(RunRecord(folder, asdict(plan.config), startup))
    record.add(state.caller)
    if restarts := state.caller.restarts:
        paused = "; it stays paused" * state.caller.controls.is_paused
        record.warn(f"{restarts[-1]}, restart {len(restarts)} of {plan.restarts}{paused}")
    stack.enter_context(_with_what_is_kept(record, command))
    return record


@dataclass(slots=True)
class _FolderState:
    path: Path
    caller: TrainingRun
    new_folders: Sequence[Path]
    """The folders that were made for the run, the innermost first."""
    is_empty: bool
    """Whether nothing has run in it yet."""
    is_up: bool = False
    """Whether the processes of the run have started."""


@contextmanager
def _left_as_it_was(folder: _FolderState) -> Iterator[None]:
    """Remove what a run has written that is refused at its start, or is stopped before its first optimizer step."""
    try:
        yield
    except BaseException as error:
        is_refused = folder.is_empty and isinstance(first_error(error), UserError)
        is_stopped = folder.caller.is_stopping or isinstance(error, asyncio.CancelledError)
        if is_refused or (is_stopped and is_free(folder.path)):
            clear(folder.path)
            remove_empty(folder.new_folders)
        raise


@contextmanager
def _with_what_is_kept(record: RunRecord, command: str) -> Iterator[None]:
    """Say of a run that is stopped what is kept of it. Its processes have ended by then."""
    try:
        yield
    except asyncio.CancelledError:
        if is_free(record.folder):
            record.say(f"stopped before the first optimizer step; nothing is kept in {record.folder}")
        elif onward := _onward(record.folder, command):
            record.say(f"stopped; a checkpoint is kept: {onward}")
        else:
            record.say(f"stopped; no checkpoint is kept, and a new run needs another --output than {record.folder}")
        raise


def _onward(folder: Path, command: str) -> str:
    """The command that resumes from the newest checkpoint of a run; "" without a checkpoint."""
    steps = steps_of(folder)
    return f"go on from step {max(steps)} with python -m {command} --output {folder} --resume" if steps else ""


@contextmanager
def _with_remedies(folder: _FolderState, command: str) -> Iterator[None]:
    """Add to an error that ends a run how to go on from its newest checkpoint."""
    try:
        yield
    except BaseException as error:
        cause, onward = first_error(error), _onward(folder.path, command)
        if isinstance(cause, ServiceError) and onward:
            raise ServiceError(f"{cause}; {onward}") from error
        if isinstance(cause, UserError) and onward and folder.is_up and "--resume" not in str(cause):
            raise UserError(f"{cause}; {onward}") from error
        if isinstance(cause, OSError) and (full := full_disk(cause, folder.path)):
            remedy = f"make room, and {onward or 'start again'}"
            raise UserError(f"{folder.path} cannot be written: {full}; {remedy}") from error
        raise


async def _prepare_model(
    plan: RunPlan, record: RunRecord, checkpoint: Checkpoint | None, data: TrainingData | None
) -> tuple[Path, int]:
    """The folder of the model that the run begins with, and its number of parameters."""
    if plan.model.path:
        model = _in_bfloat16(plan, record, find_model(plan.model.path))
        record.say(f"model {model}")
        return model, count_parameters(model)
    model = record.folder / INITIAL
    if checkpoint:
        return find_model(str(model)), count_parameters(model)
    if data is not None:
        parameters = data.make_model(model)
    else:
        parameters = await make_model(
            model,
            *(share.factory for share in plan.environments),
            seed=plan.config.training.seed,
            limits=plan.config.env.limits(),
            size=plan.model.size,
        )
    record.say(f"made {made_model(plan.model.size)} with {parameters:,} parameters")
    return model, parameters


def _in_bfloat16(plan: RunPlan, record: RunRecord, model: Path) -> Path:
    """The folder of the model, or of a copy in bfloat16 if it is quantized."""
    if not plan.model.quantization:
        return model
    copy = record.folder / INITIAL
    if not copy.is_dir():  # a resumed run has it
        record.say(f"writing the weights of {model} in bfloat16")
        load(family_of(read_config(model)).dequantizer)(model, copy)
    return copy


def _with_new_rows(plan: RunPlan, record: RunRecord, model: Path) -> Path:
    """The folder of the model, or of a copy with new rows, if they are asked for and needed."""
    marks, copy = plan.model.untrained_tokens, record.folder / INITIAL
    if plan.config.model.new_rows == "off" or not marks:
        return model
    if not copy.is_dir():  # a resumed run has it
        make_folder(model, marks, copy, seed=plan.config.training.seed)
    record.say(f"the model with new rows is in {copy}")
    return copy


def _write_facts(plan: RunPlan, record: RunRecord, facts: Mapping[str, Any]) -> None:
    """Write run.json and config.yaml; a resumed run warns if code of the environment or of the training has changed."""
    training, algorithm = plan.config.training, plan.algorithm
    targets = [training.loss, training.advantages, training.reward, algorithm.target]
    code = {
        "environment": {
            name: digest for e in plan.environments for name, digest in environment_digests(e.factory).items()
        },
        "training": target_digests(filter(None, targets)),
    }
    at_start = write_facts(record.folder, algorithm.name, asdict(plan.config), facts, code)
    for part in changed_parts(at_start, code):
        record.warn(f"{part} has changed since this run began, and its earlier figures are of what it was")


def _kinds(
    record: RunRecord, train: Mapping[str, Sequence[Task]], held_out: Mapping[str, Sequence[HeldOutSet]]
) -> Kinds:
    """The environments and kinds of the run's tasks, which run.json names for the report; warns of those without
    figures."""
    parts_of_sets = [part for parts in held_out.values() for part in parts]
    kinds = Kinds.of(
        {
            label: [*tasks, *(task for part in parts_of_sets if part.env == label for task in part.tasks)]
            for label, tasks in train.items()
        }
    )
    if kinds.order:
        record.add_fact("kinds", asdict(kinds))
    if kinds.note:
        record.warn(kinds.note)
    return kinds


async def _open_launcher(plan: RunPlan, stack: AsyncExitStack, record: RunRecord) -> Launcher:
    """Open the launcher, which ends all processes; the store is closed after it."""
    assert plan.store is not None, "the sizes of the model are known by now"
    stack.push_async_callback(plan.store.close)
    hosts: Machines | None = rows("hosts")["hosts"].load()(plan.hosts) if plan.hosts else None
    with record.phase("launcher"):
        launcher = await stack.enter_async_context(Launcher(record.folder / "logs", say=record.warn, hosts=hosts))
    for sentence in hosts.summary() if hosts else ():
        record.say(sentence)
    return launcher


def _say_plan(plan: RunPlan, record: RunRecord) -> None:
    for name, text in describe_plan(plan):
        if name in ("warning", "no effect"):
            record.warn(text if name == "warning" else f"{name}: {text}")
        elif name in AT_START:
            record.say(f"{name}: {text}")


def _say_what_is_up(plan: RunPlan, record: RunRecord) -> None:
    record.say(describe_services(plan))
    if not plan.environments:
        return
    step_seconds = plan.config.training.step_seconds
    if plan.patience > step_seconds:
        record.say(
            f"groups are waited for while nothing moves for {plan.patience:g} s, not for training.step_seconds "
            f"({step_seconds:g}): a legal episode may take so long"
        )
