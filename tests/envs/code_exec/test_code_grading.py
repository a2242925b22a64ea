"""Grading of programs: values come out as data, each test has its own process, outputs compare as in contests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envs.code_exec import grading
from envs.code_exec.grading import Verdict, grade, same_output
from envs.code_exec.values import ENCODER, accepts, decode, same
from forge_env.core.errors import SandboxError
from forge_env.core.sandbox import ExecRequest, ExecResult, ExecStatus, Limits, Sandbox
from sandboxes import open_sandbox

shared_loop = pytest.mark.asyncio(loop_scope="module")
LIMITS = Limits(wall_s=5.0, cpu_s=4.0)


class Counting:
    """The real sandbox, and the requests that were made of it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.requests: list[ExecRequest] = []
        self.fails = False

    async def run(self, request: ExecRequest) -> ExecResult:
        self.requests.append(request)
        if self.fails and len(self.requests) > 1:
            return ExecResult(status=ExecStatus.SANDBOX_ERROR, backend="broken", error="no more processes")
        return await self._sandbox.run(request)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Sandbox]:
    async with open_sandbox() as opened:
        yield opened


@pytest.fixture
def sandbox(shared: Sandbox) -> Counting:
    return Counting(shared)


def call(args: str, *accepted: str, **more: Any) -> dict[str, Any]:
    return {"type": "call", "function": "f", "args": args, "accepted": list(accepted), **more}


def stdin(given: str, printed: str) -> dict[str, Any]:
    return {"type": "stdin", "stdin": given, "stdout": printed}


DOUBLES = {"tests": [call(str(x), str(2 * x)) for x in range(8)]}


async def passed(sandbox: Any, code: str, *tests: dict[str, Any], prelude: str = "", limits: Limits = LIMITS) -> int:
    target = {"tests": tests, "prelude": prelude}
    return (await grade(sandbox, code, target, limits=limits, all_or_nothing=False)).passed


@shared_loop
async def test_each_case_has_a_fresh_process(sandbox: Any) -> None:
    """What one call leaves behind, in memory or in a file, no other finds."""
    code = """import os
n = 0
def f(x):
    global n
    n += 1
    found = os.path.exists('/tmp/left')
    open('/tmp/left', 'w').close()
    return 2 * x if n == 1 and not found else 'seen'"""
    assert await grade(sandbox, code, DOUBLES, limits=LIMITS) == Verdict(passed=8, total=8)
    assert len(sandbox.requests) == 8


@shared_loop
async def test_no_expected_value_enters_the_sandbox(sandbox: Any) -> None:
    target = {"tests": [call("3", "271828"), stdin("3", "314159")]}
    await grade(sandbox, "def f(x): return 1", target, limits=LIMITS, all_or_nothing=False)
    assert len(sandbox.requests) == 2
    assert not any(secret in repr(request) for request in sandbox.requests for secret in ("271828", "314159"))


@shared_loop
async def test_a_wrong_answer_costs_one_process_where_all_is_asked_for(sandbox: Any) -> None:
    verdict = await grade(sandbox, "def f(x): return 'no'", DOUBLES, limits=LIMITS)
    assert (verdict.passed, verdict.total, len(sandbox.requests)) == (0, 8, 1)
    assert "returned 'no'" in verdict.reason
    await grade(sandbox, "def f(x): return 'no'", DOUBLES, limits=LIMITS, all_or_nothing=False)
    assert len(sandbox.requests) == 1 + 8


@shared_loop
async def test_the_order_is_drawn(sandbox: Any) -> None:
    orders = []
    for seed in (0, 0, 1):
        sandbox.requests = []
        await grade(sandbox, "def f(x): return 2 * x", DOUBLES, limits=LIMITS, seed=seed)
        orders.append([request.setup[-4:] for request in sandbox.requests])
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


@shared_loop
async def test_an_empty_answer_costs_nothing(sandbox: Any) -> None:
    verdict = await grade(sandbox, " \n", DOUBLES, limits=LIMITS)
    assert verdict == Verdict(passed=0, total=8, reason="the answer is empty")
    assert sandbox.requests == []


