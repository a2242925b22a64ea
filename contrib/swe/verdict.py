"""The verdict on a submission: its patch and then the test patch in a fresh workspace, and the outcomes of the tests.

What decides about tests does not count if the agent has changed it: test files, what pytest reads, what Python runs at
its start, and links. Such files are as the base commit and the test patch have them. Files that the solution changes
always count. The code under test runs in the process of its tests, as everywhere in this format: code that is written
against this grader can forge a report, which the episode says (`forgeable`).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from contrib.swe.repository import BASE, GIT_ENV, by_script
from contrib.swe.rows import Instance
from contrib.workspaces.contract import CommandResult, WorkspaceFileError
from contrib.workspaces.env.output import shorten
from contrib.workspaces.machines.workspace import Workspace
from forge_env.core.errors import EnvError
from forge_env.core.sandbox import ExecStatus

_FOLDER = "/forge_env_verdict"
_RUNNER = (Path(__file__).parent / "run_tests.py").read_text(encoding="utf-8")
_GIT_SECONDS = 120.0
_MAX_PATCH = 16 * 2**20
_SHOWN = 2000
_LISTED = 20
_TEST_FILE = re.compile(r"test_.*\.py|.*_tests?\.py|tests\.py|conftest\.py")
_TEST_FOLDERS = {"test", "tests"}
_SETTINGS = {"pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"}
_AT_START = re.compile(
    r"(site|user)customize(\.py|/.*)?|.*\.pth|pytest\.py|_pytest/.*|pytest/.*|[^/]*\.(dist|egg)-info(/.*)?"
)
_LINKS = ("120000", "160000")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What the agent has changed, as a patch; or why there is none."""

    patch: bytes = b""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the tests ended in one workspace."""

    passed: frozenset[str] | None
    """See `passing_tests`; None if there is no report, and `reason` says why."""
    reason: str = ""
    output: str = ""
    not_counted: Sequence[str] = field(default=())
    seconds: float = 0.0
    """That the tests took."""


async def collect_patch(workspace: Workspace, instance: Instance) -> Submission:
    """The changes in the workspace of an agent after its processes have ended; ignored files are left out."""
    place = "/tmp/.forge-env-patch"
    result = await _git(workspace, instance, by_script("diff", place))
    if not result.ok:
        return Submission(problem=f"the changes cannot be read: {_last(result)}")
    try:
        return Submission(patch=await workspace.get(place, max_bytes=_MAX_PATCH))
    except WorkspaceFileError as error:
        return Submission(problem=f"the changes cannot be read: {error}")


async def run_tests(workspace: Workspace, instance: Instance, patch: bytes, env: Mapping[str, str]) -> Outcome:
    """Apply a submission and the test patch in a workspace that no agent acts in, and run the tests."""
    await workspace.put(f"{_FOLDER}/run_tests.py", _RUNNER.encode())
    not_counted: list[str] = []
    if patch:
        failure, not_counted = await _apply(workspace, instance, patch)
        if failure:
            return Outcome(passed=None, reason=failure)
    if instance.test_patch:
        result = await _apply_file(workspace, instance, "tests.patch", instance.test_patch.encode())
        if not result.ok:
            return Outcome(passed=None, reason=f"the test patch does not apply: {_last(result)}")
    return await _outcome(workspace, instance, env, not_counted)


async def _apply(workspace: Workspace, instance: Instance, patch: bytes) -> tuple[str, list[str]]:
    """Apply a submission; return why that failed, and the paths that do not count and were restored."""
    result = await _apply_file(workspace, instance, "submission.patch", patch, "--index")
    if not result.ok:
        return f"the changes do not apply: {_last(result)}", []
    test_paths = await _paths(workspace, instance, instance.test_patch)
    solution = await _paths(workspace, instance, instance.patch)
    diff = await _git(workspace, instance, ["git", "diff", "--cached", "--raw", "-z", "--no-renames", BASE])
    new_paths: list[str] = []
    old_paths: list[str] = []
    for mode, status, path in _raw(diff.stdout):
        if mode in _LINKS or path in test_paths or (path not in solution and decides_about_tests(path)):
            (new_paths if status == "A" else old_paths).append(path)
    for command, paths in ((["git", "rm", "-q", "-f"], new_paths), (["git", "checkout", "-q", BASE], old_paths)):
        if paths:
            names = "\0".join(paths)
            options = ["--pathspec-from-file=-", "--pathspec-file-nul"]
            result = await _git(workspace, instance, [*command, *options], stdin=names)
            if not result.ok:
                return f"the changes do not apply: {_last(result)}", []
    return "", sorted(new_paths + old_paths)


def decides_about_tests(path: str) -> bool:
    """Whether a file decides which tests run, and how.

    >>> decides_about_tests("tests/data/x.json"), decides_about_tests("src/conftest.py"), decides_about_tests("a/b.py")
    (True, True, False)
    """
    *folders, name = PurePosixPath(path).parts
    at_start = any(_AT_START.fullmatch("/".join((*folders, name)[at:])) for at in range(len(folders) + 1))
    is_test = bool(_TEST_FOLDERS.intersection((*folders, name))) or bool(_TEST_FILE.fullmatch(name))
    return is_test or name in _SETTINGS or at_start


def _raw(text: str) -> list[tuple[str, str, str]]:
    """Read `git diff --raw -z`: the new mode, the status and the path of each file."""
    parts = text.split("\0")
    return [(head.split()[1], head.split()[4][:1], path) for head, path in zip(parts[::2], parts[1::2], strict=False)]


async def _paths(workspace: Workspace, instance: Instance, patch: str) -> set[str]:
    if not patch:
        return set()
    await workspace.put(f"{_FOLDER}/listed.patch", patch.encode())
    result = await _git(workspace, instance, ["git", "apply", "--numstat", "-z", f"{_FOLDER}/listed.patch"])
    return {row.split("\t", 2)[-1] for row in result.stdout.split("\0") if row}


async def _outcome(workspace: Workspace, instance: Instance, env: Mapping[str, str], not_counted: list[str]) -> Outcome:
    ids = [*instance.fail_to_pass, *instance.pass_to_pass]
    nonce, canary = secrets.token_hex(16), f"canary_{secrets.token_hex(8)}"
    files = sorted({test.partition("::")[0] for test in ids})
    request = json.dumps({"nonce": nonce, "canary": canary, "files": files, "ids": ids})
    command = ["sh", "-c", f'exec "$(command -v python || command -v python3)" {_FOLDER}/run_tests.py']
    result = await workspace.exec(
        command, user="0", cwd=instance.workdir, env=env, stdin=request, timeout_s=instance.test_seconds
    )
    output = shorten(result.stderr.strip(), _SHOWN)
    facts: dict[str, Any] = {"output": output, "seconds": result.wall_s, "not_counted": tuple(not_counted[:_LISTED])}
    if result.status is ExecStatus.TIMEOUT:
        reason = f"the tests ran longer than {instance.test_seconds:g} s"
        return Outcome(passed=None, reason=reason, **facts)
    try:
        report: Any = json.loads(result.stdout)
    except (ValueError, RecursionError):
        report = None
    if not isinstance(report, dict) or report.get("nonce") != nonce or not isinstance(report.get("outcomes"), dict):
        return Outcome(passed=None, reason="the process of the tests ended without a report", **facts)
    outcomes = report["outcomes"]
    passes = passing_tests(instance.fail_to_pass, instance.pass_to_pass, outcomes)
    if passes and outcomes.get(canary) not in ("FAILED", "ERROR"):  # an error if a hook takes it for a function
        return Outcome(passed=None, reason="a test that must fail has not failed", **facts)
    return Outcome(passed=passes, **facts)


async def _apply_file(
    workspace: Workspace, instance: Instance, name: str, patch: bytes, *options: str
) -> CommandResult:
    await workspace.put(f"{_FOLDER}/{name}", patch)
    return await _git(workspace, instance, ["git", "apply", "--whitespace=nowarn", *options, f"{_FOLDER}/{name}"])


async def _git(workspace: Workspace, instance: Instance, command: list[str], *, stdin: str = "") -> CommandResult:
    env = {**GIT_ENV, "GIT_LITERAL_PATHSPECS": "1"}
    result = await workspace.exec(command, user="0", cwd=instance.workdir, env=env, stdin=stdin, timeout_s=_GIT_SECONDS)
    if result.truncated_stdout:
        raise EnvError(f"git lists more files of {instance.instance_id} than can be read")
    return result


def _last(result: CommandResult) -> str:
    lines = (result.stderr or result.stdout).strip().split("\n")
    return lines[-1][:300] or result.status.value


_PASSING = ("PASSED", "XFAIL")
_PATH_OPTION = re.compile(r"\[/(?!/)[^*]*/([^/*]*)\]")
_BUTTONS = {"MouseButton.LEFT": "1", "MouseButton.RIGHT": "3"}


def passing_tests(
    fail_to_pass: Sequence[str], pass_to_pass: Sequence[str], statuses: Mapping[str, str]
) -> frozenset[str]:
    """Return the tests that pass, and the skipped ones of PASS_TO_PASS; the task is resolved if these are all.

    These are the rules of SWE-bench 5.0 (`swebench.harness.grading`). A test that must fail and passes (XPASS) has no
    status there, as one that was not run.

    >>> statuses = {"a::x": "XFAIL", "a::y": "SKIPPED", "a::z[1 2]": "SKIPPED"}
    >>> sorted(passing_tests(["a::x", "a::y"], ["a::z[1"], statuses))
    ['a::x', 'a::z[1']

    Args:
        fail_to_pass: ids of tests, which may have lost their end.
        pass_to_pass: the same.
        statuses: of the tests that were run, by their whole ids: PASSED, FAILED, ERROR, SKIPPED, XFAIL or XPASS.
    """
    status_of = {alias: status for test, status in statuses.items() for alias in _aliases(test)} | dict(statuses)
    status_of = {test: status for test, status in status_of.items() if status != "XPASS"}
    stable_tests = (test for test in pass_to_pass if _status(test, status_of) in (*_PASSING, "SKIPPED"))
    fixed_tests = frozenset(test for test in fail_to_pass if _status(test, status_of) in _PASSING)
    return fixed_tests | (frozenset(stable_tests) - frozenset(fail_to_pass))


def _status(test: str, status_of: Mapping[str, str]) -> str:
    """The status of a test. An id without its closing bracket stands for all ids that begin so, if they agree."""
    if test in status_of or test.count("[") <= test.count("]"):
        return status_of.get(test, "")
    statuses = [status for other, status in status_of.items() if other.startswith(test)]
    return statuses[0] if len({status in _PASSING for status in statuses}) == 1 else ""


def _aliases(test: str) -> Sequence[str]:
    """What the log parsers of some repositories call a test: without the folders of a path, with numbers of buttons."""
    buttons = test
    for name, number in _BUTTONS.items():
        buttons = buttons.replace(name, number)
    return _PATH_OPTION.sub(r"[/\1]", test), buttons
