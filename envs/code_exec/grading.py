"""Hidden tests of programs: their kinds, how each is run, and what counts as passed.

Tests are plain data in `Task.target`: {"tests": [...], "prelude": code that is there before the answer}. The kinds are

    {"type": "call", "function": "f", "args": "1, [2]", "accepted": ["3"], "compare": "exact"}
    {"type": "stdin", "stdin": "1 2\\n", "stdout": "3\\n"}
    {"type": "asserts", "code": "def suite(): ..."}

Arguments and accepted values are Python literals, written as text. Each test runs in a fresh process that sees one
input and never the expected value: a call hands its value back as plain data, and the comparison is made here. What a
program says is a value and never a verdict.

`asserts` is code of a data set that cannot be translated. It runs in a process of its own, and the answer makes the
calls that it asks for in another one (see `assert_suites`). A target that is a list, [[x, f(x)], ...], is one
process for all of it: level 1 is graded thousands of times in a short training run on CPUs, a second process would
double the cost, and to see both inputs helps no answer that does not know what is expected.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from envs.code_exec.assert_suites import (
    AHEAD,
    MAX_RESULT_CHARACTERS,
    CannotRunApart,
    Round,
    Suite,
    answer_request,
    judge_request,
    read_outcomes,
    read_round,
    read_suite,
)
from envs.code_exec.values import ENCODER, accepts, decode, same
from forge_env.core.errors import EnvError, ForgeError, SandboxError, first_error
from forge_env.core.sandbox import Call, ExecRequest, ExecResult, ExecStatus, Limits, Sandbox

Test = Mapping[str, Any]

TOTAL_SECONDS = 50.0
"""Of all tests of one answer together. With the last one, of at most 61 s, it is below the deadline of the scoring."""
_AT_ONCE = 4
_REMEMBERED = 1000
_first_rounds: dict[tuple[Suite, str], Round] = {}
_TOLERANCE = 1e-6
_PAIRS = "def _pairs(xs):\n    return [f(x) for x in xs]\n"
_FRACTION = re.compile(r"[+-]?\d*\.\d*(?:[eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How many of the tests an answer passed. `reason` is why the first one failed, and is not for the model."""

    passed: int
    total: int
    reason: str = ""

    @property
    def share(self) -> float:
        return self.passed / self.total


async def grade(
    sandbox: Sandbox, code: str, target: Any, *, limits: Limits, all_or_nothing: bool = True, seed: object = 0
) -> Verdict:
    """Run the tests of a target against a program, in random order and several at once.

    Args:
        all_or_nothing: stop at the first that fails. One then runs before all others: a wrong answer is mostly done.
        seed: of the order.

    Raises:
        EnvError: a suite of asserts cannot be run apart from the program.
        SandboxError: the sandbox failed, which says nothing about the program.
    """
    tests = tests_of(target)
    if not code.strip():
        return Verdict(passed=0, total=len(tests), reason="the answer is empty")
    prelude = target.get("prelude", "") if isinstance(target, Mapping) else ""
    run = _Run(sandbox, code, prelude, limits, all_or_nothing)
    await run.all(random.Random(repr(seed)).sample(tests, len(tests)))
    return Verdict(passed=run.passed, total=len(tests), reason=run.reason)


def tests_of(target: Any) -> list[Test]:
    """Return the tests of a task's target."""
    if isinstance(target, Mapping):
        return list(target["tests"])
    return [{"type": "pairs", "pairs": target}]


def same_output(printed: str, expected: str) -> bool:
    """Compare what a program printed as graders of programming contests do.

    White space at the ends of lines, its amount inside them, and empty lines at the end do not count. Everything else
    is compared as text, but for numbers that are expected with a decimal point: they may differ by 1e-6, absolutely or
    relative to the expected one.

    >>> same_output("1  2 \\n0.33333334\\n\\n", "1 2\\n0.333333333"), same_output("1\\n2", "1 2")
    (True, False)
    """
    ours, theirs = (text.rstrip().split("\n") for text in (printed, expected))
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


