"""Names of environments and tools: found in five places, offered when nearly right, and never taken twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import forge_env
from forge_env.core.errors import UserError, nearest
from forge_env.core.tools import make_tool, tool
from forge_env.core.types import ToolCall
from forge_env.registry import registry
from forge_env.registry.registry import entries, env_class, env_names, register, tool_names, tools_of
from forge_env.registry.registry_file import project_file
from forge_env.tool_env.tool_env import Toolbox, ToolEnv

ROOT = Path(forge_env.__file__).parents[1]


class Mine(ToolEnv):
    """An environment of this test file."""

    class Inner(ToolEnv):
        """One inside of another."""


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


class Counter:
    """Tools that share what an instance holds."""

    def __init__(self) -> None:
        self.count = 0

    @tool(idempotent=True, timeout=3)
    async def more(self, by: int = 1) -> int:
        """Count on."""
        self.count += by
        return self.count

    def reset(self) -> None:
        """Not marked, and so no tool."""


class Plain:
    """No method is marked: those that are public, documented and typed are the tools."""

    def add(self, a: int, b: int) -> int:
        """Add."""
        return a + b

    @staticmethod
    def negate(a: int) -> int:
        """Negate."""
        return -a

    def untyped(self, a):  # type: ignore[no-untyped-def]
        """No types."""

    def undocumented(self, a: int) -> int:
        return a

    def _private(self, a: int) -> int:
        """Private."""
        return a


class Needy:
    """Needs something to be made."""

    def __init__(self, address: str) -> None:
        self.address = address

    @tool
    def call(self) -> str:
        """Call."""
        return self.address


ready_made = make_tool(double, name="twice")


@pytest.fixture(autouse=True)
def registry_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of this test's own; what it registers is forgotten after it."""
    monkeypatch.setattr(registry, "_process", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("FORGE_ENV_REGISTRY", raising=False)
    project = tmp_path / "project"
    (project / "inner" / "deep").mkdir(parents=True)
    monkeypatch.chdir(project / "inner")
    return project


def write_registry(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_classes_and_targets_are_registered_under_a_name_that_is_taken_once() -> None:
    assert {"code_exec", "math"} <= set(env_names())
    assert env_class("envs.math:Math") is env_class("math"), "a target can stand for a name"
    register("as_text", "envs.math:Math")
    register("as_text", "envs.math:Math")  # the same again is no conflict
    register("as_class", Mine)
    register("nested", Mine.Inner)
    assert env_class("as_text") is env_class("math")
    assert [env_class(name).__name__ for name in ("as_class", "nested")] == ["Mine", "Inner"]
    assert {"as_text", "as_class"} <= set(env_names())
    with pytest.raises(UserError, match=r"'as_text' is taken by envs\.math:Math"):
        register("as_text", "envs.code_exec:CodeExec")
    register("math", "envs.code_exec:CodeExec", replace=True)
    assert env_class("math").__name__ == "CodeExec"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("code_exce", ["'code_exce'", "Did you mean code_exec?", "math"]),
        ("zzzzzz", ["'zzzzzz'", "Available:", "code_exec"]),
        ("", ["there is no environment ''"]),
        ("envs.math:", ["'module:attribute'"]),
        ("envs.math:Maths", ["envs.math", "no attribute 'Maths'"]),
        ("nowhere.at.all:Math", ["no module 'nowhere.at.all'"]),
        ("envs.math:Math.tasks", ["is not an environment", "no subclass of forge_env.Env"]),
        ("twofold", ["no environment 'twofold': that name is registered as kind tools"]),
    ],
)
def test_a_name_of_no_environment_is_a_users_mistake(name: str, words: list[str]) -> None:
    register("twofold", double)
    with pytest.raises(UserError) as caught:
        env_class(name)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_name_is_looked_up_nearest_first(registry_of_this_test: Path, tmp_path: Path) -> None:
    package(tmp_path / "site", "one", "math = envs.math:FromPackage")
    sys.path.append(str(tmp_path / "site"))
    assert [e.target for e in entries() if e.name == "math"] == ["envs.math:FromPackage"]
    file = registry_of_this_test / ".forge_env/registry.yaml"
    write_registry(file, "math: {kind: env, target: 'envs.math:FromProject'}")
    assert [e.target for e in entries() if e.name == "math"] == ["envs.math:FromProject"]
    with pytest.raises(UserError, match=r"no attribute 'FromProject'.*'math' is registered in .*registry\.yaml"):
        env_class("math")
    register("math", "envs.math:Math")
    assert [(e.target, e.source) for e in entries() if e.name == "math"] == [("envs.math:Math", "process")]
    assert env_class("math").__name__ == "Math"