@pytest.mark.parametrize("all_or_nothing", [True, False])
@shared_loop
async def test_a_sandbox_that_fails_is_no_verdict(sandbox: Any, all_or_nothing: bool) -> None:
    sandbox.fails = True
    with pytest.raises(SandboxError, match="no more processes"):
        await grade(sandbox, "def f(x): return 2 * x", DOUBLES, limits=LIMITS, all_or_nothing=all_or_nothing)


@shared_loop
async def test_an_endless_answer_fails_each_test_by_its_own_limit(sandbox: Any) -> None:
    code = "def f(x):\n    while x == 1: pass\n    return 2 * x"
    limits = Limits(wall_s=0.5)
    verdict = await grade(sandbox, code, DOUBLES, limits=limits, all_or_nothing=False)
    assert (verdict.passed, verdict.reason) == (7, "timeout")


@shared_loop
async def test_slow_answers_run_out_of_time_together(sandbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "TOTAL_SECONDS", 0.0)
    verdict = await grade(sandbox, "def f(x): return 2 * x", DOUBLES, limits=LIMITS)
    assert 0 < verdict.passed < 8
    assert verdict.reason == "all tests together took longer than 0 s"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.integers() | st.text() | st.tuples(st.integers()), inner)
        | st.sets(st.integers() | st.booleans() | st.text())
        | st.frozensets(st.text())
    ),
    max_leaves=20,
)
ENCODER_NAMES: dict[str, Any] = {}
exec(ENCODER, ENCODER_NAMES)


@settings(deadline=None)
@given(VALUES)
def test_every_plain_value_comes_out_as_it_was(value: Any) -> None:
    encoded = json.dumps(ENCODER_NAMES["_plain"](value))
    assert same(decode(encoded), value)


WRITTEN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**300, 10**500) | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(), inner)
        | st.dictionaries(
            st.sampled_from(["tuple", "dict", "set", "frozenset", "bytes", "complex"]),
            inner | st.lists(inner, max_size=2),
        )
    ),
)


@settings(deadline=None)
@given(WRITTEN)
@example({"complex": [10**400, 0]})
def test_whatever_foreign_code_writes_is_a_value_or_a_value_error(written: Any) -> None:
    try:
        value = decode(json.dumps(written))
    except ValueError:
        return
    for compare in ("exact", "equal", "json", "truth", "tuple", "set", "close"):
        accepts(call("", "True", compare=compare), value)


@pytest.mark.parametrize("text", [None, "", "{", "[" * 100_000, '{"set": [[1]]}', '{"bytes": "zz"}', '{"any": 1}'])
def test_what_is_no_value(text: str | None) -> None:
    with pytest.raises(ValueError):
        decode(text)


@pytest.mark.parametrize(
    ("value", "other"),
    [(1, True), (1, 1.0), ([1], (1,)), ({1: 2}, {True: 2}), ({1}, {1.0}), ([[0]], [[False]]), ({"a": 1}, {"a": 1.0})],
)
def test_types_count(value: Any, other: Any) -> None:
    assert value == other or value == list(other)
    assert not same(value, other) and not same(other, value)


@pytest.mark.parametrize(
    ("test", "value", "right"),
    [
        (call("", "3"), 3, True),
        (call("", "3"), 3.0, False),
        (call("", "3", compare="equal"), 3.0, True),
        (call("", "(1, 2)", compare="equal"), [1, 2], False),
        (call("", "[1, [2]]", compare="json"), (1, (2,)), True),
        (call("", "[3]", "3", compare="json"), 3, True),
        (call("", "True", compare="truth"), "yes", True),
        (call("", "False", compare="truth"), [], True),
        (call("", "0.5", compare="close", abs_tol=1e-6), 0.5000001, True),
        (call("", "0.5", compare="close", abs_tol=1e-6), 0.51, False),
        (call("", "100", compare="close", rel_tol=0.01), 100.5, True),
        (call("", "0.5", compare="close", abs_tol=1e-6), float("nan"), False),
        (call("", "1.0", compare="close", abs_tol=1e-6), True, False),
        (call("", "[1, 2]"), [1], False),
        (call("", "[1]"), [1, 2], False),
        (call("", "0.5", compare="close", abs_tol=1e-6), 10**400, False),
    ],
)
def test_what_a_call_test_accepts(test: dict[str, Any], value: Any, right: bool) -> None:
    assert accepts(test, value) is right


