"""Tasks that are none: one and the same sentence wherever tasks are drawn, and never a trace."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from forge_env.cli.main import main
from forge_env.core.errors import UserError
from forge_env.core.types import Task
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.task_list import BadTasks, read_tasks

HEAD = '''\
import itertools, sys

import forge_env
from forge_env import Task, ToolEnv


def ask(text):
    return ({"role": "user", "content": text},)


class Base(ToolEnv):
    """Says yes."""

    @forge_env.reward
    def right(self) -> float:
        return 1.0
'''
RETURNED = {
    "Raises": "{}['rows']",
    "Exits": "sys.exit('no data')",
    "Twice": "[Task(prompt=ask(f'{split} {i}'), id='same') for i in range(count)]",
    "Endless": "(Task(prompt=ask(f'{split} {i}')) for i in itertools.count())",
    "Dicts": "[{'prompt': 'a'}] * count",
    "IsDict": "{'a': 1}",
    "Later": "[]",
    "Empty": "[]",
    "TooMany": "[Task(prompt=ask(f'{split} {i}')) for i in range(count + 3)]",
    "Text": "[Task(prompt='text', id='0')]",
    "Things": "[Task(prompt=ask(split), id='0', target=object())]",
    "Pair": "[Task(prompt=ask(split), id='0', target=(1, 0))]",
    "NumberAsKey": "[Task(prompt=ask(split), id='0', metadata={'prices': {1: 2}})]",
    "NoNumber": "[Task(prompt=ask(split), id='0', metadata={'x': float('nan')})]",
    "NumberAsKind": "[Task(prompt=ask(split), id='0', kind=3)]",
    "LongKind": "[Task(prompt=ask(split), id='0', kind='x' * 65)]",
    "Markup": "[Task(prompt=ask(split), id='0', kind='[red]')]",
}
"""What `tasks` of each class returns."""
TASKS = """

class {name}(Base):
    @classmethod
    {kind} tasks(cls, split="train", *, count, seed=0):
        return {value}
"""
SOURCE = HEAD + "".join(
    TASKS.format(name=name, kind="async def" if name == "Later" else "def", value=value)
    for name, value in RETURNED.items()
)
TUPLE = "holds a tuple, or a dict with a key that is no text, which a record cannot keep: use lists and text"
SENTENCES = {
    "Raises": "tasks('test', count=1) (bad.py:22): KeyError: 'rows'",
    "Exits": "tasks('test', count=1) (bad.py:28): SystemExit: no data",
    "Endless": "tasks('test', count=1) returned a generator; return a list of forge_env.Task",
    "Dicts": "tasks('test') returned a list whose item 0 is a dict; return a list of forge_env.Task",
    "IsDict": "tasks('test', count=1) returned a dict; return a list of forge_env.Task",
    "Later": "tasks('test', count=1) returned a coroutine; return a list of forge_env.Task",
    "Empty": "the environment bad.py:Empty has no tasks in the split 'test': choose another one",
    "TooMany": "tasks('test', count=1) returned more than 1 tasks: return `count` of them",
    "Text": "the task '0' of the split 'test' has a text as its prompt; a prompt is a tuple of messages: write "
    'prompt=({"role": "user", "content": "..."},)',
    "Things": "the task '0' of the split 'test': its target cannot be written as JSON (Object of type object is not "
    "JSON serializable); keep to dicts, lists, text, finite numbers, booleans and None",
    "Pair": f"the task '0' of the split 'test': its target {TUPLE}",
    "NumberAsKey": f"the task '0' of the split 'test': its metadata {TUPLE}",
    "NoNumber": "the task '0' of the split 'test': its metadata cannot be written as JSON (Out of range float values "
    "are not JSON compliant); keep to dicts, lists, text, finite numbers, booleans and None",
    "NumberAsKind": "the task '0' of the split 'test': its kind is a int; it is a text",
    "LongKind": f"the task '0' of the split 'test': its kind is {'x' * 65!r}; it is a text of at most 64 printable "
    "characters, without [ and outer spaces",
    "Markup": "the task '0' of the split 'test': its kind is '[red]'; it is a text of at most 64 printable "
    "characters, without [ and outer spaces",
    "Base": "Base has no tasks of its own: define the classmethod tasks()",
}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bad.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.mark.parametrize("name", SENTENCES)
def test_the_sentence_says_what_the_tasks_lack(name: str) -> None:
    with pytest.raises(UserError) as raised:
        make(f"bad.py:{name}").tasks("test", count=1)  # as training draws them
    assert str(raised.value) == SENTENCES[name]


@pytest.mark.parametrize("name", ["Raises", "Exits", "Pair", "Base"])
def test_the_sentence_of_an_evaluation_is_the_same(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["eval", "--env", f"bad.py:{name}", "--agent", "scripted:null", "--tasks", "1", "--out", "out", "--json"]
    assert main(command) == 2
    out, err = capfd.readouterr()
    assert json.loads(out)["error"] == SENTENCES[name] and "Traceback" not in err


def test_ids_that_come_up_twice_are_refused() -> None:
    with pytest.raises(BadTasks, match=r"^tasks\('test'\) holds the id 'same' more than once: draw without repetition"):
        make("bad.py:Twice").tasks("test", count=2)


class Numbers(Sequence[Task]):
    """A sequence of a user's own, which has no end."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return sys.maxsize

    def __iter__(self) -> Iterator[Task]:
        while True:
            self.read += 1
            yield self[self.read]

    def __getitem__(self, index: Any) -> Any:
        return Task(prompt=({"role": "user", "content": str(index)},))


