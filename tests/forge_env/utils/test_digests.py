"""Digests: equal content is equal, in every process; what a file imports counts, and what it does not does not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from forge_env.core.types import Task
from forge_env.evaluation.digests import changed_parts, depends_on, environment_digests
from forge_env.evaluation.plan import task_list_digest
from forge_env.rollout.factory import make
from forge_env.utils.digests import code_digests, files_digests, value_digest

ENV = """\
import helper
from forge_env import Env


class Own(Env):
    @classmethod
    def tasks(cls, split="train", *, count, seed=0, data: str = ""):
        from package import lazy
        return []
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        "own.py": ENV,
        "helper.py": "from package.inner import deep\n",
        "other.py": "",
        "package/__init__.py": "",
        "package/lazy.py": "from . import sibling\nPRICES = Path(__file__).with_name('prices.toml').read_text()\n",
        "package/prices.toml": "",
        "package/sibling.py": "",
        "package/inner/__init__.py": "from .deep import value\n",
        "package/inner/deep.py": "value = 1\n",
        "package/unused.py": "",
        "tasks_train.jsonl": "{}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_code_is_a_file_and_what_it_imports_beside_itself(project: Path) -> None:
    before = code_digests([project / "own.py"])
    inner = {f"package/{name}.py" for name in ("__init__", "lazy", "sibling", "inner/__init__", "inner/deep")}
    assert before.keys() == {"own.py", "helper.py", "package/prices.toml", *inner}
    (project / "package/unused.py").write_text("# not imported")
    assert code_digests([project / "own.py"]) == before
    (project / "package/inner/deep.py").write_text("value = 2\n")
    assert changed_parts({"environment": before}, {"environment": code_digests([project / "own.py"])}) == [
        "the environment (package/inner/deep.py)"
    ]


def test_an_environment_is_its_bases_its_packages_and_the_files_that_its_options_name(project: Path) -> None:
    result = environment_digests(make("own.py:Own", data="tasks_{split}.jsonl"))
    assert {"own.py", "helper.py", "tasks_train.jsonl"} <= result.keys()
    assert not any(name.startswith("forge_env") for name in result)


def test_the_weights_of_a_model_count_by_their_content(project: Path) -> None:
    model = project / "run/model"
    model.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors", "notes.md"):
        (model / name).write_text("{}")
    math = make("math")
    was = depends_on("checkpoint:run", math, [])
    assert was["agent"].keys() == {"config.json", "tokenizer.json", "model.safetensors"}
    stat = (model / "model.safetensors").stat()
    (model / "model.safetensors").write_text("[]")
    os.utime(model / "model.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    now = depends_on("checkpoint:run", math, [])
    assert changed_parts(was, now) == ["the agent (model.safetensors)"]
    assert files_digests(model.glob("*.md")).keys() == {"notes.md"}


def test_a_file_that_is_new_and_one_that_is_gone_are_changes() -> None:
    one, two = {"a.py": "1"}, {"a.py": "1", "b.py": "2"}
    assert changed_parts({"environment": one}, {"environment": two}) == ["the environment (b.py)"]
    assert changed_parts({"environment": two}, {"environment": one}) == ["the environment (b.py)"]
    assert changed_parts({}, {"environment": one}) == ["the environment (a.py)"]


def test_tasks_count_by_their_content_and_their_order(project: Path) -> None:
    def given(*targets: int) -> list[Task]:
        return [Task(prompt=(), target=target, id=f"task {number}") for number, target in enumerate(targets)]

    math = make("math")
    was = depends_on("scripted:null", math, given(1, 2))
    for tasks, changes in ((given(1, 2), []), (given(1, 3), ["the tasks"]), (given(1, 2)[::-1], ["the tasks"])):
        assert changed_parts(was, depends_on("scripted:null", math, tasks)) == changes
    assert task_list_digest(given(1, 2)) == task_list_digest(given(3, 4)) != task_list_digest(given(1, 2)[::-1])


def test_the_code_of_what_episodes_share_counts(project: Path) -> None:
    (project / "pool.py").write_text("def opened():\n    raise NotImplementedError\n")
    text = 'from forge_env import Env\n\n\nclass Sharing(Env):\n    shared = {"pool": "pool:opened"}\n'
    (project / "sharing.py").write_text(text)
    assert environment_digests(make("sharing.py:Sharing")).keys() == {"sharing.py", "pool.py"}


def test_values_are_the_same_in_every_process() -> None:
    assert value_digest({"b": 1, "a": {"x", "y"}}) == value_digest({"a": {"y", "x"}, "b": 1})
    assert value_digest(object()) == value_digest(object())
    assert value_digest(np.arange(5000)) != value_digest(np.arange(5001))
    tasks = [Task(prompt=(), target=target, id="same") for target in (1, 2, "1", None)]
    assert len({value_digest(task) for task in tasks}) == 4
    assert value_digest(Task(prompt=(), metadata={"a": 1}, id="x")) != value_digest(Task(prompt=(), id="x"))