def test_the_projects_file_is_the_nearest_one(registry_of_this_test: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = registry_of_this_test
    assert project_file().path == project / "inner/.forge_env/registry.yaml"  # nothing marks a project
    (project / "pyproject.toml").write_text("")
    assert project_file().path == project / ".forge_env/registry.yaml"
    write_registry(project.parent / ".forge_env/registry.yaml", "")
    assert project_file().path == project.parent / ".forge_env/registry.yaml"
    (project / ".git").mkdir()
    assert project_file().path == project / ".forge_env/registry.yaml"  # that one is another project's
    write_registry(project / "inner/.forge_env/registry.yaml", "")
    monkeypatch.chdir("deep")
    assert project_file().path == project / "inner/.forge_env/registry.yaml"
    monkeypatch.setenv("FORGE_ENV_REGISTRY", str(project / "other.yaml"))
    assert project_file().path == project / "other.yaml"


def test_a_working_directory_that_is_gone_hides_no_other_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert env_class("math").__name__ == "Math"


def test_a_file_and_a_module_of_the_project_are_found_from_anywhere_in_it(registry_of_this_test: Path) -> None:
    project = registry_of_this_test
    (project / "sums.py").write_text("def add(a: int, b: int) -> int:\n    'Add.'\n    return a + b\n")
    (project / "sums_of_project.py").write_text((project / "sums.py").read_text())
    write_registry(
        project / ".forge_env/registry.yaml",
        "add: {kind: tools, target: 'sums.py:add', options: {timeout: 2}}\n"
        "plus: {kind: tools, target: 'sums_of_project:add'}\n",
    )
    tools = [tool for name in ("add", "plus") for tool in tools_of(name)]
    assert [(tool.name, tool.options.timeout) for tool in tools] == [("add", 2), ("plus", 30.0)]
    assert tool_names() == ["add", "plus"]


def package(site: Path, name: str, *envs: str, tools: tuple[str, ...] = ()) -> None:
    """Install a package, as far as its entry points go."""
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = ["[forge_env.envs]", *envs, "[forge_env.tools]", *tools]
    (folder / "entry_points.txt").write_text("\n".join(points))


def test_installed_packages_contribute(tmp_path: Path) -> None:
    package(tmp_path, "gardens", "garden = gardens:Garden", tools=("garden = gardens:rake [extra]",))
    (tmp_path / "gardens.py").write_text(
        "from forge_env import ToolEnv\nclass Garden(ToolEnv): ...\ndef rake(leaf: str): 'Rake.'\n"
    )
    sys.path.append(str(tmp_path))
    assert env_class("garden").__module__ == "gardens"
    assert [tool.name for tool in tools_of("garden")] == ["garden"]
    sources = {(entry.kind, entry.source) for entry in entries() if entry.name == "garden"}
    assert sources == {("env", "package gardens"), ("tools", "package gardens")}


def test_two_packages_that_give_one_name_are_both_named(tmp_path: Path) -> None:
    package(tmp_path, "one", "garden = one:Garden")
    package(tmp_path, "two", "garden = two:Garden")
    sys.path.append(str(tmp_path))
    with pytest.raises(UserError, match=r"package one \(one:Garden\) and package two \(two:Garden\)"):
        env_class("garden")
    register("garden", "envs.math:Math")
    assert env_class("garden").__name__ == "Math"


def test_a_function_a_class_without_marks_and_a_target_give_tools() -> None:
    register("twofold", double, timeout=2, parallel=True)
    (result,) = tools_of("twofold")
    assert (result.name, result.description) == ("twofold", "Double a number."), "under the registered name"
    assert (result.options.timeout, result.options.parallel) == (2, True)
    assert result.parameters["required"] == ["number"]
    register("plain", Plain)
    assert [tool.name for tool in tools_of("plain")] == ["add", "negate"], "its documented and typed methods"
    (result,) = tools_of(f"{__file__}:ready_made")
    assert (result.name, result.function(number=4)) == ("twice", 8)


def test_a_class_gives_tools_of_one_fresh_instance() -> None:
    register("counter", Counter, retries=2)
    first, second = (Toolbox({tool.name: tool for tool in tools_of("counter")}) for _ in range(2))
    call = ToolCall(id="0", name="more", arguments={"by": 2})

    async def play() -> list[str]:
        return [(await box.answer([call]))[0][0]["content"] for box in (first, first, second)]

    assert asyncio.run(play()) == ["2", "4", "2"]
    (more,) = tools_of("counter")
    assert (more.options.timeout, more.options.retries) == (3, 2), "the entry's options go over those of the mark"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("twofolt", ["no set of tools 'twofolt'", "Did you mean twofold"]),
        ("math", ["no set of tools 'math'", "registered as kind env"]),
        ("envs.math:Math", ["is an environment, not a set of tools"]),
        (f"{__file__}:Needy", ["Needy() raised TypeError", "address"]),
        (f"{__file__}:Mine", ["is an environment"]),
        ("pathlib:Path.parent", ["makes no tools"]),
        ("builtins:object", ["mark its methods with @tool"]),
    ],
)
def test_what_makes_no_tools_is_a_users_mistake(name: str, words: list[str]) -> None:
    register("twofold", double)
    with pytest.raises(UserError) as caught:
        tools_of(name)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("a b", {}, "'a b' is no name"),
        ("a:b", {}, "'a:b' is no name"),
        ("ok", {"timout": 3}, "Did you mean timeout"),
        ("ok", {"timeout": "3"}, "the option timeout of a tool is '3'"),
        ("ok", {"fatal": ValueError}, "no option 'fatal'"),
        ("ok", {"kind": "envs"}, "must be env or tools"),
        ("ok", {"kind": "env", "timeout": 3.0}, "timeout is for tools"),
    ],
)
def test_what_cannot_be_registered_is_said_at_once(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        register(name, double, **options)  # type: ignore[arg-type]
    assert tool_names() == []


def test_what_other_processes_could_not_import_cannot_be_registered() -> None:
    def inner(a: int) -> int:
        """Inside of a function."""
        return a

    with pytest.raises(UserError, match="at the top of a module"):
        register("inner", inner)


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
