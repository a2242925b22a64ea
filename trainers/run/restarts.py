"""A run goes on by itself, in new processes, after a process died that cannot be replaced, as the trainer's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from forge_env.core.errors import ForgeError, ProcessDied, ServiceError, first_error
from forge_env.records.run_files import steps_of
from forge_env.utils.settings import with_values
from trainers.metrics.heartbeat import begin_now
from trainers.run.training_run import Restart, TrainingRun
from trainers.setup.checks.output_folder import is_free
from trainers.setup.plan import make_plan
from trainers.setup.run_plan import RunPlan


async def with_restarts(
    execute: Callable[[RunPlan, TrainingRun], Awaitable[None]], plan: RunPlan, run: TrainingRun
) -> None:
    """Execute the plan of a run, and again from its newest checkpoint as often as `launcher.restarts` allows.

    Raises:
        ServiceError: of the last death; or of the first one, if steps were taken and there is no checkpoint.
    """
    while True:
        try:
            return await execute(plan, run)
        except (ServiceError, BaseExceptionGroup) as error:
            death, steps = _death(error), steps_of(run.folder)
            if death is None or run.is_stopping or len(run.restarts) >= plan.restarts:
                raise
            if not steps and not is_free(run.folder):  # a new beginning would remove the record of the steps
                raise
            plan = _again(plan, run, death, run.from_step or max(steps, default=0))


def _again(plan: RunPlan, run: TrainingRun, death: ProcessDied, step: int) -> RunPlan:
    """The plan to go on with after `step`, or to begin anew with 0."""
    begin_now()
    changes = {"output": plan.config.output or str(run.folder), "resume": step > 0, "checkpoint.step": run.from_step}
    run.controls.steps_begun = 0
    try:
        again = make_plan(with_values(run.changed or plan.config, changes), plan.algorithm)
        again.check()
    except ForgeError as error:
        raise ServiceError(f"{death}, and the run cannot start again: {error}") from death
    run.restarts.append(Restart(step=step, cause=death.end, at=datetime.now(UTC).isoformat(timespec="seconds")))
    return again


def _death(error: BaseException) -> ProcessDied | None:
    """The death that an error was raised from; None if it has another cause."""
    cause: BaseException | None = first_error(error)
    while cause is not None and not isinstance(cause, ProcessDied):
        cause = first_error(cause.__cause__) if cause.__cause__ else None
    return cause
