"""Several environments in one run: the config as each of them has it.

`env.name` names the environments and their weights; `mixture` has the settings in which one differs, by label::

    env:
      - math
      - {name: code_exec, weight: 0.5, options: {level: 2}, max_turns: 4, n_samples: 4, dataset: {tasks: 500}}

    --env math --env code_exec:0.5 --mixture.code_exec.options.level 2 --mixture.code_exec.max_turns 4

All other settings are of the whole run. A view is the config of a run with one environment, so whatever derives
something from a config derives it for each environment.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

from forge_env.core.errors import UserError, nearest
from forge_env.core.types import EpisodeLimits
from forge_env.utils.settings import kinds_of, read_value, with_entries, with_values
from trainers.config import RunConfig
from trainers.settings.mixture import JOINT, Named, labels, read_name, read_names

C = TypeVar("C", bound=RunConfig)

_SECTIONS = {
    "dataset": ("path", "split", "streaming", "tasks", "held_out", "pass_rate", "pass_rate_range", "sampler"),
    "distill": ("teacher",),
    "evaluation": ("n", "temperature", "top_p"),
}
_OF_RUN = {"temperature": "the trainer takes all logprobs at one temperature"} | dict.fromkeys(
    ("thinking", "tools", "renderer"), "one model has one chat template"
)
"""Settings that environments of one run share, and why."""


def listed(environments: Sequence[Any]) -> dict[str, Any]:
    """The settings that a list in the place of the section `env` states, by their dotted names."""
    entries = [dict(each) if isinstance(each, Mapping) else {"name": each} for each in environments]
    texts = []
    for entry, each in zip(entries, environments, strict=True):
        name, weight = entry.pop("name", ""), entry.pop("weight", None)
        if not isinstance(name, str) or not name:
            raise UserError(f"env is a list, and an entry is {each!r}: give a name, or {{name: NAME, weight: 1, ...}}")
        texts.append(name if weight is None else f"{name}:{weight}")
    envs = zip(labels(read_name(text).name for text in texts), entries, strict=True)
    return {"env.name": JOINT.join(texts)} | {f"mixture.{label}": entry for label, entry in envs if entry}


def views(config: C) -> Iterator[tuple[str, float, C]]:
    """The label and the weight of each environment, and the config as it has it; without one, the config itself."""
    envs = read_names(config.env.name)
    if unknown := sorted(config.mixture.keys() - envs.keys()):
        there = f"{nearest(unknown[0], envs)}" if len(envs) > 1 else "The run has one environment: use --env.OPTION."
        raise UserError(f"--mixture.{unknown[0]}: no environment of this run has that label. {there}")
    if len(envs) < 2:
        one = envs.get("", Named(""))
        yield "", one.weight, with_values(config, {"env.name": one.name})
        return
    total, seen = math.fsum(one.weight for one in envs.values()), set[str]()
    for label, one in envs.items():
        values = _values(config, label)
        text = json.dumps([one.name, values], sort_keys=True, default=str)
        if text in seen:
            raise UserError(
                f"--env names {one.name} twice with the same settings: name it once, with both weights together, or "
                f"give the second one options of its own: --mixture.{label}.options.OPTION VALUE"
            )
        seen.add(text)
        shares = {
            "warmup.demonstrations": max(1, math.ceil(config.warmup.demonstrations * one.weight / total)),
            "warmup.probe_tasks": math.ceil(config.warmup.probe_tasks / len(envs)),
        }
        sets = {"evaluation.sets": _sets(config, label, list(envs))}
        yield label, one.weight, with_values(config, {"env.name": one.name, "mixture": {}, **shares, **sets, **values})


def with_views(config: C, made: Mapping[str, C]) -> C:
    """The config with the settings of its several views.

    `env` has the largest limits: engine, memory and deadlines follow them. `mixture` has all settings of
    each, so that a run that goes on has the same ones.
    """
    limits = [limit.name for limit in fields(EpisodeLimits)]
    largest = {f"env.{name}": max(getattr(view.env, name) for view in made.values()) for name in limits}
    return with_values(config, {**largest, "mixture": {label: _entry(view) for label, view in made.items()}})


def differences(config: RunConfig) -> Iterator[tuple[str, str, Any, Any]]:
    """The settings in which an environment of a plan differs: its label, the setting, its value and the run's."""
    of_run = dict(_flat(_entry(config)))
    for label, entry in config.mixture.items():
        yield from ((label, name, value, of_run[name]) for name, value in _flat(entry) if value != of_run[name])


@contextmanager
def of(label: str) -> Iterator[None]:
    """Add the label of an environment to its errors; the only one of a run has none."""
    try:
        yield
    except UserError as error:
        if not label:
            raise
        raise UserError(f"{label}: {error}") from error


def _names(config: RunConfig) -> dict[str, str]:
    """The settings that an environment may have of its own: name in `mixture` -> dotted name in a config."""
    own = [field.name for field in fields(config.env) if field.name not in ("name", "thinking", "options")]
    size = {"n_samples": f"{config.algorithm_name}.n_samples"} if config.algorithm_name else {}
    parts = [f"{section}.{name}" for section, names in _SECTIONS.items() for name in names]
    return {name: f"env.{name}" for name in own} | {name: name for name in parts} | size


def _values(config: RunConfig, label: str) -> dict[str, Any]:
    """The settings of an environment that differ from the run's, by their dotted names in a config."""
    names, where, own = _names(config), f"--mixture.{label}", config.mixture.get(label, {})
    options = own.get("options", {}) if isinstance(own, Mapping) else {}
    for name, section in {where: own, f"{where}.options": options}.items():
        if not isinstance(section, Mapping):
            raise UserError(f"{name} is {section!r}: write one option for each setting: {name}.NAME VALUE")
    values: dict[str, Any] = {"env.options": config.env.options | options}
    for name, setting in _flat(own):
        if path := names.get(name):
            section, _, of_section = path.partition(".")
            kind, _ = kinds_of(getattr(config, section).__class__)[of_section]
            values[path] = read_value(setting, kind, f"{where}.{name}")
        elif (shared := name.partition(".")[0]) in _OF_RUN:
            raise UserError(f"{where}.{name}: environments of one run share it, for {_OF_RUN[shared]}: leave it out")
        elif name != "options":
            hint = nearest(name, [*names, "options"])
            raise UserError(f"{where}.{name}: an environment of a run has no such setting. {hint}")
    return values


def _flat(own: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in own.items():
        if name in _SECTIONS and isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", setting) for inner, setting in value.items())
        else:
            yield name, value


def _entry(view: RunConfig) -> dict[str, Any]:
    """All settings of an environment, as `mixture` has them."""
    values = {name: attrgetter(path)(view) for name, path in _names(view).items()}
    return with_entries({"options": view.env.options}, values)


def _sets(config: RunConfig, label: str, labels: Sequence[str]) -> dict[str, Any]:
    """The further held-out sets of an environment, which their setting `env` names."""
    sets = config.evaluation.sets
    envs = {name: own.get("env") if isinstance(own, Mapping) else None for name, own in sets.items()}
    for name, env in envs.items():
        if env not in labels:
            raise UserError(
                f"--evaluation.sets.{name}.env is {env or 'not set'}, and the run has several environments: set it to "
                f"one of: {', '.join(labels)}"
            )
    return {n: {k: v for k, v in sets[n].items() if k != "env"} for n, env in envs.items() if env == label}
