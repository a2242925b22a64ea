"""Mutation testing: every mutant of the table has its one place, edits are what they say, and one runs end to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from benchmarks.mutants import no_longer_killed, result_of
from benchmarks.mutation.copies import ROOT, Copy, PytestRun, Verdict, tracked_files
from benchmarks.mutation.source import PACKAGES, Lost, Mutant, Sources
from benchmarks.mutation.table import TABLE

LIMIT_S = 300.0
PLAIN = '''
class A:
    def size(self, left: int, right: int) -> int:
        """The sum."""
        return (
            left
            + right
        )

class B:
    def size(self, left: int) -> int:
        return left + left
'''


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources(ROOT)


@pytest.fixture
def small(tmp_path: Path) -> Sources:
    for package in PACKAGES:
        (tmp_path / package).mkdir()
    (tmp_path / "envs" / "one.py").write_text(PLAIN)
    (tmp_path / "agents" / "two.py").write_text("def free():\n    return 1\n\n\ndef size():\n    return 3 + 4 + 4\n")
    (tmp_path / "trainers" / "three.py").write_text("async def free():\n    return 2\n")
    return Sources(tmp_path)


def mutant(function: str, old: str, new: str, tests: tuple[str, ...] = ()) -> Mutant:
    return Mutant(name="a mistake", function=function, old=old, new=new, tests=tests)


def test_every_mutant_has_one_place_and_its_test_files(sources: Sources) -> None:
    names = {path.name for path in (ROOT / "tests").rglob("*.py")}
    problems = []
    for given in TABLE:
        try:
            sources.edited(given)
        except Lost as error:
            problems.append(f"{given.name}: {error}")
        problems += [f"{given.name}: there is no test file {name}" for name in given.tests if name not in names]
    assert problems == []


def test_the_table_is_large_and_names_each_mistake_once() -> None:
    assert len(TABLE) >= 66
    assert [name for name, count in Counter(given.name for given in TABLE).items() if count > 1] == []


def test_an_edit_is_found_by_function_and_text_whatever_its_white_space_is(small: Sources) -> None:
    path, changed = small.edited(mutant("A.size", "left + right", "left - right"))
    assert path == Path("envs/one.py")
    assert changed == PLAIN.replace("left\n            + right", "left - right")


def test_the_fragment_tells_functions_of_one_name_apart(small: Sources) -> None:
    assert small.locate(mutant("free", "return 1", "return 0")).path == Path("agents/two.py")
    assert small.locate(mutant("free", "return 2", "return 0")).path == Path("trainers/three.py")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            mutant("A.gone", "left + right", ""),
            "there is no function A.gone; its text stands in A in envs/one.py, A.size",
        ),
        (mutant("A.size", "left * right", ""), "occurs not in A.size (envs/one.py); its text stands nowhere"),
        (mutant("size", "4", "5"), "occurs 2 times in size (agents/two.py)"),
        (mutant("free", "return", "yield"), "occurs 2 times in free (agents/two.py, trainers/three.py)"),
        (mutant("A.size", "left + right", "left +"), "envs/one.py is no Python after the edit"),
        (mutant("A.size", "left + right", "(left + right)"), "the edit leaves envs/one.py as it is"),
    ],
)
def test_what_cannot_be_located_is_lost_and_the_reason_helps_to_mend_it(
    given: Mutant, reason: str, small: Sources
) -> None:
    with pytest.raises(Lost) as error:
        small.edited(given)
    assert reason in str(error.value)


def test_the_end_of_pytest_is_the_verdict() -> None:
    assert PytestRun(0, "3 passed", 1.0).verdict == Verdict(status="survived", seconds=1.0)
    assert PytestRun(None, "", 1.0).verdict.status == "timeout" and PytestRun(None, "", 1.0).verdict.is_kill
    assert PytestRun(1, "..\nFAILED tests/a.py::test_b[1] - x\n", 1.0).verdict == Verdict(
        status="killed", detail="tests/a.py::test_b[1]", seconds=1.0
    )
    assert PytestRun(2, "ERROR tests/a.py - NameError\n", 1.0).verdict.detail == "tests/a.py"
    assert PytestRun(-11, "", 1.0).verdict.detail == "pytest ended by signal 11"
    assert PytestRun(5, "8 deselected", 1.0).verdict.status == "survived", "its tests are all slow"
    assert PytestRun(4, "usage", 1.0).verdict.status == "error" and not PytestRun(4, "", 1.0).verdict.is_kill


def test_what_was_killed_before_and_is_not_now_is_named(tmp_path: Path) -> None:
    names = ("still", "not any more", "gone", "never")
    statuses = ("killed", "timeout", "killed", "survived")
    mutants = [Mutant(name=name, function="f", old="a", new="b", tests=()) for name in names]
    before = {name: Verdict(status=status) for name, status in zip(names, statuses, strict=True)}  # type: ignore[arg-type]
    result = result_of(mutants, before, jobs=1, seconds=1.0)
    assert (
        result["counts"] == {"mutants": 4, "killed": 2, "survived": 1, "timeout": 1} and result["share_killed"] == 0.75
    )
    (tmp_path / "before.json").write_text(json.dumps(result))
    now = {
        "still": Verdict(status="killed"),
        "not any more": Verdict(status="lost"),
        "never": Verdict(status="survived"),
    }
    assert no_longer_killed(tmp_path / "before.json", now) == ["not any more", "gone"]


@pytest_asyncio.fixture
async def copy(tmp_path: Path) -> AsyncIterator[Copy]:
    made = Copy(tmp_path, tracked_files())
    yield made
    await made.close()


async def test_a_mutant_is_killed_in_a_copy_and_the_copy_is_as_before(sources: Sources, copy: Copy) -> None:
    given = mutant("Ledger.train", "self.trained += 1", "self.trained += 2", ("test_ledger.py",))
    path = sources.locate(given).path
    verdict = await copy.try_mutant(given, sources, LIMIT_S)
    assert verdict.status == "killed" and "test_ledger.py::" in verdict.detail, verdict
    assert (copy.root / path).read_bytes() == (ROOT / path).read_bytes()
    harmless = mutant("Ledger.train", "self.trained += 1", "self.trained += 2 - 1", ("test_ledger.py",))
    assert (await copy.try_mutant(harmless, sources, LIMIT_S)).status == "survived"
    assert (
        await copy.try_mutant(mutant("Ledger.train", "1", "2", ("test_gone.py",)), sources, LIMIT_S)
    ).status == "lost"
    late = await copy.try_mutant(given, sources, 0.01)
    assert late.status == "timeout" and (copy.root / path).read_bytes() == (ROOT / path).read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_leaves_nothing(number: int, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.mutants", "--only", "Ledger.train"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("1 mutants, 1 at a time")
    assert list(tmp_path.iterdir())
    process.send_signal(number)
    _, errors = process.communicate()
    assert errors == "stopped; nothing was written\n" and process.returncode == 130
    assert list(tmp_path.iterdir()) == []
