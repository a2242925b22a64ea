"""The tasks of a run: sizes follow the data, rows that are left out are named, and a changed file is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from forge_env.core.errors import TooFewTasks, UserError
from forge_env.core.types import Message, Task
from forge_env.rollout.factory import EnvFactory
from forge_env.tool_env.tool_env import ToolEnv
from forge_env.utils.settings import with_values
from tests.helpers.plans import plan_of
from trainers import sft
from trainers.grpo import Config
from trainers.setup.checks.resume_checks import check_data
from trainers.setup.options.read_config import read_config
from trainers.setup.run_tasks import read_run_tasks

MODEL = ("--model", "Qwen/Qwen3-0.6B", "--lora.rank", "8")  # adapters: all weights want 28 GiB of memory


class Few(ToolEnv):
    """Has three tasks in each split, and more or less strict manners."""

    strict: ClassVar[bool] = True

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        there = [Task(prompt=({"role": "user", "content": f"{split} {i}"},)) for i in range(min(count, 3))]
        if count > 3 and cls.strict:
            raise TooFewTasks(f"{count} tasks were asked for, there are 3", 3)
        return there

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        return {"role": "assistant", "content": "x"}


class Lax(Few):
    strict = False


@pytest.fixture
def problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of 300 rows, of which two cannot be used; the working folder is the file's."""
    rows: list[Any] = [json.dumps({"question": f"{i} + {i}?", "answer": 2 * i}) for i in range(300)]
    rows[6], rows[8] = '{"question": "7?", "answer": null}', "{broken"
    (tmp_path / "q.jsonl").write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "q.jsonl"


def test_without_numbers_a_run_has_all_tasks_of_its_file(problems: Path) -> None:
    plan = plan_of("--env", "math", "--dataset.path", "q.jsonl", *MODEL)
    assert plan.share("").tasks is not None and plan.problems == []
    train, held_out = len(plan.share("").tasks.train), len(plan.share("").tasks.held_out)
    assert train + held_out == 298 and held_out > 10
    [about] = plan.about_data
    assert about.startswith("q.jsonl: 300 rows, 2 left out (line 7: its answer is null; line 9: it is no JSON")
    assert about.endswith(f"; {train} train, {held_out} held out")
    record = plan.share("").tasks.record
    assert record["tasks"] == {"train": train, "test": held_out} and record["left_out"]["rows"] == 2


@pytest.mark.parametrize("change", [str, lambda text: f" {text.upper()}\n".replace(" ", "  ")])
def test_no_training_task_is_a_copy_of_a_held_out_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]
) -> None:
    """Of a file for each split, and of one file, which a hash of the prompts divides."""
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"what is {n} + {n}?", "answer": 2 * n} for n in range(200)]
    changed = [{**row, "question": change(str(row["question"]))} for row in rows]
    files = {"train": rows, "test": changed[:20], "all": [*rows, *changed]}
    for name, content in files.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, content)))
    for path in ("{split}.jsonl", "all.jsonl"):
        plan = plan_of("--env", "math", "--dataset.path", path, *MODEL)
        assert plan.share("").tasks is not None
        prompts = [
            {"".join(task.prompt[0]["content"].casefold().split()) for task in tasks}
            for tasks in (plan.share("").tasks.train, plan.share("").tasks.held_out)
        ]
        assert len(prompts[0]) > 100 and len(prompts[1]) >= 10 and not prompts[0] & prompts[1]
        if path != "all.jsonl":
            assert len(plan.share("").tasks.train) == 180
            assert "20 training tasks are copies of held-out ones, and are left out" in plan.share("").tasks.about
    (tmp_path / "test.jsonl").write_text((tmp_path / "train.jsonl").read_text())
    with pytest.raises(UserError, match=r"all training tasks of train.jsonl are copies of held-out ones"):
        plan_of("--env", "math", "--dataset.path", "{split}.jsonl", *MODEL)


