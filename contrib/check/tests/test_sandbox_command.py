"""`forge-env sandbox`: one JSON line for each run, and what each backend enforces."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from forge_env.cli.main import main

if sys.platform != "linux":
    pytest.skip("sandboxes need Linux", allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def info() -> dict[str, Any]:
    """What `sandbox info --json` prints. Every backend tests itself for it, which takes a second."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["sandbox", "info", "--json"]) == 0
    printed: dict[str, Any] = json.loads(out.getvalue())
    if "unavailable" in printed["backends"]["namespace"]:
        pytest.skip(printed["backends"]["namespace"]["unavailable"])
    return printed


def lines(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_run_prints_one_line_for_each_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "code.py").write_text("print(input())\nimport os\nprint(os.listdir())\nopen('x', 'w')")
    (tmp_path / "input").write_text("ä\n")
    arguments = ["sandbox", "run", str(tmp_path / "code.py"), "--stdin", str(tmp_path / "input"), "--repeat", "2"]
    assert main(arguments) == 0
    results = lines(capfd)
    assert [result["stdout"] for result in results] == ["ä\n[]\n"] * 2  # each in a fresh state
    wanted = {"status", "exit_code", "signal", "stdout", "stderr", "truncated_stdout", "truncated_stderr", "wall_s"}
    assert wanted | {"cpu_s", "peak_mem", "backend"} <= results[0].keys()
    assert (results[0]["status"], results[0]["backend"], results[0]["exit_code"]) == ("ok", "namespace", 0)


def test_the_code_finds_files_under_their_names(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "code.py").write_text("import os; print(sorted(os.listdir()), open('data').read())")
    (tmp_path / "data").write_text("1 2")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.bin").write_bytes(b"\xff")
    paths = [str(tmp_path / "code.py"), "--file", str(tmp_path / "data"), "--file", str(tmp_path / "more" / "b.bin")]
    assert main(["sandbox", "run", *paths]) == 0
    assert [result["stdout"] for result in lines(capfd)] == ["['b.bin', 'data'] 1 2\n"]


@pytest.mark.parametrize(
    ("code", "options", "status"),
    [
        ("1 / 0", [], "nonzero"),
        ("while True: pass", ["--wall", "0.3"], "timeout"),
        ("x = bytearray(1 << 28)", ["--memory", "64M"], "memory"),
    ],
)
def test_run_takes_standard_input_and_limits(
    code: str, options: list[str], status: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(code))
    assert main(["sandbox", "run", "-", "--backend", "namespace", *options]) == 1
    assert [result["status"] for result in lines(capfd)] == [status]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "no_such_file.py"], "no_such_file.py cannot be read"),
        (["run", "-", "--memory", "lots"], "--memory is 'lots'"),
        (["run", "-", "--wall", "0"], "--wall is 0"),
        (["run", "-", "--backend", "jail"], "--backend"),
        (["run", "-", "--file", "no_such_data"], "--file no_such_data cannot be read"),
        (["run", "-", "--file", "README.md", "--file", "docs/../README.md"], "two files called README.md"),
        (["run", "-", "--file", "/dev/.."], "--file /dev/.. cannot be read"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], message: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("print(1)"))
    assert main(["sandbox", *arguments]) == 2
    printed = capfd.readouterr()
    assert not printed.out and printed.err.startswith("error: ") and message in printed.err
    assert printed.err.count("\n") == 1


def test_info_says_what_is_enforced_and_what_is_missing(
    info: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["sandbox", "info"]) == 0
    text = capfd.readouterr().out
    assert "seccomp" in text and "memory_limit" in text and "namespace" in text
    assert "host_watch_denied" in text and "rtprio, sigpending, stack" in " ".join(text.split())
    measured = info["backends"]["namespace"]
    assert measured["seccomp"] is True and measured["host_watch_denied"] is True
    assert measured["capabilities_dropped"] is True and "stack" in measured["limits"]
