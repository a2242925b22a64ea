"""The tasks of a run: how many there are to train on and held out, and what was left out of a user's own data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agents.model_folder import trained_model
from forge_env.core.errors import InfraError, UserError
from forge_env.core.types import Task
from forge_env.data.row import DataTasks
from forge_env.data.rows import find_file
from forge_env.evaluation.profile import FILE, Profile
from forge_env.records.run_weights import run_of
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.task_list import LateTasks
from forge_env.utils.digests import file_digest
from forge_env.utils.settings import with_values
from trainers.config import RunConfig

C = TypeVar("C", bound=RunConfig)
TRAIN_TASKS = 4096
"""Training tasks of an environment with tasks of its own, if no number is given."""
HELD_OUT_TASKS = 256
"""Held-out tasks if no number is given."""
TASK_SECONDS = 5.0
"""Time that a plan waits for a task of the environment's own."""


@dataclass(frozen=True, kw_only=True)
class RunTasks:
    """The tasks of a run, and their source."""

    train: Sequence[Task] = ()
    held_out: Sequence[Task] = ()
    """Of the headline evaluation."""
    about: Sequence[str] = ()
    """Sentences for people: what was read and left out, and sizes that nobody chose."""
    record: dict[str, Any] = field(default_factory=dict)
    """The same for run.json; empty for tasks that are not made of rows."""


def read_run_tasks(config: RunConfig, environment: EnvFactory) -> RunTasks:
    data = config.dataset
    profile = Profile.read(data.pass_rate) if data.pass_rate else None
    default = len(profile.tasks) if profile else TRAIN_TASKS
    train = _draw(config, environment, data.split, data.tasks, "--dataset.tasks", default=default)
    if isinstance(train, DataTasks) and not data.tasks and train.rows.is_complete and not profile:
        there = train.rows.num_tasks(data.split)
        if there > len(train):
            train = environment.tasks(data.split, count=there, seed=config.training.seed)
    held_out = _draw(config, environment, "test", data.held_out, "--dataset.held_out", default=HELD_OUT_TASKS)
    about = _about_rows(train, held_out)
    if isinstance(train, DataTasks):
        train, sentences = _without_copies(train, held_out)
        about = [*about, *sentences]
    if profile:
        train, sentences = _within_rates(config, train, profile)
        about = [*about, *sentences]
    if not about and not data.tasks and len(train) < TRAIN_TASKS:
        about = [f"{config.env.name} has {len(train):,} {data.split} tasks, and all of them are trained on"]
        if not data.held_out and len(held_out) < HELD_OUT_TASKS:
            about[0] += f"; {len(held_out):,} are held out"
    record: dict[str, Any] = {}
    if isinstance(train, DataTasks):
        record = train.rows.record()
        if isinstance(held_out, DataTasks) and held_out.rows.tasks != train.rows.tasks:  # another file or split
            record["held_out"] = held_out.rows.record()
    return RunTasks(train=train, held_out=held_out, about=about, record=record)


def _without_copies(train: DataTasks, held_out: Sequence[Task]) -> tuple[DataTasks, list[str]]:
    """The training tasks that are no copy of a held-out one, and a sentence on the others."""
    contents = set(map(_content, held_out))
    others = [task for task in train if _content(task) not in contents]
    if not others:
        raise UserError(f"all training tasks of {train.rows.source} are copies of held-out ones: give other data")
    number = len(train) - len(others)
    about = [f"{number:,} training tasks are copies of held-out ones, and are left out"] if number else []
    return DataTasks(others, train.rows), about


def _within_rates(config: RunConfig, train: Sequence[Task], profile: Profile) -> tuple[Sequence[Task], list[str]]:
    """The training tasks within --dataset.pass_rate_range, and sentences on all of them."""
    folder, (low, high), facts = config.dataset.pass_rate, config.dataset.pass_rate_range, profile.facts
    if others := len(profile.others(train)):
        raise UserError(
            f"--dataset.pass_rate {folder} has the rates of other tasks: it lacks {others:,} of the {len(train):,} "
            f"training tasks, and is of {facts['env']}, options {facts['options']}, split {facts['split']}, seed "
            f"{facts['seed']}; profile the tasks of this run, whose --training.seed is {config.training.seed}"
        )
    rates = [profile.rate(task) for task in train]
    kept = [task for task, rate in zip(train, rates, strict=True) if rate is None or low <= rate <= high]
    if not kept:
        raise UserError(
            f"--dataset.pass_rate_range is {low:g},{high:g}, and none of the {len(train):,} training tasks is in it: "
            f"{', '.join(f'{count} {name}' for name, count in profile.counts.items())}; give a wider range"
        )
    about = [f"the training tasks are from the profile {folder}"]
    if outside := len(train) - len(kept):
        about.append(f"{outside:,} of {len(train):,} tasks are outside {low:g}..{high:g} and are not trained on")
    if unknown := rates.count(None):
        about.append(f"{unknown:,} tasks have no rate, for faults ended their attempts; they are trained on")
    return DataTasks(kept, train.rows) if isinstance(train, DataTasks) else kept, about