class _Run:
    """The tests of one answer under way."""

    def __init__(self, sandbox: Sandbox, code: str, prelude: str, limits: Limits, all_or_nothing: bool) -> None:
        self._sandbox = sandbox
        self._code = code
        self._prelude = prelude
        self._limits = limits
        self._all_or_nothing = all_or_nothing
        self._seconds = 0.0
        self.passed = 0
        self.reason = ""

    async def all(self, tests: Sequence[Test]) -> None:
        alone = 1 if self._all_or_nothing else 0
        for test in tests[:alone]:
            await self._one(test)
        rest = iter(tests[alone:])
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(_AT_ONCE, len(tests) - alone)):
                    group.create_task(self._several(rest))
        except* ForgeError as errors:
            raise first_error(errors) from None

    async def _several(self, tests: Iterator[Test]) -> None:
        while not self._done():
            test = next(tests, None)
            if test is None:
                return
            await self._one(test)

    def _done(self) -> bool:
        if self._all_or_nothing and self.reason:
            return True
        if self._is_late:
            self.reason = self.reason or _late()
            return True
        return False

    @property
    def _is_late(self) -> bool:
        return self._seconds > TOTAL_SECONDS

    async def _one(self, test: Test) -> None:
        if test["type"] == "asserts":
            reason = await self._suite(test["code"])
        else:
            reason = _why_not(test, await self._execute(_request(test, self._code, self._prelude, self._limits)))
        self.passed += not reason
        self.reason = self.reason or reason

    async def _execute(self, request: ExecRequest) -> ExecResult:
        result = await self._sandbox.run(request)
        if result.status is ExecStatus.SANDBOX_ERROR:
            raise SandboxError(f"the {result.backend} sandbox failed: {result.error}")
        self._seconds += result.wall_s
        return result

    async def _suite(self, source: str) -> str:
        """Run a suite apart from the answer, in rounds. Returns why it is not passed, or nothing."""
        try:
            suite = read_suite(source, self._prelude)
        except CannotRunApart as error:
            raise EnvError(f"the task's asserts cannot be run apart from the answer: {error}") from None
        known: list[Any] = []
        ahead = AHEAD
        while not self._is_late:
            judged = await self._round(suite, known, ahead)
            if not judged.asked:
                return judged.failed or judged.unfit
            known = known[: judged.kept]
            asked = judged.asked
            outcomes = await self._outcomes(known, asked)
            if isinstance(outcomes, str) and len(asked) > 1:  # the call that ended it may be a guess only
                ahead, asked = 1, asked[:1]
                outcomes = await self._outcomes(known, asked)
            if isinstance(outcomes, str):
                return outcomes
            known += zip(asked, outcomes, strict=True)
        return _late()

    async def _round(self, suite: Suite, known: Sequence[Any], ahead: int) -> Round:
        """Run a suite. Its first round depends on no answer, and is remembered."""
        key = (suite, self._prelude)
        if not known and key in _first_rounds:
            return _first_rounds[key]
        result = await self._execute(judge_request(suite, self._prelude, known, ahead, self._limits))
        if result.status is not ExecStatus.OK:
            if known:  # values of the answer were too much for it
                return Round(failed=f"the asserts ended: {_ended(result)}")
            raise EnvError(f"the task's asserts do not run by themselves: {_ended(result)}")
        judged = read_round(result.value)
        if judged.unfit and not (known and judged.is_of_answer):
            raise EnvError(f"the task's asserts cannot be run apart from the answer: {judged.unfit}")
        if not known and not judged.asked and judged.failed:
            raise EnvError(f"the task's asserts fail before they call the answer: {judged.failed}")
        if not known:
            if len(_first_rounds) >= _REMEMBERED:
                _first_rounds.clear()
            _first_rounds[key] = judged
        return judged

    async def _outcomes(self, known: Sequence[Any], asked: Sequence[Any]) -> list[Any] | str:
        """Have the answer make calls, after those that it has made. Returns their outcomes, or why there are none."""
        calls = [*(call for call, _ in known), *asked]
        outcomes: list[Any] = []
        characters = 0
        while len(outcomes) < len(asked):
            if self._is_late:
                return _late()
            start = len(known) + len(outcomes)
            result = await self._execute(answer_request(self._code, self._prelude, calls, start, self._limits))
            if result.status is not ExecStatus.OK:
                return _ended(result)
            characters += len(result.value or "")
            if characters > MAX_RESULT_CHARACTERS:
                return f"its results have more than {MAX_RESULT_CHARACTERS} characters of JSON"
            try:
                outcomes += read_outcomes(result.value)
            except ValueError:
                return "the value is no plain data"
        return outcomes[: len(asked)]


def _request(test: Test, code: str, prelude: str, limits: Limits) -> ExecRequest:
    """Everything of ours is set-up code, which runs before the answer: the answer's text stays as it is."""
    if test["type"] == "stdin":
        enough = max(limits.output_bytes, 2 * len(test["stdout"].encode("utf-8", "replace")))
        return ExecRequest(code=code, setup=prelude, stdin=test["stdin"], limits=replace(limits, output_bytes=enough))
    if test["type"] == "pairs":
        arguments = [x for x, _ in test["pairs"]]
        return ExecRequest(code=code, setup=_PAIRS, call=Call(function="_pairs", args=[arguments]), limits=limits)
    value = f"{test['function']}({test['args']})"
    if test.get("compare") == "truth":
        value = f"bool({value})"  # of what need not be plain data
    setup = f"{prelude}\n{ENCODER}\ndef _case():\n    return _plain({value})\n"
    return ExecRequest(code=code, setup=setup, call=Call(function="_case"), limits=limits)


def _why_not(test: Test, result: ExecResult) -> str:
    """Return why a test is not passed, in one line, or nothing."""
    if result.status is not ExecStatus.OK:
        return _ended(result)
    if test["type"] == "stdin":
        right = not result.truncated_stdout and same_output(result.stdout, test["stdout"])
        return "" if right else f"printed {result.stdout!r:.100} for the input {test['stdin']!r:.100}"
    try:
        value = decode(result.value)
    except ValueError:
        return "the value is no plain data"
    if test["type"] == "pairs":
        right = same(value, [y for _, y in test["pairs"]])
        return "" if right else f"returned {_shown(value)} for {[x for x, _ in test['pairs']]!r:.100}"
    return "" if accepts(test, value) else f"{test['function']}({test['args']:.100}) returned {_shown(value)}"


def _late() -> str:
    return f"all tests together took longer than {TOTAL_SECONDS:g} s"


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.100}"
    except RecursionError:
        return "a value that is nested too deeply"


def _ended(result: ExecResult) -> str:
    """Return how a process ended that did not end well."""
    last = result.stderr.strip().rpartition("\n")[2]
    return f"{result.status.value.replace('_', ' ')}: {last}"[:300].rstrip(": ")


def _same_line(printed: str, expected: str) -> bool:
    ours, theirs = printed.split(), expected.split()
    return len(ours) == len(theirs) and all(map(_same_word, ours, theirs))


def _same_word(printed: str, expected: str) -> bool:
    if printed == expected:
        return True
    if not _FRACTION.fullmatch(expected):
        return False
    try:
        ours, theirs = float(printed), float(expected)
    except ValueError:
        return False
    return abs(ours - theirs) <= _TOLERANCE * max(1.0, abs(theirs))  # false for nan and infinity
