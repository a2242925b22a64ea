"""From a command line to the config of a run: defaults, files, options, and settings that follow from others."""

from __future__ import annotations

import functools
import inspect
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, get_origin

from forge_env.core.errors import UserError
from forge_env.records.run_files import FACTS, read_object
from forge_env.registry.registry import check_registered, env_class, resolve
from forge_env.utils.secret_values import check_present, with_secrets
from forge_env.utils.settings import leaves, with_values
from trainers.checkpoints import Checkpoint, find
from trainers.config import SHORT_OPTIONS, RunConfig
from trainers.settings.mixture import read_names
from trainers.setup.options.parser import flatten, parse
from trainers.setup.placement import gpus_available

C = TypeVar("C", bound=RunConfig)

ENV_OF_A_FILE = "math"
"""The environment of a config file that names none, as in torchforge's guides."""


def read_config(config_class: type[C], arguments: Sequence[str], settings: Sequence[Mapping[str, Any]] = ()) -> C:
    """Build the config of a run: defaults, then files, then settings of Python, then options of the command line.

    A resumed run takes the settings of its checkpoint as defaults. Trainer, generator and reference model are on GPUs
    if there are some, and a trainer on GPUs packs rows and is compiled where it can, unless a setting says otherwise.
    """
    read = functools.partial(parse, config_class, arguments, SHORT_OPTIONS, settings=settings)
    config, saved = read(), dict[str, Any]()
    if config.resume and config.output:
        facts = Path(config.output) / FACTS
        checkpoint = find(facts.parent, config.checkpoint.step)
        _check_settings(checkpoint, config)
        saved |= with_secrets(checkpoint.extra["config"], facts.parent)
        saved |= {name: getattr(config_class(), name) for name in ("output", "resume", "dry_run")}
        saved["checkpoint"] |= {"step": 0}
        check_registered(saved["env"]["name"], read_object(facts).get("registered") if facts.is_file() else None)
        config = read(old_values=saved)
        check_present(asdict(config), "for example --{} VALUE")
        return config
    check_present(asdict(config), "for example --{} VALUE")
    if config.env.name and any(argument.partition("=")[0] == "--config" for argument in arguments):
        saved["env"] = {"name": ENV_OF_A_FILE}
    for named in read_names(config.env.name).values():
        resolve(named.name, "env")  # a typo is refused before torch is imported
    if gpus_available() and not config.training.deterministic:
        services = [n for n in ("generator", "trainer", "ref_model", "teacher") if getattr(config.services, n).procs]
        saved["services"] = {name: {"with_gpus": True} for name in services}
    config = read(old_values=saved)
    if not config.services.trainer.with_gpus:
        return config
    # Measured in docs/gpu.md: both save time on a GPU, and neither changes what is computed.
    has_c_compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")  # which Triton needs
    saved["training"] = {"packing": config.training.attention != "sdpa", "compile": bool(has_c_compiler)}
    return read(old_values=saved)


def _check_settings(checkpoint: Checkpoint, config: RunConfig) -> None:
    """Check that a checkpoint has the settings of this command."""
    saved, dictionaries = checkpoint.extra, [item.name for item in leaves(config) if get_origin(item.kind) is dict]
    if {saved["algorithm"], config.algorithm_name} & (saved["config"].keys() ^ vars(config).keys()):
        raise UserError(f"{checkpoint.path} was saved by {saved['algorithm']}: go on with python -m {saved['command']}")
    names, before = (
        {name for name, _ in flatten(tree, dictionaries.__contains__)} for tree in (asdict(config), saved["config"])
    )
    if other := sorted(names ^ before):
        raise UserError(
            f"{checkpoint.path} was saved by another version of forge_env: --{other[0]} is a setting of one of the "
            "two versions only; go on with the version that began the run"
        )


def give_dataset(config: C) -> C:
    """Hand `dataset.path` and `dataset.streaming` to the environment, as its own options `data` and `streaming`."""
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