def _content(task: Task) -> str:
    """What a task shares with its copies: white space, capitals and the name of the file make no difference."""
    metadata = {name: value for name, value in task.metadata.items() if name not in ("source", "split", "number")}
    text = json.dumps([task.prompt, task.target, metadata], sort_keys=True, default=str)
    return "".join(text.replace("\\n", " ").replace("\\t", " ").casefold().split())


def _draw(
    config: RunConfig, environment: EnvFactory, split: str, number: int, option: str, *, default: int
) -> Sequence[Task]:
    """Return the number of tasks of a split that the user gave, or at most the default if it is 0."""
    tasks = environment.tasks(split, count=number or default, seed=config.training.seed, at_most=not number)
    if len(tasks) < number:
        raise UserError(
            f"{option} is {number}, and {config.env.name} has {len(tasks)} tasks in the split {split}: set it to "
            f"{len(tasks)} or less, or leave it out"
        )
    return tasks


def first_task(environment: EnvFactory, split: str, seed: int) -> Task | None:
    """Draw a task of a split: an unknown split, or an unknown level, is refused as the start would.

    None if only the start can draw it: from elsewhere, or slowly.
    """
    data = str(environment.options.get("data") or "")
    file = find_file(data, split)
    if environment.effects() or (data and (file is None or not file.is_file())):
        return None
    with suppress(LateTasks, InfraError):
        return environment.tasks(split, count=1, seed=seed, seconds=TASK_SECONDS, at_most=True)[0]
    return None


def own_data(config: RunConfig) -> str:
    """The file or the dataset of the hub that the environment reads its tasks from; "" for tasks of its own."""
    return str(config.env.options.get("data") or "")


def chat_data(config: RunConfig) -> str:
    """The chats that supervised training learns from; "" if there are none."""
    return str(getattr(getattr(config, "sft", None), "data", ""))


def resolve_sources(config: C) -> C:
    """Make local files of data absolute, and a training run that teaches a folder: a resumed run finds them from
    anywhere."""
    sources = {"dataset.path": config.dataset.path, "env.options.data": own_data(config), "sft.data": chat_data(config)}
    sources |= {
        f"evaluation.sets.{name}.options.data": str(data)
        for name in config.evaluation.sets
        if (data := _of_set(config, name, "options", "data"))
    }
    resolved = {name: _resolved(source) for name, source in sources.items() if source}
    if config.dataset.pass_rate:
        resolved["dataset.pass_rate"] = str(Path(config.dataset.pass_rate).expanduser().absolute())
    if (teacher := config.distill.teacher) and run_of(teacher) is not None:
        resolved["distill.teacher"] = str(trained_model(teacher))
    return with_values(config, resolved)


def data_digests(views: Iterable[RunConfig]) -> dict[str, str]:
    """The digests of the local files that a run learns from and is measured on, by path."""
    files: list[Path | None] = []
    for view in views:
        files.append(find_file(chat_data(view), getattr(getattr(view, "sft", None), "split", "")))
        files += [find_file(own_data(view), split) for split in (view.dataset.split, "test")]
        files += [Path(view.dataset.pass_rate) / FILE] if view.dataset.pass_rate else []
        for name in view.evaluation.sets:
            data, split = _of_set(view, name, "options", "data") or own_data(view), _of_set(view, name, "split")
            files.append(find_file(str(data), str(split or "test")))
    return {str(file): file_digest(file) for file in dict.fromkeys(files) if file is not None and file.is_file()}


def _of_set(config: RunConfig, name: str, *path: str) -> Any:
    """A setting of a held-out set; None if it is not given, or is not what `held_out.check_sets` takes."""
    value = config.evaluation.sets[name]
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _resolved(source: str) -> str:
    return source if find_file(source) is None else str(Path(source).expanduser().absolute())


def _about_rows(train: Sequence[Task], held_out: Sequence[Task]) -> list[str]:
    """A sentence for each file or split of a dataset that was read."""
    if not isinstance(train, DataTasks):
        return []
    sizes = f"; {_of(train, 'train')}, {_of(held_out, 'test')} held out"
    if not isinstance(held_out, DataTasks) or held_out.rows.tasks == train.rows.tasks:
        return [f"{train.rows}{sizes}"]
    return [str(train.rows), f"{held_out.rows}{sizes}"]


def _of(tasks: Sequence[Task], split: str) -> str:
    there = tasks.rows.num_tasks(split) if isinstance(tasks, DataTasks) and tasks.rows.is_complete else 0
    number = f"{len(tasks):,} of {there:,}" if there > len(tasks) else f"{len(tasks):,}"
    return f"{number} train" if split != "test" else number
