"""The child process that imports for `forge-env register` and `info`: what it finds, and that nothing it does hurts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forge_env.cli.describe_in_child import describe_in_child
from forge_env.cli.describe_target import describe_target
from forge_env.core.errors import UserError
from forge_env.registry.registry_file import Entry
from tests.helpers.waiting import is_alive, wait_until

CODE = '''\
import forge_env
from forge_env import Env, ToolEnv, tool


def bare(a, b):
    return a


class HTTPShop:
    """A shop.

    Far away.
    """

    @tool(timeout=3, fatal=OSError)
    def buy(self, what: str, count: int = 1) -> str:
        """Buy something."""
        return what


class Unmade(ToolEnv):
    """Has no tasks, and a tool that is not ready."""

    @tool
    def look(self, place): ...


class Alike:
    def reset(self): ...
    def step(self): ...


class Whole(Env):
    def __init__(self, *, level: int, name: str = "x", near: "Unknown" = None): ...
    @classmethod
    def tasks(cls, split="train", *, count, seed=0, words: list[str] = ()): ...
    def reset(self, *, seed=None, options=None): ...
    def step(self, action): ...
'''


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "code.py"
    path.write_text(CODE)
    return path


def an_entry(target: str) -> Entry:
    return Entry(name="", kind="tools", target=target)


def test_tools_are_described(file: Path) -> None:
    found = describe_target(f"{file}:HTTPShop", "", "", {"max_output": 9})
    assert (found["name"], found["kind"], found["description"], found["line"]) == ("http_shop", "tools", "A shop.", 9)
    (buy,) = found["tools"]
    assert (buy["name"], buy["description"], buy["parameters"]["required"]) == ("buy", "Buy something.", ["what"])
    assert buy["options"]["timeout"] == 3
    assert buy["options"]["max_output"] == 9
    assert buy["options"]["fatal"] == ["OSError"]


def test_an_environment_is_described_with_its_options(file: Path) -> None:
    found = describe_target(f"{file}:Whole", "w", "", {})
    assert (found["name"], found["kind"], found["description"], found["tools"]) == ("w", "env", "", [])
    assert {option["name"]: option for option in found["options"]} == {
        "words": {"name": "words", "type": "list[str]", "required": False, "default": "()"},
        "level": {"name": "level", "type": "int", "required": True},
        "name": {"name": "name", "type": "str", "required": False, "default": "x"},
        "near": {"name": "near", "type": "Unknown", "required": False, "default": None},
    }


def test_what_an_environment_shares_has_options_too() -> None:
    found = describe_target("envs.code_exec:CodeExec", "", "", {})
    assert {"name", "use_tools"} <= {option["name"] for option in found["options"]}
    assert [tool["name"] for tool in found["tools"]] == ["python"]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("bare", "", ["the tool bare has no docstring", "without a type: a, b", "code.py, line 5"]),
        (
            "Unmade",
            "",
            ["Unmade has no tasks()", "line 21", "look has no docstring", "without a type: place", "line 24"],
        ),
        ("Alike", "", ["'Alike' is not a subclass of forge_env.Env"]),
        ("bare", "env", ["'bare' is not a subclass of forge_env.Env"]),
        ("Whole", "tools", ["is an environment, not a set of tools"]),
        ("forge_env", "", ["makes no tools"]),
    ],
)
def test_everything_that_is_lacking_is_said(file: Path, name: str, kind: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        describe_target(f"{file}:{name}", "", kind, {})
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_tool_that_an_evaluation_takes_is_described_with_what_the_model_is_not_told(file: Path) -> None:
    found = describe_in_child(an_entry(f"{file}:bare"), to_register=False)
    assert [tool["name"] for tool in found["tools"]] == ["bare"]
    untold = [
        "the tool bare has no docstring, which the model reads",
        "the tool bare has parameters without a type: a, b",
    ]
    assert [note.partition(" (")[0] for note in found["notes"]] == untold
    with pytest.raises(UserError, match="Unmade has no tasks"):
        describe_target(f"{file}:Unmade", "", "", {}, to_register=False)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("while True:\n    x = 1\n", ["takes longer than 1 s", r"line [12]\)"]),
        ("\nimport ctypes\nctypes.string_at(0)\n", ["crashes Python with SIGSEGV", r"line 3\)"]),
        ("import os\nos._exit(7)\n", ["ends the process with exit code 7"]),
        ("print('x' * 10**6)\nimport sys\nsys.exit('no')\n", ["exit code 'no'", r"line 3\)"]),
        ("def f(:\n", ["SyntaxError", r"line 1\)"]),
        ("input('name? ')\n", ["EOFError", r"line 1\)"]),
    ],
)
def test_whatever_an_import_does_is_one_sentence(tmp_path: Path, code: str, words: list[str]) -> None:
    file = tmp_path / "bad.py"
    file.write_text(code)
    with pytest.raises(UserError) as caught:
        describe_in_child(an_entry(f"{file}:f"), seconds=1.0)
    said = str(caught.value)
    assert "\n" not in said
    assert [word for word in [*words, str(file)] if not re.search(word, said)] == []


def test_what_an_import_starts_and_prints_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(
        "import pathlib, subprocess, sys, threading, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(600)'])\n"
        "pathlib.Path(__file__).with_name('child').write_text(str(child.pid))\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "print('[hello]', 'x' * 10**6)\n"
        "def f(a: int) -> int:\n    'F.'\n    return a\n"
    )
    found = describe_in_child(an_entry(f"{tmp_path}/noisy.py:f"))
    assert found["name"] == "f"
    assert found["notes"][0].startswith("importing it prints text, beginning '")
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not is_alive(child), "the import's own child process ends")


def test_sigterm_ends_the_import_with_the_command(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "started")
    (tmp_path / "slow.py").write_text(
        "import os, time\nopen('started', 'w').write(str(os.getpid()))\ntime.sleep(600)\ndef f(): ...\n"
    )
    command = subprocess.Popen([sys.executable, "-m", "forge_env", "register", "slow.py:f"], cwd=tmp_path)
    child = int((tmp_path / "started").read_text())
    command.send_signal(signal.SIGTERM)
    assert command.wait(timeout=60) == 143
    assert not Path(f"/proc/{child}").exists()
