"""From a command line to the config of a run: defaults, files, options, and settings that follow from others."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from forge_env.core.errors import UserError
from forge_env.records.run_files import FACTS, read_object
from forge_env.registry.registry import check_registered, env_class
from forge_env.utils.settings import with_values
from trainers.checkpoints import find
from trainers.config import SHORT_OPTIONS, RunConfig
from trainers.setup.options.parser import parse_given
from trainers.setup.placement import gpus_available

C = TypeVar("C", bound=RunConfig)

ENV_OF_A_FILE = "math"
"""The environment of a config file that names none, as in torchforge's guides."""


def read_config(config_class: type[C], arguments: Sequence[str]) -> C:
    """Build the config of a run from its command line: defaults, then files, then the other options.

    A resumed run takes the settings of its checkpoint as defaults. Trainer, generator and reference model are on GPUs
    if there are some, unless a setting says otherwise.

    Raises:
        UserError: for an unknown option, a malformed value, or two settings that contradict each other.
    """
    config, given = parse_given(config_class, arguments, SHORT_OPTIONS)
    if config.resume and config.output:
        saved = dict(find(Path(config.output), config.checkpoint.step).extra["config"])
        for name in ("output", "resume", "dry_run"):
            saved.pop(name, None)
        saved["checkpoint"] = {**saved["checkpoint"], "step": 0}
        facts = Path(config.output) / FACTS
        recorded = read_object(facts).get("registered") if facts.is_file() else None
        check_registered(saved["env"]["name"], recorded)
        return parse_given(config_class, arguments, SHORT_OPTIONS, saved=saved)[0]
    from_file = any(argument.partition("=")[0] == "--config" for argument in arguments)
    if from_file and config.env.name and "env.name" not in given:  # supervised training has none by default
        config = with_values(config, {"env.name": ENV_OF_A_FILE})
    if config.training.deterministic or not gpus_available():
        return config
    services = ("generator", "trainer", "ref_model")
    on_gpus = {f"services.{name}.with_gpus": True for name in services if getattr(config.services, name).procs}
    return with_values(config, {name: value for name, value in on_gpus.items() if name not in given})


def give_dataset(config: C) -> C:
    """Hand `dataset.path` and `dataset.streaming` to the environment, as its own options `data` and `streaming`.

    Raises:
        UserError: when the environment is unknown, or has no such option.
    """
    data, options, name = config.dataset, config.env.options, config.env.name
    if not data.path:
        return config
    if not name:
        raise UserError(
            f"--dataset.path is {data.path!r}, and there is no environment: supervised training has --sft.data"
        )
    known = inspect.signature(env_class(name).tasks).parameters
    if "data" not in known:
        raise UserError(
            f"--dataset.path is {data.path!r}, and the environment {name} makes its own tasks: leave it out, or choose "
            "one that reads tasks from data, as math, code_exec and tool_api do"
        )
    if options.get("data", data.path) != data.path:
        raise UserError(f"--dataset.path is {data.path!r} and --env.options.data is {options['data']!r}: give one")
    if data.streaming and "streaming" not in known:
        raise UserError(f"--dataset.streaming is true, and the environment {name} cannot stream: set it to false")
    streaming = {"env.options.streaming": True} if data.streaming else {}
    return with_values(config, {"env.options.data": data.path} | streaming)
