"""Names of environments: found, offered when nearly right, and never taken twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import forge_env
from forge_env import registry
from forge_env.errors import UserError, nearest
from forge_env.registry import env_class, env_names, load, register
from forge_env.tool_env import ToolEnv

ROOT = Path(forge_env.__file__).parents[1]


class Mine(ToolEnv):
    """An environment of this test file."""

    class Inner(ToolEnv):
        """One inside of another."""


@pytest.fixture(autouse=True)
def names_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(registry, "_ENVS", dict(registry._ENVS))


def test_the_environments_that_ship_can_be_made() -> None:
    assert {"code_exec", "math"} <= set(env_names())
    assert all(issubclass(env_class(name), forge_env.Env) for name in ("code_exec", "math"))


def test_a_target_can_stand_for_a_name() -> None:
    assert env_class("envs.math:Math") is env_class("math")


def test_registering_a_class_or_its_target() -> None:
    register("as_text", "envs.math:Math")
    register("as_class", Mine)
    assert env_class("as_text") is env_class("math")
    assert env_class("as_class").__name__ == "Mine"
    assert {"as_text", "as_class"} <= set(env_names())


def test_a_name_is_taken_once() -> None:
    register("taken", "envs.math:Math")
    register("taken", "envs.math:Math")  # the same again is no conflict
    with pytest.raises(UserError, match=r"'taken' is taken by envs\.math:Math"):
        register("taken", "envs.code_exec:CodeExec")
    assert env_class("taken") is env_class("math")


def test_a_nested_class_can_be_registered() -> None:
    register("nested", Mine.Inner)
    assert env_class("nested").__name__ == "Inner"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("code_exce", ["'code_exce'", "Did you mean code_exec?", "math"]),
        ("zzzzzz", ["'zzzzzz'", "Available:", "code_exec"]),
        ("", ["there is no environment ''"]),
        ("envs.math:", ["'module:attribute'"]),
        ("envs.math:Maths", ["envs.math", "no attribute 'Maths'"]),
        ("envs.maths:Math", ["no module 'envs.maths'"]),
        ("nowhere.at.all:Math", ["no module 'nowhere.at.all'"]),
        pytest.param(":Math", ["'module:attribute'"]),
    ],
)
def test_an_unknown_name_is_a_users_mistake(name: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        env_class(name)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needy_env.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="needs the package 'a_package_that_nobody_has'"):
        load("needy_env:Env")


def test_nearest_offers_one_and_lists_all() -> None:
    assert nearest("stepz", ["seed", "steps"]) == "Did you mean steps? Available: seed, steps."
    assert nearest("qqq", ["seed"]) == "Available: seed."
    assert nearest("qqq", []) == "Available: none."


def test_importing_the_core_is_light() -> None:
    code = "import sys, forge_env; print(*{m.partition('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "forge_env" in loaded
    assert loaded.isdisjoint({"torch", "vllm", "monarch", "torchtitan", "docker", "transformers", "typer", "httpx"})
