"""What the model is shown: windows of files, outputs of commands, and replacements that are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrib.workspaces.contract import CommandResult
from contrib.workspaces.env.output import describe, number_lines, replace_once, shorten
from forge_env.core.sandbox import ExecStatus


@given(st.text(max_size=60), st.integers(2, 30))
def test_a_shortened_text_keeps_both_ends_and_says_how_much_is_left_out(text: str, limit: int) -> None:
    short = shorten(text, limit)
    if len(text) <= limit:
        assert short == text
    else:
        assert short.startswith(text[: limit - limit // 2]) and short.endswith(text[len(text) - limit // 2 :])
        assert f"[{len(text) - limit} characters left out]" in short


@given(st.lists(st.text("ab ", max_size=5), min_size=1, max_size=30), st.integers(1, 10))
def test_windows_of_a_file_put_together_are_the_file(lines: list[str], count: int) -> None:
    text, start, seen = "\n".join(lines) + "\n", 1, []
    while True:
        window = number_lines(text, "f", start, count).split("\n")
        body = window if start == 1 and len(lines) <= count else window[:-1]
        seen += [line.partition("  ")[2] for line in body]
        start += count
        if start > len(lines):
            break
        assert window[-1].endswith(f"read on with start={start}]")
    assert seen == lines


@pytest.mark.parametrize("start", [0, 3, 99])
def test_a_window_beyond_the_file_is_explained(start: int) -> None:
    assert number_lines("a\nb\n", "f", start, 5) == "[f has 2 lines: start is 1 to 2]"
    assert number_lines("", "f", 1, 5) == "[f is empty]"


def test_a_passage_is_replaced_where_it_occurs_once() -> None:
    assert replace_once("a\nb\nc", "b\n", "B\n", "f") == "a\nB\nc"
    with pytest.raises(ValueError, match=r"f contains this passage 2 times \(lines 1, 3\)"):
        replace_once("x\ny\nx", "x", "z", "f")
    with pytest.raises(ValueError, match="does not contain this passage"):
        replace_once("x", "y", "z", "f")
    with pytest.raises(ValueError, match="old is empty"):
        replace_once("x", "", "z", "f")


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (CommandResult(status=ExecStatus.OK, exit_code=0), "[no output]"),
        (CommandResult(status=ExecStatus.OK, exit_code=0, stdout="a\n", stderr="b\n"), "a\nb"),
        (CommandResult(status=ExecStatus.NONZERO, exit_code=3), "[exit code 3]"),
        (CommandResult(status=ExecStatus.SIGNALED, signal=11), "[killed by signal 11]"),
        (CommandResult(status=ExecStatus.TIMEOUT, wall_s=6.4), "[killed: it ran longer than 5 s]"),
        (CommandResult(status=ExecStatus.MEMORY, state_lost=True), "[killed by the limit of memory]\n[the shell has"),
        (
            CommandResult(status=ExecStatus.OK, stdout="a\n", state_lost=True, in_new_shell=True),
            "a\n[the shell had ended: this command ran in a new one]",
        ),
        (CommandResult(status=ExecStatus.OUTPUT_LIMIT), "[killed by the limit of output]"),
        (
            CommandResult(status=ExecStatus.OK, stdout="a", truncated_stdout=True, stdout_bytes=9),
            "a\n[the output was cut: it had 9 bytes]",
        ),
    ],
)
def test_a_result_says_how_the_command_ended(result: CommandResult, shown: str) -> None:
    assert describe(result, 5.0).startswith(shown)


@pytest.mark.parametrize("status", [ExecStatus.TIMEOUT, ExecStatus.OUTPUT_LIMIT])
def test_how_much_a_killed_command_had_written_is_not_said(status: ExecStatus) -> None:
    shown = [
        describe(CommandResult(status=status, stdout="a", truncated_stdout=True, stdout_bytes=size, wall_s=size), 5.0)
        for size in (8, 9)
    ]
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("....  [100%]\n4 passed in 0.01s", "....  [100%]\n4 passed"),
        ("= 1 failed, 2 passed, 3 warnings in 75.12s (0:01:15) =", "=== 1 failed, 2 passed, 3 warnings ==="),
        ("===== no tests ran in 0.00s =====", "=== no tests ran ==="),
        ("=== no tests collected, 1 error in 0.05s ===", "=== no tests collected, 1 error ==="),
        ("= 1/12 tests collected (11 deselected) in 0.00s =", "=== 1/12 tests collected (11 deselected) ==="),
        ("Ran 3 tests in 0.002s\n\nOK", "Ran 3 tests\n\nOK"),
        ("it took 4 passed in 0.01s", "it took 4 passed in 0.01s"),
        ("sleeps in 0.5s", "sleeps in 0.5s"),
        ("assert 3 in 0.5s of x", "assert 3 in 0.5s of x"),
    ],
)
def test_seconds_of_test_runs_are_left_out_and_nothing_else(written: str, shown: str) -> None:
    assert describe(CommandResult(status=ExecStatus.OK, exit_code=0, stderr=written), 5.0) == shown
