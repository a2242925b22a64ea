"""Hidden tests of programs: their kinds, how each is run, and what counts as passed.

Tests are plain data in `Task.target`: {"tests": [...], "prelude": code that is there before the answer}. The kinds are

    {"type": "call", "function": "f", "args": "1, [2]", "accepted": ["3"], "compare": "exact"}
    {"type": "stdin", "stdin": "1 2\\n", "stdout": "3\\n"}

Arguments and accepted values are Python literals, written as text. Each test runs in a new process that has one input
and never the expected value: a call returns its value as plain data, which is compared here. So a program returns
values and never a verdict.

A target that is a list, [[x, f(x)], ...], is one process for all of it: level 1 is graded thousands of times in a short
training run on CPUs, a second process would double the cost, and to see both inputs helps no answer that does not know
what is expected.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from envs.code_exec.values import ENCODER, accepts, decode, same
from forge_env.core.errors import ForgeError, SandboxError, first_error
from forge_env.core.sandbox import Call, ExecRequest, ExecResult, ExecStatus, Limits, Sandbox

Test = Mapping[str, Any]

TOTAL_SECONDS = 50.0
"""Limit of all tests of one answer. Together with the last test, of at most 61 s, it is below the scoring deadline."""
_CONCURRENCY = 4
_TOLERANCE = 1e-6
_PAIRS = "def _pairs(xs):\n    return [f(x) for x in xs]\n"
_FRACTION = re.compile(r"[+-]?\d*\.\d*(?:[eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of all tests. `reason` is why the first one failed; the model does not see it."""

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
        all_or_nothing: stop at the first failure. One test then runs before the others: most wrong answers fail it.
    """
    tests = tests_of(target)
    if not code.strip():
        return Verdict(passed=0, total=len(tests), reason="the answer is empty")
    prelude = target.get("prelude", "") if isinstance(target, Mapping) else ""
    run = _Run(sandbox, code, prelude, limits, all_or_nothing)
    await run.all(random.Random(repr(seed)).sample(tests, len(tests)))
    return Verdict(passed=run.num_passed, total=len(tests), reason=run.reason)


def tests_of(target: Any) -> list[Test]:
    if isinstance(target, Mapping):
        return list(target["tests"])
    return [{"type": "pairs", "pairs": target}]


def same_output(output: str, expected: str) -> bool:
    """Compare the output of a program as programming contests do.

    The amount of white space in a line, white space at its end, and empty lines at the end are ignored. Words are
    compared as text. Where a number with a decimal point is expected, it may differ by 1e-6, absolutely or relative to
    the expected number.

    >>> same_output("1  2 \\n0.33333334\\n\\n", "1 2\\n0.333333333"), same_output("1\\n2", "1 2")
    (True, False)
    """
    ours, theirs = (text.rstrip().split("\n") for text in (output, expected))
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def without_fault(result: ExecResult) -> ExecResult:
    """Raise SandboxError for a failure of the sandbox itself."""
    if result.status is ExecStatus.SANDBOX_ERROR:
        raise SandboxError(f"the {result.backend} sandbox failed: {result.error}")
    return result


class _Run:
    def __init__(self, sandbox: Sandbox, code: str, prelude: str, limits: Limits, all_or_nothing: bool) -> None:
        self._sandbox, self._code, self._prelude, self._limits = sandbox, code, prelude, limits
        self._all_or_nothing = all_or_nothing
        self._seconds, self.num_passed, self.reason = 0.0, 0, ""

    async def all(self, tests: Sequence[Test]) -> None:
        alone = 1 if self._all_or_nothing else 0
        for test in tests[:alone]:
            await self._one(test)
        rest = iter(tests[alone:])
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(_CONCURRENCY, len(tests) - alone)):
                    group.create_task(self._several(rest))
        except* ForgeError as errors:
            raise first_error(errors) from None

    async def _several(self, tests: Iterator[Test]) -> None:
        while not self._is_over() and (test := next(tests, None)) is not None:
            await self._one(test)

    def _is_over(self) -> bool:
        is_late = self._seconds > TOTAL_SECONDS
        if is_late:
            self.reason = self.reason or f"all tests together took longer than {TOTAL_SECONDS:g} s"
        return is_late or (self._all_or_nothing and bool(self.reason))

    async def _one(self, test: Test) -> None:
        request = _request(test, self._code, self._prelude, self._limits)
        result = without_fault(await self._sandbox.run(request))
        self._seconds += result.wall_s
        reason = _why_not(test, result)
        self.num_passed += not reason
        self.reason = self.reason or reason


def _request(test: Test, code: str, prelude: str, limits: Limits) -> ExecRequest:
    """Return the request of a test. Code of the test is set-up code, so the text of the answer is not changed."""
    if test["type"] == "stdin":
        enough = max(limits.output_bytes, 2 * len(test["stdout"].encode("utf-8", "replace")))
        return ExecRequest(code=code, setup=prelude, stdin=test["stdin"], limits=replace(limits, output_bytes=enough))
    if test["type"] == "pairs":
        arguments = [x for x, _ in test["pairs"]]
        return ExecRequest(code=code, setup=_PAIRS, call=Call(function="_pairs", args=[arguments]), limits=limits)
    value = f"{test['function']}({test['args']})"
    if kind := {"truth": "bool", "tuple": "tuple", "set": "set"}.get(test.get("compare", "")):
        value = f"{kind}({value})"  # the value may be other than plain data
    setup = f"{prelude}\n{ENCODER}\ndef _case():\n    return _plain({value})\n"
    return ExecRequest(code=code, setup=setup, call=Call(function="_case"), limits=limits)


def _why_not(test: Test, result: ExecResult) -> str:
    if result.status is not ExecStatus.OK:
        last = result.stderr.strip().rpartition("\n")[2]
        return f"{result.status.value.replace('_', ' ')}: {last}"[:300].rstrip(": ")
    if test["type"] == "stdin":
        right = not result.truncated_stdout and same_output(result.stdout, test["stdout"])
        return "" if right else f"printed {result.stdout!r:.100} for the input {test['stdin']!r:.100}"
    try:
        value = decode(result.value)
    except ValueError:
        return "the value is no plain data"
    if test["type"] == "pairs":
        right = same(value, [y for _, y in test["pairs"]])
        return "" if right else f"returned {_show(value)} for {[x for x, _ in test['pairs']]!r:.100}"
    return "" if accepts(test, value) else f"{test['function']}({test['args']:.100}) returned {_show(value)}"


def _show(value: Any) -> str:
    try:
        return f"{value!r:.100}"
    except RecursionError:
        return "a value that is nested too deeply"


def _same_line(output: str, expected: str) -> bool:
    ours, theirs = output.split(), expected.split()
    return len(ours) == len(theirs) and all(map(_same_word, ours, theirs))


def _same_word(output: str, expected: str) -> bool:
    if output == expected:
        return True
    if not _FRACTION.fullmatch(expected):
        return False
    try:
        ours, theirs = float(output), float(expected)
    except ValueError:
        return False
    return abs(ours - theirs) <= _TOLERANCE * max(1.0, abs(theirs))  # false for nan and infinity
