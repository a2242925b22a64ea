"""Targets: a module's or a file's attribute, and one sentence with the line when it cannot be had."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from forge_env.core.errors import UserError
from forge_env.utils.targets import load, source_of


@pytest.fixture(autouse=True)
def path_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that a test adds to the path are gone after it."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_file_is_loaded_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    file = write(tmp_path / "shop.py", "class Shop:\n    price = 1\n")
    first = load(f"{file}:Shop")
    assert load(f"{file}:Shop") is first
    stat = file.stat()
    file.write_text("class Shop:\n    price = 2\n")  # the same size, and a moment later
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert (load(f"{file}:Shop").price, first.price) == (2, 1)
    assert os.listdir(tmp_path) == ["shop.py"], "no bytecode is left beside it"


def test_a_path_may_be_relative_and_an_attribute_nested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [write(tmp_path / name / "shop.py", f"def f(): return {name!r}\n") for name in ("a", "b")]
    assert [load(f"{file}:f")() for file in files] == ["a", "b"], "two files of one name are two modules"
    write(tmp_path / "sub" / "shop.py", "class Shop:\n    class Till:\n        pass\n")
    monkeypatch.chdir(tmp_path)
    assert load("sub/shop.py:Shop.Till").__qualname__ == "Shop.Till"


def test_a_file_imports_its_neighbours_as_a_script_does(tmp_path: Path) -> None:
    write(tmp_path / "my_neighbour.py", "value = 7\n")
    write(tmp_path / "my_house" / "__init__.py", "value = 8\n")
    write(tmp_path / "random.py", "raise SystemExit('not the one of Python')\n")
    text = "import random\nfrom my_house import value\ndef f():\n  import my_neighbour as m\n  return m.value + value\n"
    assert load(f"{write(tmp_path / 'user.py', text)}:f")() == 15
    assert sys.path[-1] == str(tmp_path)


def test_a_neighbour_that_another_module_hides_is_named(tmp_path: Path) -> None:
    for folder, value in (("first", 1), ("second", 2)):
        write(tmp_path / folder / "namesake.py", f"value = {value}\n")
        write(tmp_path / folder / "user.py", "import os\n\nfrom namesake import value\n")
    assert load(f"{tmp_path}/first/user.py:value") == 1
    with pytest.raises(UserError) as caught:
        load(f"{tmp_path}/second/user.py:value")
    assert f"'namesake', which is {tmp_path}/first/namesake.py" in str(caught.value)
    assert f"({tmp_path}/second/user.py, line 3)" in str(caught.value)


def test_objects_of_a_file_travel_between_processes_that_load_it(tmp_path: Path) -> None:
    text = "import dataclasses\n@dataclasses.dataclass\nclass Point:\n    x: int\n"
    file = write(tmp_path / "point.py", text)
    point = load(f"{file}:Point")(3)
    assert pickle.loads(pickle.dumps(point)) == point
    assert inspect.getsource(type(point)).startswith("@dataclasses.dataclass")
    code = (
        "import pickle, sys; from forge_env.utils.targets import load; "
        "load(sys.argv[1]); print(pickle.load(sys.stdin.buffer).x)"
    )
    command = [sys.executable, "-c", code, f"{file}:Point"]
    done = subprocess.run(command, input=pickle.dumps(point), capture_output=True, timeout=60)
    assert done.stdout == b"3\n", done.stderr.decode()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:\n    pass\n", ["SyntaxError: ", "line 1"]),
        ("\n\nraise ValueError('two\\nlines')\n", ["ValueError: two lines", "line 3"]),
        ("import json\njson.loads('{')\n", ["JSONDecodeError", "line 2"]),
        ("import sys\nsys.exit(4)\n", ["ends the process with exit code 4", "line 2"]),
        ("import nobody_has_this\n", ["needs the package 'nobody_has_this'", "line 1"]),
        ("from . import other\n", ["ImportError", "line 1"]),
        ("from forge_env.core.tools import tool\n@tool(timeout=-1)\ndef f(): ...\n", ["timeout is -1", "line 2"]),
        ("def g(): ...\ndef h(): ...\n", ["no attribute 'f'", "Available: g, h."]),
        ("f\0 = 3\n", ["null byte"]),
    ],
)
def test_a_file_that_cannot_be_imported_is_a_users_mistake(tmp_path: Path, text: str, words: list[str]) -> None:
    file = write(tmp_path / "broken.py", text)
    modules = set(sys.modules)
    with pytest.raises(UserError) as caught:
        load(f"{file}:f")
    output = str(caught.value)
    assert "\n" not in output
    assert [word for word in [*words, str(file)] if word not in output] == []
    assert [
        name for name in sys.modules.keys() - modules if name.startswith("broken") and "attribute" not in output
    ] == []


@pytest.mark.parametrize("target", ["", "shop.py", "shop.py:", ":Shop", "shop", load])
def test_a_malformed_target_is_a_users_mistake(target: Any) -> None:
    with pytest.raises(UserError, match="write it as 'module:attribute' or 'path/to/file.py:attribute'"):
        load(target)


def test_a_file_that_is_not_there_and_a_module_that_fails_are_a_users_mistake(tmp_path: Path) -> None:
    sys.path.append(str(tmp_path))
    for name, text, words in (
        ("divides", "x = 1\ny = x / 0\n", "ZeroDivisionError: division by zero"),
        ("evaluates", "from forge_env import Env, evaluate\nevaluate(Env, len)\n", "evaluate is called meanwhile: .*"),
    ):
        file = write(tmp_path / f"{name}.py", text)
        for target in (f"{name}:x", f"{file}:x"):
            with pytest.raises(UserError, match=f"{words} .{file}, line 2"):
                load(target)
    with pytest.raises(UserError, match=f"there is no file {tmp_path}/no.py"):
        load(f"{tmp_path}/no.py:f")


def test_the_target_of_an_object_leads_back_to_it(tmp_path: Path) -> None:
    result = load(f"{write(tmp_path / 'shop.py', 'class Shop: ...')}:Shop")
    assert source_of(result) == f"{tmp_path}/shop.py:Shop"
    assert source_of(Counter) == "collections:Counter"
    for without in (lambda: 0, 3):
        with pytest.raises(UserError, match="at the top of a module"):
            source_of(without)
