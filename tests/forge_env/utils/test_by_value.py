"""Environments that no other process can import, as those of a notebook."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

import forge_env
from envs.math import Math
from forge_env import EnvFactory, Task, ToolEnv, UserError, tool
from forge_env.evaluation.digests import changed_parts, environment_digests
from forge_env.rollout.factory import name_env
from forge_env.utils import by_value

Sign = Literal["+", "-"]


@dataclass
class Point:
    sign: Sign
    x: int = 3


Point.__qualname__ = "notebook.Point"  # which no process can import


def local_class(words: str = "one") -> type[ToolEnv]:
    class Base(ToolEnv):
        @tool
        def move(self, to: Point) -> int:
            """Move."""
            return to.x

    class Local(Base):
        """A class within a function has no name that another process could import."""

        held: ClassVar[list[int]] = []

        @classmethod
        def tasks(cls, split: str = "train", *, count: int, seed: int = 0, level: int = 1) -> Sequence[Task]:
            return [Task(id=f"{words}-{level}", prompt=[{"role": "user", "content": words}])] * count

        @tool
        def add(self, a: int, sign: Sign) -> int:
            """Add."""
            return a

    return Local


def test_another_process_gets_the_class_with_its_tools(tmp_path: Path) -> None:
    value: Any = local_class()
    name = name_env(EnvFactory(value), tmp_path / "environment.pkl")
    assert name == f"{tmp_path}/environment.pkl:Local"
    functions, held = vars(value)["add"], value.held
    assert forge_env.env_class(name) is value  # before the file is there
    by_value.write(name)
    assert forge_env.env_class(name) is value and (vars(value)["add"], value.held) == (functions, held)
    assert value.held is held  # a class of a notebook stays as it is
    code = (
        f"import forge_env; factory = forge_env.make({name!r}, level=3); env = factory.make(); "
        "tools = {each['function']['name']: each['function']['parameters'] for each in env.tools}; "
        "kinds = [tools['add']['properties'], tools['move']['$defs']['Point']['properties']]; "
        "print(factory.tasks(count=1)[0].id, *[properties['sign']['enum'] for properties in kinds])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "one-3 ['+', '-'] ['+', '-']" and not done.stderr


def test_a_name_and_an_importable_class_travel_by_their_names(tmp_path: Path) -> None:
    assert name_env(EnvFactory(Math), tmp_path / "environment.pkl") == "envs.math.env:Math"
    assert name_env(forge_env.make("math", level=2), tmp_path / "environment.pkl") == "math"
    (tmp_path / "own.py").write_text("from envs.math import Math\nclass Own(Math): pass\n")
    own = EnvFactory(forge_env.env_class(f"{tmp_path}/own.py:Own"))
    assert name_env(own, tmp_path / "environment.pkl") == f"{tmp_path}/own.py:Own"


def test_a_module_that_only_this_process_finds_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_here.py").write_text("from envs.math import Math\nclass Here(Math): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    name = name_env(EnvFactory(importlib.import_module("found_here").Here), tmp_path / "environment.pkl")
    by_value.write(name)
    code = f"import forge_env; print(forge_env.env_class({name!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path.parent, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "<class 'found_here.Here'>", done.stderr


def test_the_record_notices_that_the_class_has_changed(tmp_path: Path) -> None:
    class Other(ToolEnv):
        @classmethod
        def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
            return []

    before, after = (environment_digests(EnvFactory(value)) for value in (local_class(), local_class("two")))
    assert before == after
    Other.__name__ = "Local"
    assert changed_parts({"environment": before}, {"environment": environment_digests(EnvFactory(Other))}) != []


def test_what_cannot_travel_is_one_sentence(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        for held in (threading.Lock(), file):
            with pytest.raises(UserError, match="the class Bad cannot reach another process: .*pickle"):
                by_value.put(type("Bad", (local_class(),), {"held": held}), tmp_path / "environment.pkl")


def test_a_file_that_is_missing_or_of_another_class_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        forge_env.env_class(f"{tmp_path}/environment.pkl:Local")
    name = by_value.put(local_class(), tmp_path / "environment.pkl")
    with pytest.raises(UserError, match="holds the class Local, and no Sums"):
        forge_env.env_class(name.replace("Local", "Sums"))
