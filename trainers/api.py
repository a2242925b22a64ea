"""The trainer from Python, `train`, and the command of every algorithm, which starts a run in the same way."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from forge_env.core.env import Env
from forge_env.core.errors import ForgeError, InvariantError, NothingTrained, UserError, nearest
from forge_env.core.plain_value import plain
from forge_env.records.run_files import ENVIRONMENT
from forge_env.registry.registry import env_class, is_of_process
from forge_env.rollout.factory import EnvFactory, name_env
from forge_env.utils.exits import ends_in_order, show_crashes
from forge_env.utils.folders import disk_problem, remove_empty
from forge_env.utils.interrupts import ends_process, interrupt_again, leave_at_once
from forge_env.utils.run_async import run_async
from forge_env.utils.secret_values import masked_text
from forge_env.utils.targets import check_not_importing, is_file, load
from trainers.algorithm import Algorithm, find_algorithm
from trainers.metrics.heartbeat import begin_now, quiet
from trainers.run.training_run import TrainingRun
from trainers.setup.checks.output_folder import new_folder
from trainers.setup.options.first_look import ALGORITHMS, check_command
from trainers.setup.options.read_config import read_config

if TYPE_CHECKING:
    from trainers.setup.run_plan import RunPlan

Execute = Callable[["RunPlan", TrainingRun], Coroutine[Any, Any, None]]
Environment = str | type[Env] | EnvFactory
_under_way = threading.Lock()


class Options(TypedDict, total=False):
    """What `train` takes beside the environment and the algorithm."""

    steps: int
    """`training.steps`."""
    model: str | PathLike[str]
    """`model.path`: a Hugging Face folder or a hub id. Without it the tiny model is made."""
    output: str | PathLike[str]
    """The folder of the run. Without it a new one is made under outputs/."""
    seed: int
    """`training.seed`."""
    resume: bool
    """Go on with the run of `output`, from its newest checkpoint."""
    settings: Mapping[str, Any]
    """Every setting of the command, by dotted names or nested: `{"training.batch_size": 8}`."""
    config: str | PathLike[str]
    """A YAML file of settings; all other arguments override it."""
    callbacks: Sequence[Any]
    """Instances of subclasses of `trainers.Callback`."""


def train(
    env: Environment | list[Any] = "", algorithm: str | Algorithm = "grpo", **options: Unpack[Options]
) -> TrainingRun:
    """Train a model, and return when the run has ended: `python -m trainers.grpo` from Python.

    Ctrl-C, or the stop button of a notebook, stops the run after the step in progress, with a checkpoint; then `train`
    returns. A second one ends the run at once.

    Args:
        env: a name or a target, as on the command line; a class; or a factory, which has options: `make("math",
            level=2)`. A class may be defined in a notebook or in the script. Or several of them: a list as a file has
            it, `["math", {"name": "code_exec", "weight": 0.5}]`.
        algorithm: its name, or the target of your own, "my_file.py:MINE".

    Raises:
        UserError: a mistake in one sentence, such as an unknown setting, or a callback that raised.
        ForgeError: the run failed.
    """
    with _begin(env, algorithm, options) as (plan, run):
        try:
            run_async(run.in_order(execute(plan, run), _say), insists=False)
        except KeyboardInterrupt:
            if not run.is_stopping:
                raise
    return run


async def train_async(
    env: Environment | list[Any] = "", algorithm: str | Algorithm = "grpo", **options: Unpack[Options]
) -> TrainingRun:
    """Do what `train` does, for a caller with an event loop. Cancelling it stops the run, a second time at once."""
    with _begin(env, algorithm, options) as (plan, run):
        await run.in_order(execute(plan, run), _say)
    return run


@ends_process
def main(algorithm: str, arguments: Sequence[str] | None = None) -> int:
    """Run a command line for an algorithm, by its name or its target; returns the exit code, see `enter`.

    The algorithm is imported by its name: the trainer's process imports the loss, so it must not belong to __main__.
    """
    return enter(algorithm, execute, sys.argv[1:] if arguments is None else arguments)


def enter(algorithm: Algorithm | str, execute: Execute, arguments: Sequence[str]) -> int:
    """Parse the options, make the plan of the run, and execute it; returns the exit code.

    With --dry-run the plan is printed, and nothing runs.

    0 success, 1 a fault of the machinery, 2 a user's mistake, 3 a complete run that trained nothing, 130 Ctrl-C,
    143 SIGTERM, 129 the end of its terminal.
    """
    show_crashes()
    interrupt_again()
    run = TrainingRun()
    try:
        with ends_in_order():
            algorithm = _find(algorithm)
            if {"--help", "-h"} & {*arguments}:
                from trainers.setup.options.usage import usage

                print(usage(algorithm.config))
                return 0
            plan = _plan(algorithm, arguments)
            if plan.config.dry_run:
                from trainers.setup.describe import dry_run

                return dry_run(plan)
            run_async(run.in_order(execute(_ready(plan), run), _say), insists=False)
            return 0
    except KeyboardInterrupt:
        print("interrupted: nothing was started" if run.folder == Path() else "interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except SystemExit as end:  # SIGTERM
        return int(end.code or 0)
    except InvariantError:
        raise  # a bug of ours
    except (ForgeError, OSError, RuntimeError) as error:
        sentence = disk_problem(error)
        if not (sentence or isinstance(error, ForgeError)):
            raise  # a bug of ours
        quiet()
        print(masked_text(f"error: {sentence or error}"), file=sys.stderr)
        return 2 if sentence or isinstance(error, UserError) else 3 if isinstance(error, NothingTrained) else 1
    finally:
        leave_at_once()
        quiet()


async def execute(plan: RunPlan, run: TrainingRun) -> None:
    """Execute the plan of a run, again after the death of a process as `launcher.restarts` says."""
    from trainers.run.restarts import with_restarts

    # By its name: it is above this file.
    target = "sft.train:train" if plan.is_supervised else "controller.policy_gradient:run_policy_gradient"
    await with_restarts(load(f"trainers.{target}"), plan, run)


@contextmanager
def _begin(
    env: Environment | list[Any], algorithm: str | Algorithm, options: Options
) -> Iterator[tuple[RunPlan, TrainingRun]]:
    """The plan of a run, which this machine can start, and the run; a process has one at a time."""
    check_not_importing("train")
    if unknown := sorted(options.keys() - Options.__annotations__):
        hint = nearest(unknown[0], Options.__annotations__)
        raise UserError(f"train has no argument {unknown[0]!r}. {hint} A setting is given by settings={{NAME: VALUE}}")
    if not _under_way.acquire(blocking=False):
        raise UserError(
            "train was called while a run is under way in this process: wait for its end, or start the other run in a "
            "process of its own"
        )
    new_folders: list[Path] = []
    try:
        begin_now()
        arguments: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        callbacks, settings = arguments.pop("callbacks", ()), _plain(arguments.pop("settings", {}))
        config = [f"--config={arguments.pop('config')}"] if "config" in arguments else []
        if arguments.get("resume") and not config and "output" not in {*settings, *arguments}:
            raise UserError("resume=True goes on with the run of a folder: give output=FOLDER too")
        run, algorithm = TrainingRun(callbacks), _find(algorithm)
        if isinstance(env, str) and is_of_process(env):
            env = env_class(env)
        if isinstance(env, str | list):
            arguments |= {"env": env} if env else {}
        else:
            others = read_config(algorithm.config, config, [settings, _plain(arguments)])
            factory = env if isinstance(env, EnvFactory) else EnvFactory(env, **others.env.options)
            if not (output := others.output):
                new_folders.append(Path(new_folder(algorithm.name, factory.env_class.__name__)))
                arguments["output"] = output = str(new_folders[0])
            arguments["env"] = name_env(factory, Path(output) / ENVIRONMENT)
            if factory is env:
                arguments |= {f"env.options.{name}": value for name, value in factory.options.items()}
        plan = _plan(algorithm, config, [settings, _plain(arguments)])
        if plan.config.dry_run:
            raise UserError(f"dry_run is for the command: python -m {algorithm.command} --dry-run")
        yield _ready(plan), run
    finally:
        remove_empty(new_folders)  # nothing was started
        _under_way.release()


def _find(algorithm: Algorithm | str) -> Algorithm:
    """The algorithm of a name or of a target."""
    if isinstance(algorithm, str):
        if ":" in algorithm or is_file(algorithm):
            return find_algorithm(algorithm)
        check_command(algorithm)
        return _ours(algorithm)
    if not isinstance(algorithm, Algorithm):
        raise UserError(f"the algorithm is {algorithm!r:.80}: give its name, {', '.join(ALGORITHMS)}, or a target")
    if algorithm.target or (algorithm.name in ALGORITHMS and algorithm is _ours(algorithm.name)):
        return algorithm
    raise UserError(
        f"the algorithm {algorithm.name!r} cannot reach the trainer's process: put it into a file, and give its "
        'target, "my_file.py:MINE"'
    )


def _ours(name: str) -> Algorithm:
    algorithm: Algorithm = getattr(importlib.import_module(f"{__package__}.{name}"), name.upper())
    return algorithm


def _plan(algorithm: Algorithm, arguments: Sequence[str], settings: Sequence[Mapping[str, Any]] = ()) -> RunPlan:
    config = read_config(algorithm.config, arguments, settings)
    from trainers.setup.plan import make_plan  # imports torch, which a typo does not need

    return make_plan(config, algorithm)


def _ready(plan: RunPlan) -> RunPlan:
    from trainers.setup.plan import ready

    return ready(plan)


def _plain(settings: Any) -> dict[str, Any]:
    """Settings as a config file could have them."""
    if not isinstance(settings, Mapping):
        raise UserError(f'settings is {settings!r:.80}; give a dict, as in settings={{"training.batch_size": 8}}')
    values = {}
    for name, value in settings.items():
        try:
            values[str(name)] = plain(value)
        except (ValueError, RecursionError) as error:
            raise UserError(f"settings: {name} is {error}: give a text, a number, a list or a dict") from None
    return values


def _say(text: str) -> None:
    print(f"\n{text}", file=sys.stderr, flush=True)
