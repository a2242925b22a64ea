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
from trainers.settings.mixture import JOINT, labels, read_name, read_names

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


def settings_of_list(environments: Sequence[Any]) -> dict[str, Any]:
    """The settings that a list in the place of the section `env` states, by their dotted names.

    Args:
        environments: names, and dictionaries with a name, a weight and the settings that differ.
    """
    entries = [dict(each) if isinstance(each, Mapping) else {"name": each} for each in environments]
    texts = []
    for entry, each in zip(entries, environments, strict=True):
        name, weight = entry.pop("name", ""), entry.pop("weight", None)
        if not isinstance(name, str) or not name:
            raise UserError(f"env is a list, and an entry is {each!r}: give a name, or {{name: NAME, weight: 1, ...}}")
        texts.append(name if weight is None else f"{name}:{weight}")
    by_label = zip(labels(read_name(text).name for text in texts), entries, strict=True)
    return {"env.name": JOINT.join(texts)} | {f"mixture.{label}": entry for label, entry in by_label if entry}


def views(config: C) -> dict[str, C]:
    """The config as each environment has it, by label; {} for a run without an environment."""
    names = read_names(config.env.name)
    if unknown := sorted(config.mixture.keys() - names.keys()):
        there = f"{nearest(unknown[0], names)}" if len(names) > 1 else "The run has one environment: use --env.OPTION."
        raise UserError(f"--mixture.{unknown[0]}: no environment of this run has that label. {there}")
    if len(names) < 2:
        return {label: with_values(config, {"env.name": one.name}) for label, one in names.items()}
    total, results, labels_of_texts = math.fsum(one.weight for one in names.values()), dict[str, C](), dict[str, str]()
    for label, one in names.items():
        values = _values(config, label)
        text = json.dumps([one.name, values], sort_keys=True, default=str)
        if text in labels_of_texts:
            raise UserError(
                f"--env names {one.name} twice with the same settings: name it once, with both weights together, or "
                f"give the second one options of its own: --mixture.{label}.options.OPTION VALUE"
            )
        labels_of_texts[text] = label
        shared_settings = {
            "warmup.demonstrations": max(1, math.ceil(config.warmup.demonstrations * one.weight / total)),
            "warmup.probe_tasks": math.ceil(config.warmup.probe_tasks / len(names)),
        }
        sets = {"evaluation.sets": _sets(config, label, list(names))}
        results[label] = with_values(config, {"env.name": one.name, "mixture": {}, **shared_settings, **sets, **values})
    return results


def with_views(config: C, by_label: Mapping[str, C]) -> C:
    """The config with the settings of its views.

    Of several, `env` has the largest limits: engine, memory and deadlines follow them. `mixture` has all settings of
    each, so that a run that goes on has the same ones.
    """
    if len(by_label) < 2:
        return next(iter(by_label.values()), config)
    limits = [limit.name for limit in fields(EpisodeLimits)]
    largest = {f"env.{name}": max(getattr(view.env, name) for view in by_label.values()) for name in limits}
    return with_values(config, {**largest, "mixture": {label: _entry(view) for label, view in by_label.items()}})


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
    names, where, entry = _names(config), f"--mixture.{label}", config.mixture.get(label, {})
    options = entry.get("options", {}) if isinstance(entry, Mapping) else {}
    for name, section in {where: entry, f"{where}.options": options}.items():
        if not isinstance(section, Mapping):
            raise UserError(f"{name} is {section!r}: write one option for each setting: {name}.NAME VALUE")
    values: dict[str, Any] = {"env.options": config.env.options | options}
    for name, setting in _flat(entry):
        if full_name := names.get(name):
            section, _, of_section = full_name.partition(".")
            kind, _ = kinds_of(getattr(config, section).__class__)[of_section]
            values[full_name] = read_value(setting, kind, f"{where}.{name}")
        elif (shared := name.partition(".")[0]) in _OF_RUN:
            raise UserError(f"{where}.{name}: environments of one run share it, for {_OF_RUN[shared]}: leave it out")
        elif name != "options":
            hint = nearest(name, [*names, "options"])
            raise UserError(f"{where}.{name}: an environment of a run has no such setting. {hint}")
    return values


def _flat(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if name in _SECTIONS and isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", setting) for inner, setting in value.items())
        else:
            yield name, value


def _entry(view: RunConfig) -> dict[str, Any]:
    """All settings of an environment, as `mixture` has them."""
    values = {name: attrgetter(full_name)(view) for name, full_name in _names(view).items()}
    return with_entries({"options": view.env.options}, values)


def _sets(config: RunConfig, label: str, labels_of_run: Sequence[str]) -> dict[str, Any]:
    """The further held-out sets of an environment, which their setting `env` names."""
    sets = config.evaluation.sets
    env_of = {name: settings.get("env") if isinstance(settings, Mapping) else None for name, settings in sets.items()}
    for name, env in env_of.items():
        if env not in labels_of_run:
            raise UserError(
                f"--evaluation.sets.{name}.env is {env or 'not set'}, and the run has several environments: set it to "
                f"one of: {', '.join(labels_of_run)}"
            )
    return {n: {k: v for k, v in sets[n].items() if k != "env"} for n, env in env_of.items() if env == label}
