"""The generated repositories: their faults show, their solutions are right, the splits are apart."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contrib.workspaces.bug_fix.part import PARTS
from contrib.workspaces.bug_fix.repository import Function, Layout, NoCallsError, Repository, find_repair
from contrib.workspaces.bug_fix.shell_expert import expert
from contrib.workspaces.bug_fix.tasks import FIRST_PARTS, LEVELS, tasks_of_level
from forge_env import Task
from forge_env.core.errors import UserError
from forge_env.core.types import Message

FAULTS = [(part.name, fault) for part in PARTS.values() for fault in range(len(part.faults))]


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_a_fault_changes_one_line_that_occurs_once(name: str, fault: int) -> None:
    part = PARTS[name]
    old, new = part.faults[fault]
    right_line, _ = part.fault(fault)
    assert part.source.count(old) == 1 and old != new
    assert [line.strip() for line in part.source.split("\n")].count(right_line) == 1
    right, wrong = (text.split("\n") for text in (part.text(5), part.text(5, fault)))
    assert sum(a != b for a, b in zip(right, wrong, strict=True)) == 1


def test_there_are_more_than_five_hundred_functions_with_a_fault_that_calls_show() -> None:
    texts = set()
    for name, fault in FAULTS:
        for number in PARTS[name].numbers:
            layout = Layout("basket", (Function(name, number),), 0, fault, False)
            if _has_calls(layout):
                texts.add(PARTS[name].text(number, fault))
    assert len(texts) >= 500


@pytest.mark.parametrize("level", LEVELS)
def test_the_hidden_calls_are_failed_by_the_fault_and_passed_by_the_solution(level: int) -> None:
    for task in tasks_of_level(level, "train", count=5, seed=1):
        assert _failures(task, {}) > 0
        assert _failures(task, task.metadata["solution"]) == 0


@pytest.mark.parametrize("level", LEVELS)
def test_the_repair_is_read_off_the_one_file_that_has_the_fault(level: int) -> None:
    for task in tasks_of_level(level, "test", count=5, seed=2):
        files = task.metadata["files"]
        repairs = {path: repair for path, text in files.items() if (repair := find_repair(text))}
        assert list(repairs) == list(task.metadata["solution"])
        for path, repair in repairs.items():
            assert files[path].count(repair.old) == 1
            assert files[path].replace(repair.old, repair.new) == task.metadata["solution"][path]


def test_solutions_need_no_repair() -> None:
    for part in PARTS.values():
        for number in part.numbers:
            assert find_repair(part.text(number)) is None


@pytest.mark.parametrize("level", LEVELS)
def test_tasks_are_distinct_repeatable_and_apart_by_split(level: int) -> None:
    train = tasks_of_level(level, "train", count=20, seed=3)
    assert [task.id for task in train] == [task.id for task in tasks_of_level(level, "train", count=20, seed=3)]
    held_out = tasks_of_level(level, "test", count=10, seed=3)
    assert len({task.id for task in (*train, *held_out)}) == 30
    sources = [{str(task.metadata["files"]) for task in tasks} for tasks in (train, held_out)]
    assert not sources[0] & sources[1]
    if level == 0:
        prompts = [{_question(task) for task in tasks} for tasks in (train, held_out)]
        assert not prompts[0] & prompts[1]
        assert {task.metadata["operation"] for task in (*train, *held_out)} <= set(FIRST_PARTS)
    unseen = {(task.metadata["operation"], task.metadata["constant"]) for task in held_out}
    seen = {(task.metadata["operation"], task.metadata["constant"]) for task in train}
    assert not unseen & seen if level == 0 else unseen - seen
    names = [{Path(path).parts[0] for task in tasks for path in task.target["sources"]} for tasks in (train, held_out)]
    assert not names[0] & names[1]


@pytest.mark.parametrize(
    ("level", "digest"), list(enumerate(("707f4e742081", "7fcb6b0b0413", "ac987d0048f7", "0fff8850a5e6")))
)
def test_the_tasks_of_a_seed_stay_the_same(level: int, digest: str) -> None:
    ids = [task.id for split in ("train", "test") for task in tasks_of_level(level, split, count=5, seed=0)]
    assert hashlib.sha256(" ".join(ids).encode()).hexdigest().startswith(digest)


def test_the_prompt_shows_less_from_level_to_level() -> None:
    questions = {level: _question(tasks_of_level(level, "train", count=1, seed=0)[0]) for level in LEVELS}
    tasks = {level: tasks_of_level(level, "train", count=1, seed=0)[0] for level in LEVELS}
    paths = {level: next(iter(task.metadata["solution"])) for level, task in tasks.items()}
    assert questions[0].startswith("Line ") and paths[0] in questions[0]
    assert paths[1] in questions[1] and "Line" not in questions[1]
    assert "must return" in questions[2] and paths[2] not in questions[2]
    assert "must return" not in questions[3] and paths[3] not in questions[3]


def hidden_suite(target: dict[str, Any]) -> str:
    """Return the hidden calls of a task as a pytest module."""
    functions = sorted({(module, function) for module, function, _, _ in target["calls"]})
    imports = "".join(f"from {module} import {function}\n" for module, function in functions)
    tests = "".join(
        f"\n\ndef test_{at}_{function}():\n    assert {function}({argument!r}) == {expected!r}\n"
        for at, (_, function, argument, expected) in enumerate(target["calls"], 1)
    )
    return imports + tests


def test_the_suites_run_with_pytest(tmp_path: Path) -> None:
    task = tasks_of_level(LEVELS[-1], "train", count=1, seed=4)[0]
    _write(tmp_path, {**task.metadata["files"], "hidden/test_hidden.py": hidden_suite(task.target)})
    before = _pytest(tmp_path)
    assert before.returncode == 1 and "error" not in before.stdout.lower().replace("assertionerror", ""), before.stdout
    _write(tmp_path, task.metadata["solution"])
    after = _pytest(tmp_path)
    assert after.returncode == 0, after.stdout


def test_the_suite_of_a_module_is_a_script_too(tmp_path: Path) -> None:
    task = tasks_of_level(1, "train", count=1, seed=4)[0]
    [script] = set(task.metadata["files"]) - set(task.target["sources"])

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    _write(tmp_path, task.metadata["files"])
    before = run()
    assert before.returncode == 1 and before.stderr.endswith("AssertionError\n"), before.stderr
    _write(tmp_path, task.metadata["solution"])
    assert run().returncode == 0


@pytest.mark.parametrize("level", [0, 1])
def test_the_expert_of_the_shell_mends_the_line_with_sed(level: int, tmp_path: Path) -> None:
    """As mini-swe-agent shows it the outputs; sed takes what stands behind the backslash as it is."""
    for number, task in enumerate(tasks_of_level(level, "train", count=6, seed=5)):
        folder, [path] = tmp_path / str(number), task.target["sources"]
        _write(folder, task.metadata["files"])
        messages: list[Message] = [{"role": "system", "content": ""}, *task.prompt]
        for _ in range(3):
            messages.append(expert(messages))
            command = messages[-1]["content"].removeprefix("```mswea_bash_command\n").removesuffix("\n```")
            command = command.replace("python ", f"{sys.executable} ")
            done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, (command, done)
            text = f"<returncode>0</returncode>\n<output>\n{done.stdout}</output>"
            messages.append({"role": "user", "content": text})
        assert (folder / path).read_text() == task.metadata["solution"][path]
        assert "COMPLETE_TASK" in expert(messages)["content"]


@pytest.mark.parametrize("level", [-1, 4, "0"])
def test_an_unknown_level_is_refused(level: Any) -> None:
    with pytest.raises(UserError, match="the levels are 0, 1, 2 and 3"):
        tasks_of_level(level, "train", count=1, seed=0)


def _has_calls(layout: Layout) -> bool:
    try:
        Repository(layout).calls(random.Random(0), showing=4, hiding=0)
    except NoCallsError:
        return False
    return True


def _failures(task: Task, changes: dict[str, str]) -> int:
    """Call the hidden functions of a repository in this process, as modules that never reach sys.modules for long."""
    sources = {path: task.metadata["files"][path] for path in task.target["sources"]} | changes
    namespace: dict[str, Any] = {}
    for path, text in sources.items():
        lines = [line for line in text.split("\n") if not line.startswith("from ")]
        if not path.endswith("report.py"):
            exec("\n".join(lines), namespace)
    for path, text in sources.items():
        if path.endswith("report.py"):
            exec("\n".join(line for line in text.split("\n") if not line.startswith("from ")), namespace)
    failures = 0
    for _, function, argument, expected in task.target["calls"]:
        try:
            failures += namespace[function](argument) != expected
        except Exception:
            failures += 1
    return failures


def _question(task: Task) -> str:
    return str(task.prompt[0]["content"])


def _write(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def _pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "."]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