def test_no_more_is_read_of_a_sequence_than_is_needed() -> None:
    numbers = Numbers()
    with pytest.raises(BadTasks, match="returned more than 5 tasks"):
        read_tasks("numbers", lambda: numbers, "test", count=5)
    assert numbers.read == 6


def test_a_call_that_never_returns_is_ended() -> None:
    def tasks() -> list[Task]:
        drawn: set[int] = set()
        while len(drawn) < 2:
            drawn.add(1)
        return []

    line = tasks.__code__.co_firstlineno
    with pytest.raises(BadTasks) as raised:
        read_tasks("shop", tasks, "test", count=5, seconds=0.5)
    places = [f"(tests/forge_env/rollout/test_task_list.py:{line + n})" for n in (2, 3)]
    assert [place for place in places if place in str(raised.value).replace(str(Path(__file__).parents[3]) + "/", "")]
    assert str(raised.value).endswith("did not return within 0.5 s: let it end, and draw no more than `count` tasks")


def test_a_call_that_returns_late_leaves_nothing_to_come() -> None:
    task = Task(prompt=({"role": "user", "content": "a"},))

    def tasks() -> list[Task]:
        time.sleep(0.6)
        return [task]

    with pytest.raises(BadTasks, match="did not return within 0.01 s"):
        read_tasks("shop", tasks, "test", count=1, seconds=0.01)
    assert sum(range(10_000)) == 49_995_000
    assert read_tasks("shop", lambda: (task,), "test", count=1, seconds=60.0) == (task,)


def test_a_users_own_refusal_and_fewer_tasks_stay_as_they_are() -> None:
    def refuses() -> list[Task]:
        raise UserError("3 tasks were asked for, there are 2")

    with pytest.raises(UserError, match="^3 tasks were asked for, there are 2$"):
        read_tasks("shop", refuses, "test", count=3)
    tasks = [Task(prompt=({"role": "user", "content": str(i)},)) for i in range(2)]
    assert read_tasks("shop", lambda: tasks, "test", count=3) == tasks
    assert read_tasks("shop", list, "test", count=0) == []


@pytest.mark.parametrize("given", ["math", Task, None])
def test_a_factory_of_what_is_no_environment_names_the_function_that_takes_a_name(given: Any) -> None:
    with pytest.raises(UserError, match="is no class of an environment: forge_env.make takes the name"):
        EnvFactory(given)
