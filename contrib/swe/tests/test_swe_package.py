"""The rules of `contrib.swe.verdict` beside swebench's own grading of logs: made ones of its parsers, and real
ones."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from contrib.swe.verdict import passing_tests
from tests.envs.own_interpreter import own_interpreter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PACKAGE = "swebench==5.0.2"
STATUSES = ("PASSED", "PASSED", "PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS")
PARSERS = ("parse_log_pytest", "parse_log_pytest_v2", "parse_log_pytest_options", "parse_log_matplotlib")
Row = dict[str, Any]


def verdicts(rows: Sequence[Row]) -> list[bool]:
    command = [str(own_interpreter(PACKAGE)), str(Path(__file__).with_name("package_verdicts.py"))]
    done = subprocess.run(command, input=json.dumps(rows), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return list(json.loads(done.stdout))


def ours(row: Row, statuses: Mapping[str, str]) -> bool:
    wanted = {*row["fail_to_pass"], *row["pass_to_pass"]}
    return passing_tests(row["fail_to_pass"], row["pass_to_pass"], statuses) == wanted


def row_of(draw: random.Random, parser: str, log: str, statuses: Mapping[str, str], *, cut: float = 0.5) -> Row:
    """A row that a log is graded by; half of them ask for what passes, so that there are both verdicts."""
    good = [test for test, status in statuses.items() if status in ("PASSED", "XFAIL")]
    may_skip = [*good, *(test for test, status in statuses.items() if status == "SKIPPED")]
    pools = (good, may_skip) if draw.random() < 0.5 else (list(statuses), list(statuses))
    chosen = [draw.sample(pool, min(len(pool), draw.randrange(4))) for pool in pools]
    is_cut = draw.random() < cut
    fail_to_pass, pass_to_pass = ([_listed(test, is_cut) for test in tests] for tests in chosen)
    return {"parser": parser, "log": log, "fail_to_pass": fail_to_pass, "pass_to_pass": pass_to_pass}


def _listed(test: str, is_cut: bool) -> str:
    """An id as the data set has it, maybe without what follows a blank in its brackets."""
    test = test.replace("/usr/share/", "/").replace("MouseButton.LEFT", "1")
    return test.split()[0] if is_cut and "[" in test else test


def pytest_tests(draw: random.Random, parser: str) -> dict[str, str]:
    blank = " " if parser == "parse_log_pytest_v2" else "-"
    ends = ["", "[1]", f"[a{blank}b]", f"[a{blank}c]", f"[d{blank}e]"]
    ends += ["[/usr/share/f]"] * (parser == "parse_log_pytest_options")
    ends += ["[MouseButton.LEFT-g]"] * (parser == "parse_log_matplotlib")
    return {f"tests/test_{n}.py::test_x{end}": draw.choice(STATUSES) for n in range(2) for end in ends}


def pytest_log(tests: Mapping[str, str]) -> str:
    """The summary of `pytest -rA --no-fold-skipped`, with what comes before it."""
    order = ("PASSED", "SKIPPED", "XFAIL", "XPASS", "ERROR", "FAILED")
    lines = ["===== test session starts =====", "tests/test_0.py .Fs", "SKIPPED [2] tests/test_0.py:3: no display"]
    for status in order:
        end = " - assert 1 == 2" if status == "FAILED" else ""
        lines += [f"{status} {test}{end}" for test, each in tests.items() if each == status]
    return "\n".join([*lines, "===== 3 passed in 0.1s ====="])


def test_made_logs_of_its_parsers_have_its_verdicts() -> None:
    draw = random.Random(7)
    rows: list[Row] = []
    expected: list[bool] = []
    for number in range(160):
        parser = PARSERS[number % len(PARSERS)]
        statuses = pytest_tests(draw, parser)
        log = pytest_log(statuses)
        rows.append(row_of(draw, parser, log, statuses))
        expected.append(ours(rows[-1], statuses))
    theirs = verdicts(rows)
    different = [(row, mine) for row, mine, other in zip(rows, expected, theirs, strict=True) if mine != other]
    assert different == []
    assert 27 < sum(theirs) < 133, "both verdicts are there"


SOURCE = """
import unittest

import pytest

@pytest.fixture
def broken():
    raise OSError("no display")

@pytest.fixture
def broken_at_its_end():
    yield
    raise OSError("no display")

def test_passes(): pass
def test_fails(): assert 1 == 2
def test_errs(broken): pass
def test_errs_at_its_end(broken_at_its_end): pass
def test_skips(): pytest.skip("no display")
@pytest.mark.xfail
def test_must_fail(): assert 1 == 2
@pytest.mark.xfail
def test_must_fail_and_passes(): pass
@pytest.mark.xfail(strict=True)
def test_must_fail_strictly_and_passes(): pass

@pytest.mark.parametrize("text", ["same end a", "same end b", "mixed a", "mixed b", "fails a", "fails b", "skips a"])
def test_words(text):
    if text == "same end b":
        pytest.xfail("known")
    if text.startswith("skips"):
        pytest.skip("no display")
    assert not text.startswith("fails") and text != "mixed b"

class TestClass:
    def test_passes(self): pass
    @pytest.mark.parametrize("number", [1, 2])
    def test_numbers(self, number): assert number == 1

class TestOld(unittest.TestCase):
    def test_passes(self): pass
    def test_skips(self): self.skipTest("no display")
    @unittest.skip("no display")
    def test_is_skipped(self): pass
    @unittest.expectedFailure
    def test_must_fail(self): self.fail()
    @unittest.expectedFailure
    def test_must_fail_and_passes(self): pass
    def test_errs(self): raise OSError
    def test_parts(self):
        for number in range(2):
            with self.subTest(number=number):
                pass

class TestBroken(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise OSError
    def test_passes(self): pass

class TestSetUp(unittest.TestCase):
    def setUp(self): raise OSError
    def test_passes(self): pass
"""


def test_real_runs_of_pytest_have_its_verdicts(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(SOURCE)
    options = ["-rA", "--no-fold-skipped", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    command = [sys.executable, "-m", "pytest", *options, "tests/test_a.py"]
    log = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120).stdout
    names = [line.split(" ", 1)[1].partition(" - ")[0] for line in log.splitlines() if line.startswith(STATUSES)]
    request = {"nonce": "n", "canary": "canary_1", "files": ["tests/test_a.py"], "ids": names}
    runner = Path(sys.modules[passing_tests.__module__].__file__ or "").with_name("run_tests.py")
    done = subprocess.run(
        [sys.executable, str(runner)],
        cwd=tmp_path,
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=120,
    )
    statuses = json.loads(done.stdout)["outcomes"]
    assert statuses.pop("canary_1") == "FAILED" and set(names) <= statuses.keys()
    draw = random.Random(3)
    rows = [row_of(draw, "parse_log_pytest", log, statuses, cut=1.0) for _ in range(120)]
    for test in sorted({_listed(test, is_cut=True) for test in statuses}):
        row = {"parser": "parse_log_pytest", "log": log, "fail_to_pass": [], "pass_to_pass": []}
        rows += [{**row, "fail_to_pass": [test]}, {**row, "pass_to_pass": [test]}]
    theirs = verdicts(rows)
    pairs = zip(rows, theirs, strict=True)
    different = [row for row, other in pairs if ours(row, statuses) != other]
    assert [(row["fail_to_pass"], row["pass_to_pass"]) for row in different] == []
    assert 20 < sum(theirs) < 150
