"""Tasks in the shape of SWE-bench: repositories made on the spot, the verdict, what does not count, what is refused."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import forge_env
from contrib.check.audit import run_audit
from contrib.swe.cheats import named_cheats_of
from contrib.swe.rows import instance_of, read_instance
from contrib.swe.verdict import decides_about_tests, passing_tests
from envs.messages import call, say
from forge_env import EnvFactory, Episode, Outcome, Task
from forge_env.core.errors import UserError
from forge_env.core.types import Message
from forge_env.data.rows import BadRow
from tests.helpers import scripts
from tests.helpers.scripts import tool_results

_WRONG = "def area(width, height):\n    return width + height\n"
_RIGHT = _WRONG.replace("+", "*")
_TEST = "import pytest\n\nfrom shapes.area import area\n\n\ndef test_zero():\n    assert area(0, 0) == 0\n"
_MORE = """

def test_area():
    assert area(2, 3) == 6


@pytest.mark.parametrize("words", ["two words", "two others"])
def test_words(words):
    assert area(1, 1) == 1


@pytest.mark.skip(reason="no display")
def test_display():
    pass


@pytest.mark.xfail
def test_known():
    assert area(0, 0) == 1
"""
_FAIL_TO_PASS = ["tests/test_area.py::test_area", "tests/test_area.py::test_words[two"]
_PASS_TO_PASS = [f"tests/test_area.py::test_{name}" for name in ("zero", "display", "known")]
_NO_PATCH = "--- a/nothing\n+++ b/nothing\n@@ -1 +1 @@\n-a\n+b\n"


def _git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@dataclass(frozen=True)
class Made:
    """A repository whose second commit solves the problem, and whose third adds the test."""

    folder: Path
    row: dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("swe") / "shapes"
    for path, text in {
        "shapes/__init__.py": "",
        "shapes/area.py": _WRONG,
        "tests/test_area.py": _TEST,
        "conftest.py": "import pytest\n",
        "setup.cfg": "[tool:pytest]\naddopts = -ra\n",
        ".gitignore": "*.pyc\n__pycache__/\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    _git(folder, "init", "-q", "-b", "main")
    _git(folder, "add", "-A")
    _git(folder, "commit", "-q", "-m", "one")
    base = _git(folder, "rev-parse", "HEAD").strip()
    (folder / "shapes/area.py").write_text(_RIGHT)
    _git(folder, "commit", "-q", "-a", "-m", "the secret solution")
    patch = _git(folder, "diff", "HEAD~1")
    (folder / "tests/test_area.py").write_text(_TEST + _MORE)
    test_patch = _git(folder, "diff")
    _git(folder, "commit", "-q", "-a", "-m", "tests")
    row = {
        "instance_id": "shapes-1",
        "repo": "made/shapes",
        "base_commit": base,
        "snapshot": str(folder),
        "problem_statement": "area(2, 3) is 5, and it is to be 6.",
        "patch": patch,
        "test_patch": test_patch,
        "FAIL_TO_PASS": json.dumps(_FAIL_TO_PASS),
        "PASS_TO_PASS": _PASS_TO_PASS,
        "version": "ignored by this reader",
        "hints_text": None,
    }
    return Made(folder, row)


def _file(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def factory(made: Made) -> AsyncIterator[EnvFactory]:
    async with forge_env.make(f"swe:{_file(made.folder.parent, made.row)}") as opened:
        yield opened


async def _play(factory: EnvFactory, *messages: Message, task: Task | None = None) -> Episode:
    """Play messages; without any, the solution."""
    [task] = factory.tasks("all", count=1) if task is None else [task]
    return await scripts.play(factory, task, *messages)


def test_only_what_decides_is_reported(tmp_path: Path) -> None:
    """A report has a limit, and a test may have any number of parameters. No setting keeps the canary from failing."""
    (tmp_path / "setup.cfg").write_text("[tool:pytest]\naddopts = -n 2 --dist=loadfile -x --ff\n")
    (tmp_path / "conftest.py").write_text("def pytest_runtest_setup(item): item.function\n")
    marks = "@pytest.mark.parametrize('b', range(3))\n@pytest.mark.parametrize('a', [1])\n"
    tests = [f"{marks}def {name}(a, b): pass\n" for name in ("test_x", "test_y", "test_z")]
    (tmp_path / "test_a.py").write_text("".join(["import pytest\n\ndef test_broken(cache): assert 0\n", *tests]))
    ids = ["test_a.py::test_x[1-2]", "test_a.py::test_y[1"]
    request = {"nonce": "n", "canary": "canary_1", "files": ["test_a.py"], "ids": ids}
    command = [sys.executable, str(Path(__file__).parents[3] / "contrib/swe/run_tests.py")]
    done = subprocess.run(command, cwd=tmp_path, input=json.dumps(request), capture_output=True, text=True, check=True)
    reported = {"canary_1", ids[0], *(f"test_a.py::test_y[1-{b}]" for b in range(3))}
    assert json.loads(done.stdout)["outcomes"].keys() == reported


@pytest.mark.asyncio(loop_scope="module")
async def test_the_solution_is_paid_and_an_empty_answer_is_not(factory: EnvFactory) -> None:
    solved = await _play(factory)
    assert (solved.outcome, solved.reward) == (Outcome.SCORED, 1.0), solved.info
    verdict = solved.info["verdict"]
    assert (verdict["fail_to_pass"], verdict["pass_to_pass"], verdict["forgeable"]) == ("2 of 2", "3 of 3", True)
    empty = await _play(factory, say("done"))
    assert (empty.outcome, empty.reward) == (Outcome.SCORED, 0.0)
    assert empty.info["verdict"]["not_passed"] == _FAIL_TO_PASS


@pytest.mark.asyncio(loop_scope="module")
async def test_the_agent_sees_neither_what_came_later_nor_the_tests(factory: EnvFactory) -> None:
    look = (
        "git log --all --format=%s; git fsck --lost-found | wc -l; grep -c test_area tests/test_area.py; git status -s"
    )
    episode = await _play(factory, call("shell", command=look), say("done"))
    answers = tool_results(episode)
    assert answers == ["one\n0\n0"]
    assert "secret" not in json.dumps([dict(episode.task.metadata), list(episode.task.prompt)])


@pytest.mark.asyncio(loop_scope="module")
async def test_breaking_what_has_passed_is_not_paid(factory: EnvFactory) -> None:
    script = "printf 'def area(w, h):\\n    return 6\\n' > shapes/area.py"
    episode = await _play(factory, call("shell", command=script), say("done"))
    assert episode.reward == 0.0 and episode.info["verdict"]["not_passed"] == [_FAIL_TO_PASS[1], _PASS_TO_PASS[0]]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_committed_solution_counts_and_changed_tests_do_not(factory: EnvFactory) -> None:
    mend = "sed -i 's/+/*/' shapes/area.py && echo new > shapes/new.txt && echo 'assert 0' >> tests/test_area.py"
    script = (
        f"{mend} && echo 'raise SystemExit' > conftest.py && ln -s / shapes/link && git add -A && git commit -qm mine"
    )
    episode = await _play(factory, call("shell", command=script), say("done"))
    assert episode.reward == 1.0, episode.info
    assert episode.info["verdict"]["not_counted"] == ["conftest.py", "shapes/link", "tests/test_area.py"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["every module makes pytest pass all tests"], "a test that must fail has not failed"),
        (["every module prints a report and ends the program"], "the process of the tests ended without a report"),
        pytest.param([], "", marks=pytest.mark.slow),
    ],
    ids=["patched pytest", "printed report", "all"],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_no_cheat_is_paid(factory: EnvFactory, names: list[str], reason: str) -> None:
    [task] = factory.tasks("all", count=1)
    cheats = named_cheats_of(instance_of(task))
    chosen = names or list(cheats)
    episodes = await asyncio.gather(*(_play(factory, *cheats[name]) for name in chosen))
    paid = {name: (e.outcome, e.reward) for name, e in zip(chosen, episodes, strict=True) if e.reward != 0.0}
    assert paid == {}
    assert not reason or episodes[0].info["verdict"]["reason"] == reason


@pytest.mark.slow
async def test_the_audit_of_a_set_trusts_it(made: Made, tmp_path: Path) -> None:
    twin = {**made.row, "instance_id": "pays for nothing", "FAIL_TO_PASS": _PASS_TO_PASS[:1]}
    report = await run_audit(forge_env.make(f"swe:{_file(tmp_path, made.row, twin)}"))
    by_name = {task.name: task for task in report.tasks}
    assert by_name["shapes-1"].problems == () and by_name["shapes-1"].paid == ()
    assert by_name["pays for nothing"].problems == ("an empty answer earns 1, not 0",)


@pytest.mark.parametrize(
    "form",
    ["folder at the top", "bundle", "files", *(pytest.param(form, marks=pytest.mark.slow) for form in ("tar", "tag"))],
)
async def test_a_repository_comes_in_many_forms(made: Made, form: str, tmp_path: Path) -> None:
    row = dict(made.row)
    if form == "tar":
        subprocess.run(["tar", "-czf", tmp_path / "a.tar.gz", "-C", made.folder, "."], check=True)
        row["snapshot"] = "a.tar.gz"
    elif form == "folder at the top":
        subprocess.run(["tar", "-cf", tmp_path / "a.tar", "-C", made.folder.parent, "shapes"], check=True)
        row["snapshot"] = "a.tar"
    elif form == "bundle":
        _git(made.folder, "bundle", "create", "-q", str(tmp_path / "a.bundle"), "main")
        row["snapshot"] = "a.bundle"
    elif form == "files":
        _git(made.folder, "worktree", "add", "-q", "--detach", str(tmp_path / "files"), row.pop("base_commit"))
        (tmp_path / "files" / ".git").unlink()
        _git(made.folder, "worktree", "prune")
        row["snapshot"] = "files"
    else:
        _git(made.folder, "tag", "-f", "first", row["base_commit"])
        row["base_commit"] = "first"
    async with forge_env.make(f"swe:{_file(tmp_path, row)}") as factory:
        solved = await _play(factory)
        assert solved.reward == 1.0, solved.error or solved.info


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"base_commit": "f" * 40}, "there is no commit"),
        ({"test_patch": _NO_PATCH}, "nor do they for an untouched repository"),
        ({"image": "host"}, "nor do they for an untouched repository"),  # without pytest
        ({"setup": "echo no room >&2; exit 3"}, "its setup fails: no room"),
        ({"image": "host:pytest", "snapshot": ""}, "its image has no folder /testbed"),
    ],
)
async def test_a_broken_task_is_a_fault(made: Made, change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    async with forge_env.make(f"swe:{_file(tmp_path, {**made.row, **change})}") as factory:
        episode = await _play(factory, call("shell", command="echo x > new.txt"), say("done"))
    assert episode.outcome is Outcome.ENV_FAULT and reason in episode.error, episode.error


async def test_what_is_prepared_once_serves_many_episodes(made: Made, tmp_path: Path) -> None:
    row = {**made.row, "setup": "date +%s%N > .prepared"}
    async with forge_env.make(f"swe:{_file(tmp_path, row)}") as factory:
        look = [call("shell", command="cat .prepared"), say("done")]
        episodes = await asyncio.gather(*(_play(factory, *look) for _ in range(2)))
    seen = {message["content"] for episode in episodes for message in episode.messages if message["role"] == "tool"}
    assert len(seen) == 1 and seen.pop().isdigit()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"instance_id": None}, "it has no instance_id"),
        ({"FAIL_TO_PASS": "[]", "PASS_TO_PASS": []}, "it names no tests: FAIL_TO_PASS and PASS_TO_PASS are empty"),
        ({"FAIL_TO_PASS": "["}, "it is a list of ids"),
        ({"FAIL_TO_PASS": ["test_area (tests.Area)"]}, "is no id of pytest"),
        ({"FAIL_TO_PASS": ["../x.py::y"]}, "is no id of pytest"),
        ({"base_commit": "--upload-pack=x"}, "it is no name of a commit"),
        ({"snapshot": "nothing.tar"}, "there is no snapshot"),
        ({"workdir": "/"}, "it is an absolute path of a folder below /"),
        ({"repo": "swesmith/a__b.1fd52536", "snapshot": None}, "the patch of a row of SWE-smith makes the bug"),
    ],
)
def test_a_malformed_row_is_one_sentence(made: Made, change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(BadRow) as error:
        read_instance({**made.row, **change}, tmp_path)
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        forge_env.make(f"swe:{tmp_path / 'nothing.jsonl'}")


ID = "tests/test_a.py::test_x"


@pytest.mark.parametrize(
    ("asked", "statuses", "fail_to_pass", "pass_to_pass"),
    [
        ("", {"": "PASSED"}, True, True),
        ("", {"": "SKIPPED"}, False, True),
        ("", {"": "XPASS"}, False, False),
        ("", {"": "FAILED"}, False, False),
        ("", {"": "ERROR"}, False, False),
        ("", {}, False, False),
        ("[a", {"[a b]": "PASSED", "[a c]": "XFAIL"}, True, True),
        ("[a", {"[a b]": "PASSED", "[a c]": "SKIPPED"}, False, False),
        ("[a", {"[a b]": "PASSED", "[a c]": "FAILED"}, False, False),
        ("[a", {"[a b]": "PASSED", "[a c]": "XPASS"}, True, True),
        ("[a", {"[b a]": "PASSED"}, False, False),
        ("[a]", {"[a] b]": "PASSED"}, False, False),
        ("[a b]", {"[a b]": "PASSED"}, True, True),
        ("[/a]", {"[/usr/share/a]": "PASSED"}, True, True),
        ("[1-a]", {"[MouseButton.LEFT-a]": "PASSED"}, True, True),
    ],
)
def test_a_test_is_as_it_must_be(asked: str, statuses: dict[str, str], fail_to_pass: bool, pass_to_pass: bool) -> None:
    """The rules of SWE-bench 5.0; test_swe_package.py compares more of them."""
    known = {ID + end: status for end, status in statuses.items()}
    assert bool(passing_tests([ID + asked], [], known)) is fail_to_pass
    assert bool(passing_tests([], [ID + asked], known)) is pass_to_pass


def test_a_row_with_nothing_to_fix_and_words_of_the_log_is_read(made: Made, tmp_path: Path) -> None:
    row = {**made.row, "FAIL_TO_PASS": "[]", "PASS_TO_PASS": json.dumps(["[100%]", *_PASS_TO_PASS])}
    instance = instance_of(read_instance(row, tmp_path))
    assert (instance.fail_to_pass, instance.pass_to_pass) == ([], _PASS_TO_PASS)


def test_lists_of_python_and_patches_without_a_last_line_end_are_read(made: Made, tmp_path: Path) -> None:
    cut = {name: made.row[name].removesuffix("\n") for name in ("patch", "test_patch")}
    row = {**made.row, **cut, "PASS_TO_PASS": str(_PASS_TO_PASS)}
    instance = instance_of(read_instance(row, tmp_path))
    assert (instance.patch, instance.test_patch) == (made.row["patch"], made.row["test_patch"])
    assert instance.pass_to_pass == _PASS_TO_PASS


def test_what_decides_about_tests() -> None:
    work = ("shapes/area.py", "shapes/contest.py", "shapes/testing/tools.py")
    tests = ("a/test_b.py", "a/b_test.py", "a/tests/data.json", "pytest/__init__.py", "pyproject.toml")
    starts = ("src/sitecustomize.py", "x/evil.pth", "evil.dist-info/entry_points.txt")
    assert [path for path in work if decides_about_tests(path)] == []
    assert [path for path in (*tests, *starts) if not decides_about_tests(path)] == []
