"""What `forge-env register` and `info` say of a target, and that whatever its import does is one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forge_env.cli.describe_target import describe
from forge_env.core.errors import UserError
from forge_env.registry.registry_file import Entry

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


class Size(int): ...


class Whole(Env):
    def __init__(self, *, level: Size, name: str = "x", near: "Unknown" = None): ...
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


def described(target: str, kind: Any = "auto", *, name: str = "", to_register: bool = True, **options: Any) -> Any:
    entry = Entry(name=name, kind="tools", target=target, options=options)
    return describe(entry, kind, to_register=to_register)


def test_tools_are_described(file: Path) -> None:
    found = described(f"{file}:HTTPShop", max_output=9)
    assert (found["name"], found["kind"], found["description"], found["line"]) == ("http_shop", "tools", "A shop.", 9)
    (buy,) = found["tools"]
    assert (buy["name"], buy["description"], buy["parameters"]["required"]) == ("buy", "Buy something.", ["what"])
    assert buy["options"]["timeout"] == 3
    assert buy["options"]["max_output"] == 9
    assert buy["options"]["fatal"] == ["OSError"]


def test_an_environment_is_described_with_its_options(file: Path) -> None:
    found = described(f"{file}:Whole", name="w")
    assert (found["name"], found["kind"], found["description"], found["tools"]) == ("w", "env", "", [])
    assert {option["name"]: option for option in found["options"]} == {
        "words": {"name": "words", "type": "list[str]", "required": False, "default": "()"},
        "level": {"name": "level", "type": "Size", "required": True},
        "name": {"name": "name", "type": "str", "required": False, "default": "x"},
        "near": {"name": "near", "type": "Unknown", "required": False, "default": None},
    }


def test_what_an_environment_shares_has_options_too() -> None:
    found = described("envs.code_exec:CodeExec")
    assert {"name", "use_tools"} <= {option["name"] for option in found["options"]}
    (option,) = described(str(Path(__file__).parents[3] / "examples/filing_cabinet.py:FilingCabinet"))["options"]
    assert option["name"] == "use_tools"
    assert [tool["name"] for tool in found["tools"]] == ["python"]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("bare", "auto", ["the tool bare has no docstring", "without a type: a, b", "code.py, line 5"]),
        (
            "Unmade",
            "auto",
            ["Unmade has no tasks()", "line 21", "look has no docstring", "without a type: place", "line 24"],
        ),
        ("Alike", "auto", ["'Alike' is not a subclass of forge_env.Env"]),
        ("bare", "env", ["'bare' is not a subclass of forge_env.Env"]),
        ("Whole", "tools", ["is an environment, not a set of tools"]),
        ("forge_env", "auto", ["makes no tools"]),
    ],
)
def test_everything_that_is_lacking_is_said(file: Path, name: str, kind: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        described(f"{file}:{name}", kind)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_tool_that_an_evaluation_takes_is_described_with_what_the_model_is_not_told(file: Path) -> None:
    found = described(f"{file}:bare", to_register=False)
    assert [tool["name"] for tool in found["tools"]] == ["bare"]
    untold = [
        "the tool bare has no docstring, which the model reads",
        "the tool bare has parameters without a type: a, b",
    ]
    assert [note.partition(" (")[0] for note in found["notes"]] == untold
    with pytest.raises(UserError, match="Unmade has no tasks"):
        described(f"{file}:Unmade", to_register=False)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('x')\nimport sys\nsys.exit('no')\n", ["exit code 'no'", "line 3)"]),
        ("class Ended(BaseException): ...\nraise Ended('badly')\n", ["cannot be described: Ended: badly"]),
        ("class f:\n    def __init__(self): exit(3)\n    def go(self, a: int):\n        'Go.'\n", ["SystemExit: 3"]),
    ],
)
def test_whatever_an_import_does_is_one_sentence(tmp_path: Path, code: str, words: list[str]) -> None:
    file = tmp_path / "bad.py"
    file.write_text(code)
    with pytest.raises(UserError) as caught:
        described(f"{file}:f")
    said = str(caught.value)
    assert "\n" not in said
    assert [word for word in [*words, f"'{file}:f'"] if word not in said] == []


def test_what_an_import_starts_and_prints_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "print('[hello]')\n"
        "def f(a: int) -> int:\n    'F.'\n    return a\n"
    )
    command = [sys.executable, "-m", "forge_env", "info", "noisy.py:f", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr, json.loads(done.stdout)["name"]) == (0, "[hello]\n", "f")


@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGTERM, 143, ""), (signal.SIGINT, 130, "note: interrupted\n")]
)
def test_a_signal_ends_an_import_that_hangs(tmp_path: Path, number: int, code: int, said: str) -> None:
    os.mkfifo(tmp_path / "started")
    (tmp_path / "slow.py").write_text("import time\nopen('started', 'w').close()\ntime.sleep(600)\ndef f(): ...\n")
    command = [sys.executable, "-m", "forge_env", "register", "slow.py:f"]
    usual = partial(signal.signal, number, signal.SIG_DFL)  # not what this process ignores
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=usual) as process:
        (tmp_path / "started").read_text()
        process.send_signal(number)
        assert process.communicate(timeout=60) == (None, said)
    assert process.returncode == code
