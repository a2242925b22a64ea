"""`forge-env check`: its exit codes and tables, what it says of broken code, and environments of all origins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contrib.check.report import CheckReport, CheckRow
from forge_env.cli.main import main
from tests.forge_env.cli.test_cli import (  # noqa: F401 (fixtures)
    Run,
    changes_only_what_is_read,
    data_of,
    in_a_process,
    is_one_sentence,
    project,
    run,
)
from tests.forge_env.core.test_user_code import shop  # noqa: F401 (a fixture)
from tests.forge_env.rollout.test_task_list import SENTENCES, SOURCE


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "math", "--options", "level"], ["name=value"]),
        (["check", "math", "--options", "levle=2"], ["no option 'levle'"]),
    ],
)
def test_a_mistake_is_one_sentence_in_json_too(run: Run, arguments: list[str], words: list[str]) -> None:  # noqa: F811
    is_one_sentence(run, arguments, words)


def test_help_lists_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    main([])
    assert "  check " in capfd.readouterr().out


def test_a_new_environment_passes_its_check_at_once(run: Run, project: Path) -> None:  # noqa: F811
    data_of(run("new", "word_game", "--path", "games", "--json"))
    folder = project / "games" / "word_game"
    done = in_a_process("check", "word_game", "--options", "letters=xyz", "--json", cwd=folder / "tests")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["ok"] is True


def test_a_failed_check_is_exit_code_1_and_a_skipped_one_is_none(
    run: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [CheckRow(name="gold", ok=True, detail="[fine]"), CheckRow(name="cheats", ok=None, detail="none")]

    async def report(factory: Any, *, seed: int, tasks: int, progress: Any, **settings: Any) -> CheckReport:
        print(f"{factory.name} {seed} {tasks}")
        progress("gold")
        settings["on_episode"](1)
        return CheckReport(name=factory.name, rows=tuple(rows))

    monkeypatch.setattr("contrib.check.run_checks", report)
    code, out, err = run("check", "math", "--seed", "3", "--tasks", "2", "--json")
    assert (code, json.loads(out)["ok"], err) == (0, True, "math 3 2\n")
    rows.append(CheckRow(name="seeds", ok=None, detail="the budget", unfinished=True))
    assert json.loads(run("check", "math", "--json")[1])["not_checked"] == ["seeds"]
    assert "3 checks, none failed; not checked: seeds" in run("check", "math")[1]
    rows.append(CheckRow(name="leaks", ok=False, detail="a thread is left"))
    assert json.loads(run("check", "math", "--json")[1])["ok"] is False
    code, out, _ = run("check", "math")
    assert code == 1
    assert [
        w for w in ("[fine]", "skipped", "FAILED", "a thread is left", "1 of 4 checks failed") if w not in out
    ] == []


def test_chosen_checks_within_a_budget(run: Run) -> None:  # noqa: F811
    settings = ("--only", "gold-answers, constants", "--seconds", "60", "--option", "level=2")
    code, out, _ = run("check", "math", "--tasks", "1", *settings, "--json")
    assert code == 0
    names = [row["name"] for row in json.loads(out)["rows"]]
    assert names == ["tasks", "contract", "reward", "gold answers", "constants", "open and close"]
    assert "there is no check 'golds'" in run("check", "math", "--only", "golds")[2]


def test_check_tells_it_as_a_finding(
    shop: Path,  # noqa: F811
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "shop.py:Shop", "--tasks", "2", "--only", "contract,leaks", "--json"]) == 1
    out, err = capfd.readouterr()
    assert "tool buy (shop.py:18): SystemExit: sold out" in out
    assert "Traceback" not in out + err


@pytest.mark.parametrize("name", ["Raises", "Later", "NumberAsKind"])
def test_bad_tasks_are_a_finding(name: str, project: Path, capfd: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    (project / "bad.py").write_text(SOURCE)
    assert main(["check", f"bad.py:{name}", "--tasks", "1", "--only", "tasks", "--json"]) == 1
    (row,) = [row for row in json.loads(capfd.readouterr().out)["rows"] if row["name"] == "tasks"]
    assert row["detail"] == SENTENCES[name].replace("'test'", "'train'")