def test_a_number_that_was_given_must_be_there(problems: Path) -> None:
    plan = plan_of(
        "--env", "math", "--dataset.path", "q.jsonl", *MODEL, "--dataset.tasks", "9", "--dataset.held_out", "8"
    )
    assert plan.share("").tasks is not None and (
        len(plan.share("").tasks.train),
        len(plan.share("").tasks.held_out),
    ) == (9, 8)
    assert "; 9 of 2" in plan.about_data[0]
    for option in ("--dataset.tasks", "--dataset.held_out"):
        with pytest.raises(UserError, match=r"^999 .* were asked for.* 2 left out \(line 7"):
            plan_of("--env", "math", "--dataset.path", "q.jsonl", *MODEL, option, "999")


def test_an_environment_with_few_tasks_is_noted_or_refused() -> None:
    config = read_config(Config, ["--env", "math"])
    for env_class in (Few, Lax):
        tasks = read_run_tasks(config, EnvFactory(env_class))
        assert (len(tasks.train), len(tasks.held_out)) == (3, 3)
        assert list(tasks.about) == ["math has 3 train tasks, and all of them are trained on; 3 are held out"]
    config = with_values(config, {"dataset.tasks": 4})
    with pytest.raises(UserError, match="4 tasks were asked for, there are 3"):
        read_run_tasks(config, EnvFactory(Few))
    with pytest.raises(UserError, match="--dataset.tasks is 4, and math has 3 tasks in the split train: set it to 3"):
        read_run_tasks(config, EnvFactory(Lax))


def test_own_data_without_demonstrations_needs_a_model(problems: Path) -> None:
    options = ("--env", "math", "--dataset.path", "q.jsonl")
    for more in ((), (*MODEL, "--warmup.steps", "5")):
        with pytest.raises(UserError, match="the expert of math has no solutions for the tasks of q.jsonl, .*--model"):
            plan_of(*options, *more)
    with pytest.raises(UserError, match="--sft.data"):
        plan_of(*options, algorithm="sft")


def test_chats_are_read_by_a_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "1"}]
    chats = [{"messages": messages}, {"messages": messages[:1]}]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    monkeypatch.chdir(tmp_path)
    plan = plan_of("--sft.data", "chats.jsonl", algorithm="sft")
    [about] = plan.about_data
    assert about.startswith(
        "chats.jsonl: chats in the column messages, 2 rows, 1 left out (line 2: it has no assistant"
    )
    with pytest.raises(UserError, match="^there is no file "):
        plan_of("--sft.data", "nowhere.jsonl", algorithm="sft")


def test_a_run_that_goes_on_finds_its_files_from_any_folder_and_refuses_changed_ones(
    problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = problems.parent / "run"
    folder.mkdir()
    tasks = plan_of("--env", "math", "--env.options.data", "q.jsonl", *MODEL)
    sets = ("--evaluation.sets.other.options.data", "q.jsonl")
    measured = plan_of("--env", "math", *sets, *MODEL)
    assert measured.config.evaluation.sets["other"]["options"]["data"] == str(problems)
    data = {"sft.data": str(problems.with_name("{split}.jsonl")), "sft.split": "q"}
    chats = replace(tasks, config=with_values(sft.SFT.config(), data), environments=[])
    monkeypatch.chdir(folder)
    for plan in (tasks, measured, chats):
        problems.write_text(problems.read_text())
        (folder / "run.json").write_text("{}")
        record = check_data(folder, plan.views)
        assert list(record["files"]) == [str(problems)]
        (folder / "run.json").write_text(json.dumps({"data": record}))
        assert check_data(folder, plan.views) == record
        before = problems.read_text()
        problems.write_text(before + "\n{}")
        with pytest.raises(UserError, match=r"the data file .*q\.jsonl has changed since this run began"):
            check_data(folder, plan.views)
        problems.write_text(before)
