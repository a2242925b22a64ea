"""The actions on a run: each changes something that the run's loop looks at, and returns what will happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from forge_env.core.errors import UserError, nearest
from forge_env.utils.settings import Or, leaves, out_of_bounds, read_value, with_values
from trainers.run.run import Run

STEPS = "training.steps"
LIMITS = (STEPS, "env.max_turns", "env.max_turn_tokens", "env.step_seconds", "env.episode_seconds")
"""Settings that can change while a run goes on. They are marked as those that may differ when a run is resumed."""


def act(run: Run, action: str, value: str = "") -> str:
    """Carry an action out; returns a sentence on what follows.

    Raises:
        UserError: it is unknown, or cannot be done now.
    """
    if action not in ACTIONS:
        raise UserError(f"there is no action {action!r}; the actions are {', '.join(ACTIONS)}")
    wants = WANTS.get(action, "")
    if bool(value) != bool(wants):
        raise UserError(f"{action} needs {wants}" if wants else f"{action} takes no value, and {value!r:.80} was given")
    if action != "stop" and run.plan.is_supervised:
        raise UserError("the only action on a run of supervised training is stop")
    if action != "stop" and run.plan.config.training.deterministic:
        raise UserError("training.deterministic repeats a run bit by bit, so the only action on it is stop")
    return ACTIONS[action](run, value)


def _pause(run: Run, _: str) -> str:
    run.controls.pause()
    return "pauses before the next step; groups under way are finished"


def _resume(run: Run, _: str) -> str:
    run.controls.resume()
    return "goes on"


def _stop(run: Run, _: str) -> str:
    if run.caller.is_stopping:
        raise UserError("the run is stopping already")
    if run.controls.steps_begun and run.controls.queue is None:
        raise UserError("the run has taken its last step, and ends by itself")
    run.caller.stop()
    if not run.controls.steps_begun:
        return "stops after the work in progress; without a step of the training there is no checkpoint"
    return "stops after the step in progress, with a checkpoint; --resume goes on with it"


def _evaluate(run: Run, _: str) -> str:
    run.controls.evaluate()
    return "evaluates the weights of the engines before the next step"


def _set(run: Run, value: str) -> str:
    name, _, text = value.partition("=")
    if name not in LIMITS:
        raise UserError(f"{name} cannot change while a run goes on; {nearest(name, LIMITS)}")
    run.controls.check()
    [setting] = [each for each in leaves(run.plan.config) if each.name == name]
    number = read_value(text, setting.kind, name)
    if wrong := out_of_bounds(number, [mark for mark in setting.marks if not isinstance(mark, Or)]):
        raise UserError(f"{name} is {text}; it must be {wrong}")
    if name == STEPS:
        run.controls.check_steps(number)
        plan = replace(run.plan, config=with_values(run.plan.config, {name: number}), steps=number)
        if plan.rate.lr_schedule != "constant" and number <= plan.rising_steps:
            raise UserError(f"training.steps {number} leaves no step after the rise of the learning rate: give more")
        run.controls.steps = number
        return _change(run, name, setting.value, number, plan, "from the next step on")
    if run.plan.has_several:
        raise UserError(f"{name} differs between the environments of this run: only {STEPS} can change")
    [share] = run.plan.environments
    config = with_values(run.plan.config, {name: number})
    config.env.check()
    share = replace(share, config=with_values(share.config, {name: number}))
    plan = replace(run.plan, config=config, environments=[share])
    return _change(run, name, setting.value, number, plan, "of groups that begin from now on")


def _change(run: Run, name: str, before: Any, now: Any, plan: Any, when: str) -> str:
    run.change(plan)
    return f"{name} is {now} {when}, and was {before}; later checkpoints have it too"


def _requeue(run: Run, value: str) -> str:
    flights = run.rollouts.in_flight
    group = value if value in flights else value.rpartition("/")[0]  # an episode is GROUP/NUMBER
    run.rollouts.requeue(group if group in flights else value)
    return f"{group} is played again from its first prompt, with all its episodes"


ACTIONS: dict[str, Callable[[Run, str], str]] = {
    "pause": _pause,
    "resume": _resume,
    "stop": _stop,
    "evaluate": _evaluate,
    "set": _set,
    "requeue": _requeue,
}
WANTS = {
    "set": f"a limit and its value, such as {STEPS}=200; limits are {', '.join(LIMITS)}",
    "requeue": "a group or an episode that is played, such as train/12",
}
"""What an action needs beside its name."""