@shared_loop
async def test_values_of_every_kind_from_the_sandbox(sandbox: Any) -> None:
    code = """import collections, re
P = collections.namedtuple('P', 'x y')
def f(kind):
    return {'dict': {1: (2, {3})}, 'counter': collections.Counter('aab'), 'point': P(1, 2), 'bytes': b'\\xff',
            'match': re.match('a', 'a'), 'big': 10 ** 300, 'text': '\\ud800', 'complex': 1j, 'lines': 'a\\nb'}[kind]"""
    accepted = {"dict": "{1: (2, {3})}", "counter": "{'a': 2, 'b': 1}", "point": "(1, 2)", "bytes": "b'\\xff'"}
    accepted |= {"big": str(10**300), "text": "'\\ud800'", "complex": "1j", "lines": "'a\\nb'"}
    tests = [call(repr(kind), text) for kind, text in accepted.items()]
    assert await passed(sandbox, code, *tests, call("'match'", "True", compare="truth")) == len(tests) + 1
    assert await passed(sandbox, code, call("'match'", "True")) == 0


@shared_loop
async def test_a_prelude_and_the_future(sandbox: Any) -> None:
    code = "from __future__ import annotations\ndef f(x: Unknown): return helper(x)"
    assert await passed(sandbox, code, call("2", "4"), prelude="def helper(x): return 2 * x") == 1


@shared_loop
async def test_the_values_of_a_list_of_pairs_are_of_its_types(sandbox: Any) -> None:
    for code, number in (("def f(x): return 2 * x", 1), ("def f(x): return 2.0 * x", 0)):
        assert (await grade(sandbox, code, [[1, 2], [3, 6]], limits=LIMITS)).passed == number


SUM = "n = int(input())\nprint(sum(int(input()) for _ in range(n)))"


@shared_loop
async def test_programs(sandbox: Any) -> None:
    tests = [stdin("2\n1\n2\n", "3\n"), stdin("0\n", "0"), stdin("1\n-5", "-5")]
    assert await passed(sandbox, SUM, *tests) == 3
    assert (
        await passed(sandbox, f"if __name__ == '__main__':\n    {SUM.replace(chr(10), chr(10) + '    ')}", *tests) == 3
    )
    assert await passed(sandbox, SUM + "\nimport sys; sys.exit(1)", *tests) == 0
    assert await passed(sandbox, "print(3)", *tests) == 1


@shared_loop
async def test_long_output_is_whole_and_a_flood_fails(sandbox: Any) -> None:
    long = "\n".join(map(str, range(30_000)))
    assert len(long) > LIMITS.output_bytes
    assert await passed(sandbox, "print(*range(30_000), sep='\\n')", stdin("", long)) == 1
    assert await passed(sandbox, "while True: print('1')", stdin("", "1")) == 0
    short = replace(LIMITS, output_bytes=100)
    assert await passed(sandbox, "print('1' + 500 * ' ')", stdin("", "1"), limits=short) == 0, "more may follow"


@pytest.mark.parametrize(
    ("printed", "expected", "right"),
    [
        *(("1 2\n", "1 2", True), ("1  2 \r\n\n\n", "1 2\n", True), ("", "", True), ("", "0", False)),
        *(("\n1", "1", False), ("1 2", "1\n2", False), ("12", "1 2", False), ("1\n2", "1", False)),
        *(("1", "1\n2", False), ("1 2", "1", False), ("yes", "YES", False), ("2.0", "2", False), ("2", "2.0", True)),
        *(("0.33333334", "0.3333333333", True), ("1000000.5", "1000000.0", True), ("0.334", "0.333333", False)),
        *(("nan", "1.0", False), ("inf", "1.0", False), ("1e-9", "0.0", True)),
    ],
)
def test_outputs_compare_as_in_contests(printed: str, expected: str, right: bool) -> None:
    assert same_output(printed, expected) is right
