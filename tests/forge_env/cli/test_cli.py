"""`forge-env`: what it registers works everywhere, and every mistake is one sentence and exit code 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forge_env
from forge_env.cli import main as cli_main
from forge_env.cli.main import main
from forge_env.registry import registry
from forge_env.registry.contrib import Row
from forge_env.registry.registry import env_class, tools_of

Run = Callable[..., tuple[int, str, str]]

TOOLS = '''\
from forge_env import Task, ToolEnv, reward, tool


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: the first one
    """
    return a + b


def bare(a, b):
    return a


class Shop:
    """A shop."""

    @tool(timeout=3)
    def buy(self, what: str) -> str:
        """Buy something."""
        return what


class CityQuiz(ToolEnv):
    """Name a city."""

    @classmethod
    def tasks(cls, split="train", *, count, seed=0, level: int = 1):
        return [Task(prompt=({"role": "user", "content": f"{split} {seed} {i}"},)) for i in range(count)]

    @tool
    def look(self, place: str) -> str:
        """Look it up."""
        return place
'''


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of this test's own."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "tools.py").write_text(TOOLS)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(registry, "_process", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("FORGE_ENV_REGISTRY", raising=False)
    return folder


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Run a command in this process; returns its exit code, stdout and stderr."""

    def command(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return code, out, err

    yield command


def data_of(done: tuple[int, str, str]) -> dict[str, Any]:
    """The one JSON object of a command that went well."""
    code, out, err = done
    assert code == 0, err
    assert out.count("\n") == 1
    return json.loads(out)


def in_a_process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forge_env", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def test_a_path_that_this_machine_does_not_take_is_one_sentence(run: Run, project: Path) -> None:
    code, out, err = run("diff", "a" * 300, "a" * 300)
    assert (code, out) == (2, "") and err.startswith("error: aaaa") and err.endswith("File name too long\n")
    code, out, err = run("diff", "~no-user/a", "~no-user/a")
    assert (code, out) == (2, "") and err.startswith("error: a path begins with ~ and the name of no user here")
    (project / "loop").symlink_to("loop")
    assert run("new", "loop")[0] == 2


def test_a_function_registered_from_the_command_line_works_by_its_name(run: Run, project: Path) -> None:
    code, out, err = run("register", "tools.py:add", "--timeout", "4", "--idempotent", "--retries", "1")
    assert (code, err) == (0, "")
    assert '"description": "the first one"' in out
    assert f"add is registered in {project}/.forge_env/registry.yaml" in out
    (add,) = tools_of("add")
    assert (add.name, add.options.timeout, add.options.retries, add.function(a=1)) == ("add", 4.0, 1, 3)


def test_a_class_of_tools_is_registered_under_another_name(run: Run) -> None:
    data = data_of(run("register", "tools.py:Shop", "--name", "corner-shop", "--json"))
    assert (data["name"], data["kind"], data["description"], data["notes"]) == ("corner-shop", "tools", "A shop.", [])
    assert data["tools"][0]["parameters"]["required"] == ["what"]
    assert data["tools"][0]["options"]["timeout"] == 3
    assert [tool.name for tool in tools_of("corner-shop")] == ["buy"]
    again = ("register", "tools.py:add", "--name", "corner-shop")
    assert "the name 'corner-shop' is taken by" in (error := run(*again)[2]) and "--replace" in error
    assert data_of(run(*again, "--replace", "--json"))["tools"][0]["name"] == "corner-shop"


def test_an_environment_is_registered_and_looked_at(run: Run, project: Path) -> None:
    data = data_of(run("register", "tools.py:CityQuiz", "--json"))
    assert (data["name"], data["kind"]) == ("city_quiz", "env")
    assert data["registry"] == str(project / ".forge_env/registry.yaml")
    assert env_class("city_quiz").tasks(count=1)[0].prompt[0]["content"] == "train 0 0"
    known = data_of(run("info", "city_quiz", "--json"))
    assert {"name": "level", "type": "int", "required": False, "default": 1} in known["options"]
    assert (known["file"], known["line"]) == (str(project / "tools.py"), 26)
    assert [tool["name"] for tool in known["tools"]] == ["look"]
    code, out, err = run("info", "city_quiz")
    assert (code, err) == (0, "")
    assert [word for word in ("Name a city.", "level", "look", "from: project", "line 26") if word not in out] == []
    assert data_of(run("unregister", "city_quiz", "--json"))["target"] == f"{project}/tools.py:CityQuiz"
    assert run("info", "city_quiz")[0] == 2


def test_the_list_says_where_each_name_comes_from(run: Run, project: Path) -> None:
    (project / ".forge_env").mkdir()
    (project / ".forge_env/registry.yaml").write_text(
        "add: {kind: tools, target: 'tools.py:add', description: '[b]Sum'}"
    )
    listed = {entry["name"]: entry for entry in data_of(run("list", "--json"))["entries"]}
    assert listed["math"]["source"] == "built-in"
    assert (listed["add"]["source"], listed["add"]["target"]) == ("project", f"{project}/tools.py:add")
    assert [entry["name"] for entry in data_of(run("list", "--kind", "tools", "--json"))["entries"]] == ["add"]
    code, out, _ = run("list")
    assert code == 0
    assert "[b]Sum" in out


def test_what_cannot_be_registered_leaves_no_entry(run: Run, project: Path) -> None:
    wrong = {
        ("tools.py:bare",): f"'{project}/tools.py:bare' cannot be registered: the tool bare has no docstring",
        ("tools.py:CityQuiz", "--timeout", "3"): "'city_quiz' is an environment, and timeout is for tools",
        ("tools.py:add", "--retries", "2"): "retries=2 and is not idempotent",
    }
    for arguments, words in wrong.items():
        code, out, err = run("register", *arguments)
        assert (code, out) == (2, "")
        assert err.startswith("error: ") and err.count("\n") == 1
        assert words in err
    assert not (project / ".forge_env").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["register", "tools.py"], ["write tools.py:NAME, where NAME is one of: add, bare, Shop, CityQuiz"]),
        (["register", "tools.py:add", "--name", "a:b"], ["'a:b' is no name"]),
        (
            ["register", "tools.py:add", "--timeout", "soon"],
            ["--timeout", "valid number", "see forge-env register --help"],
        ),
        (["register"], ["Missing", "see forge-env register --help"]),
        (["info", "mathh"], ["'mathh'. Did you mean math?"]),
        (["unregister", "math"], ["built-in: it cannot be unregistered"]),
        (["list", "--jsonn"], ["--jsonn", "see forge-env list --help"]),
        (["lisst"], ["lisst", "see forge-env --help"]),
        (["eval", "--env", "math", "--out", "x", "--env=code_exec"], ["--env is given twice, math and code_exec"]),
        (["eval", "--out", "x", "-n", "1", "--samples", "2"], ["needs --env and --agent"]),
        (["eval", "--out", "x", "--option", "a=1", "--option", "b=2"], ["needs --env and --agent"]),
        (["new", "My-Env"], ["'My-Env'", "small letters"]),
        (["new", "math"], ["a module of the standard library"]),
        (["new", "code_exec"], ["'code_exec' is taken"]),
    ],
)
def test_a_mistake_is_one_sentence_in_json_too(run: Run, arguments: list[str], words: list[str]) -> None:
    is_one_sentence(run, arguments, words)


def is_one_sentence(run: Run, arguments: list[str], words: list[str]) -> None:
    code, out, err = run(*arguments, "--json")
    assert code == 2
    assert err.startswith("error: ") and err.count("\n") == 1
    assert [word for word in words if word not in err] == []
    assert json.loads(out) == {"error": err.removeprefix("error: ").rstrip("\n")}


def test_a_broken_registry_is_named_with_its_line_and_stays(run: Run, project: Path) -> None:
    file = project / ".forge_env/registry.yaml"
    file.parent.mkdir()
    file.write_text("add:\n  kind: tools\n target: x\n")
    for arguments in (["list"], ["register", "tools.py:add"], ["unregister", "add"], ["info", "add"], ["new", "mine"]):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert f"error: {file}, line 3: it is not YAML" in err
    assert file.read_text() == "add:\n  kind: tools\n target: x\n"
    assert not (project / "mine").exists()


def test_a_new_environment_passes_its_own_tests_at_once(run: Run, project: Path) -> None:
    data = data_of(run("new", "word_game", "--path", "games", "--json"))
    folder = project / "games" / "word_game"
    assert data["folder"] == str(folder)
    assert {"pyproject.toml", "README.md", "word_game.py", "tests/test_word_game.py"} == set(data["files"])
    text = "".join((folder / file).read_text() for file in data["files"])
    assert [word for word in ("my_env", "my-env", "MyEnv") if word in text] == []
    assert 'word_game = "word_game:WordGame"' in text
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    tested = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert tested.returncode == 0, tested.stdout
    assert "is taken" in run("new", "word_game")[2]
    run("unregister", "word_game")
    assert f"{folder} exists already" in run("new", "word_game", "--path", "games")[2]
    assert (folder / "README.md").exists()


def test_the_program_itself(project: Path) -> None:
    done = in_a_process("info", "mathh", "--json")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert json.loads(done.stdout)["error"] in done.stderr


def test_help_is_there_without_an_argument_and_loads_nothing_slow() -> None:
    code = "import sys; from forge_env.cli.main import main; main([]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert [n for n in ("register", "unregister", "list", "info", "new", "eval") if f"  {n} " not in done.stdout] == []
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "typer" in loaded
    assert loaded.isdisjoint({"rich", "yaml", "gymnasium", "numpy", "httpx", "torch"})


def test_an_outbuilding_that_cannot_be_imported_breaks_its_own_commands_only(
    run: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "half.py").write_text("1 / 0\n")
    broken = Row("paint", f"{project}/half.py:paint", "Paint a wall.", folder="walls")
    real = cli_main.rows
    monkeypatch.setattr(cli_main, "rows", lambda table: {**real(table), "paint": broken})
    for command in (["paint"], ["paint", "--help"]):
        code, out, err = run(*command)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert [w for w in ("the outbuilding walls: ", "ZeroDivisionError", "half.py, line 1") if w not in err] == []
    assert run("list")[0] == 0


def test_the_version_is_shown(run: Run) -> None:
    assert run("--version") == (0, f"forge-env {forge_env.__version__}\n", "")


EVAL = "forge_env eval --env math --agent scripted:null --tasks 2 --out"


@pytest.mark.parametrize(
    ("command", "code", "output"),
    [
        ("forge_env list --json >&-", 0, ""),
        ("forge_env list --json 2>&-", 0, None),
        ("forge_env list >&- 2>&- <&-", 0, ""),
        ("forge_env infoo 2> /dev/full", 2, ""),
        (f"{EVAL} one 2>&-", 0, None),
        ("forge_env list --json > /dev/full", 1, "error: the output cannot be written: No space left on device\n"),
        ("forge_env infoo --json > /dev/full", 2, None),
        ("forge_env infoo 2>&1 |", 2, ""),
        ("forge_env list --json |", 1, ""),
        ("trainers.grpo --help 2>&1 |", 0, ""),
    ],
)
def test_streams_that_nobody_reads_change_only_what_is_read(
    command: str, code: int, output: str | None, tmp_path: Path
) -> None:
    changes_only_what_is_read(command, code, output, tmp_path)


def changes_only_what_is_read(command: str, code: int, output: str | None, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    env["PYTHONPATH"] = str(Path(forge_env.__file__).parents[1])
    shell = ["sh", "-c", f"exec {sys.executable} -m {command.removesuffix('|')}"]
    read, write = os.pipe()
    os.close(read)
    stdout = write if command.endswith("|") else subprocess.PIPE
    done = subprocess.run(shell, cwd=tmp_path, env=env, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(write)
    shown = (done.stdout or "") + done.stderr
    assert done.returncode == code, shown
    assert "Traceback" not in shown and "Exception ignored" not in shown
    assert output is None or shown == output
