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
from envs.code_exec.values import DECODER, ENCODER, accepts, decode, same
from forge_env.core.errors import EnvError, SandboxError
from forge_env.core.sandbox import Call, ExecRequest, ExecResult, ExecStatus, Limits, Sandbox
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


# ---- processes ----


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


# ---- values ----

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
exec(ENCODER + DECODER, ENCODER_NAMES)


@settings(deadline=None)
@given(VALUES)
def test_every_plain_value_comes_out_as_it_was(value: Any) -> None:
    encoded = json.dumps(ENCODER_NAMES["_plain"](value))
    assert same(decode(encoded), value)
    assert same(ENCODER_NAMES["_value"](json.loads(encoded)), value)


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
    for compare in ("exact", "equal", "json", "truth", "close"):
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


# ---- programs that read and print ----

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
        ("1 2\n", "1 2", True),
        ("1  2 \r\n\n\n", "1 2\n", True),
        ("\n1", "1", False),
        ("1 2", "1\n2", False),
        ("12", "1 2", False),
        ("1\n2", "1", False),
        ("1", "1\n2", False),
        ("1 2", "1", False),
        ("yes", "YES", False),
        ("0.33333334", "0.3333333333", True),
        ("1000000.5", "1000000.0", True),
        ("0.334", "0.333333", False),
        ("2.0", "2", False),
        ("2", "2.0", True),
        ("nan", "1.0", False),
        ("inf", "1.0", False),
        ("1e-9", "0.0", True),
        ("", "", True),
        ("", "0", False),
    ],
)
def test_outputs_compare_as_in_contests(printed: str, expected: str, right: bool) -> None:
    assert same_output(printed, expected) is right


# ---- suites of asserts ----


def suite(*lines: str) -> dict[str, Any]:
    return {"type": "asserts", "code": "def suite():\n" + "".join(f"    {line}\n" for line in lines)}


SORTS = suite("assert sorted(f(3)) == [0, 1, 2]")


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("def f(n): return range(n)", 1),
        ("def f(n): return dict.fromkeys(range(n)).keys()", 1),
        ("def f(n): yield from range(n)", 1),
        ("def f(n): return [0, 1]", 0),
        ("import os; os._exit(0)", 0),
        ("import sys; sys.exit(0)", 0),
        ("def f(n):\n    import os; os._exit(0)", 0),
        ("raise SystemExit", 0),
        ("def g(n): return range(n)", 0),
        ("def f(n):\n    while True: yield 1", 0),
    ],
)
@shared_loop
async def test_a_suite_passes_when_it_comes_to_its_end(sandbox: Any, code: str, number: int) -> None:
    limits = Limits(wall_s=0.4) if "while True" in code else LIMITS
    verdict = await grade(sandbox, code, {"tests": [SORTS]}, limits=limits)
    assert verdict.passed == number, verdict


APART = {
    "raises": suite(
        "try:", "    f(-1)", "    assert False", "except ValueError as error:", "    assert 'below' in str(error)"
    ),
    "calls of what was returned": suite("assert f(f(f(2))) == 16"),
    "a loop that a result ends": suite("x = 1", "while x < 100: x = f(x)", "assert x == 128"),
    "results outside of asserts": suite("xs = [f(n) + 1 for n in range(5)]", "assert xs == [1, 3, 5, 7, 9]"),
    "changed in place": suite("xs = [1, 2]", "assert f(xs) is None", "assert xs == [2, 4]"),
    "counts its calls": suite("assert [count() for _ in range(3)] == [1, 2, 3]"),
    "passed on": suite("assert list(map(f, [1, 2])) == [2, 4]", "assert max([1, -2], key=f) == 1"),
    "a module that the answer imports": suite("assert math.isclose(f(0.1) + 0, 0.2)"),
    "drawn at random": suite(
        "import random", "for _ in range(200):", "    x = random.random()", "    assert f(x) == x + x"
    ),
    "more than fits into one value": suite("for n in range(8):", "    assert len(f('x' * 9000)) == 18000"),
    "types": suite("assert type(f(1)) is int and f((1,)) == (1, 1) and f(1) is not None"),
}  # fmt: skip
HONEST = """import math
n = 0
def count():
    global n
    n += 1
    return n
def f(x):
    if isinstance(x, list):
        x[:] = [2 * y for y in x]
        return None
    if not isinstance(x, (str, tuple)) and x < 0:
        if x < -1: return -100
        raise ValueError('below zero')
    return 2 * x"""


@pytest.mark.parametrize("test", APART.values(), ids=APART)
@shared_loop
async def test_a_suite_apart_means_what_it_means_beside_the_answer(sandbox: Any, test: dict[str, Any]) -> None:
    names: dict[str, Any] = {}
    exec(f"{HONEST}\n{test['code']}", names)
    names["suite"]()
    verdict = await grade(sandbox, HONEST, {"tests": [test]}, limits=LIMITS)
    assert verdict.passed == 1, verdict
    wrong = HONEST.replace("2 * ", "3 * ").replace("n += 1", "n += 2").replace("'below zero'", "''")
    assert (await grade(sandbox, wrong, {"tests": [test]}, limits=LIMITS)).passed == 0


EQUAL = """class E:
    def __eq__(self, other): return True
    __lt__ = __le__ = __gt__ = __ge__ = __ne__ = __eq__
    __hash__ = None
    __sub__ = __rsub__ = __abs__ = __float__ = lambda *xs: 0.0
    __iter__ = lambda self: iter((0, 1, 2))
    __len__ = lambda self: 3
"""
FORGED = {
    "sorted": ("import builtins\nbuiltins.sorted = lambda xs: [0, 1, 2]\ndef f(n): return None", SORTS),
    "its own sorted": ("def sorted(xs): return [0, 1, 2]\ndef f(n): return None", SORTS),
    "abs": ("def abs(x): return 0.0\ndef f(n): return 0", suite("for n in (4, 9): assert abs(f(n) ** 2 - n) < 1e-6")),
    "isinstance": ("def isinstance(x, kind): return True\ndef f(n): return 0", suite("assert isinstance(f(1), str)")),
    "len": ("def len(xs): return 3\ndef f(n): return [n, 1]", suite("xs = f(3)", "assert len(xs) == 3")),
    "math": (
        "import math\nmath.fabs = lambda x: 0.0\ndef f(n): return 0",
        suite("import math", "for n in (4, 9): assert math.fabs(f(n) ** 2 - n) < 1e-6"),
    ),
    "equal to everything": (EQUAL + "def f(n): return E()", suite("for n in range(3): assert f(n) == [n] * 3")),
    "a list equal to everything": (
        EQUAL.replace("class E", "class E(list)") + "def f(n): return E()",
        suite("for n in range(3): assert f(n) == [n] * 3"),
    ),
    "a helper of the question": ("def twice(x): return None\ndef f(n): return None", suite("assert twice(4) == f(4)")),
    "check": ("def f(n): return None\ndef check(candidate): pass\ndef suite(): pass", SORTS),
    "the suite, when it is called": (
        "import sys\ndef f(n):\n    sys._getframe(1).f_globals['suite'].__code__ = (lambda: None).__code__\n"
        "    frame = sys._getframe(1)\n    return [0, 1, 2] if 'suite' in frame.f_code.co_name else None",
        SORTS,
    ),
    "what the suite compares with": (
        "import sys\ndef f(n):\n    frame = sys._getframe(1)\n    while 'expected' not in frame.f_locals:\n"
        "        frame = frame.f_back\n    return frame.f_locals['expected']",
        suite("expected = [1, 1, 2]", "assert f(3) == expected"),
    ),
    "the end of the process": (
        "import os, struct\ndef f(n):\n    os.write(3, b'V' + struct.pack('<I', 4) + b'null')\n    os._exit(0)",
        SORTS,
    ),
}
PRELUDE = "def twice(x): return 2 * x"


@pytest.mark.parametrize(("code", "test"), FORGED.values(), ids=FORGED)
@shared_loop
async def test_a_forged_suite_earns_nothing(sandbox: Any, code: str, test: dict[str, Any]) -> None:
    """And does earn it where the suite shares a process with the answer: the control."""
    beside = ExecRequest(code=code, setup=f"{PRELUDE}\n{test['code']}", call=Call(function="suite"), limits=LIMITS)
    assert (await sandbox.run(beside)).status is ExecStatus.OK
    verdict = await grade(sandbox, code, {"tests": [test], "prelude": PRELUDE}, limits=LIMITS)
    assert verdict.passed == 0
    assert verdict.reason


@shared_loop
async def test_nothing_of_a_suite_is_beside_the_answer(sandbox: Any) -> None:
    test = suite("expected = 271828", "assert f(3) == expected")
    await grade(sandbox, "def f(x): return 1", {"tests": [test]}, limits=LIMITS)
    beside = [request for request in sandbox.requests if "def f(x)" in request.code]
    assert beside and not any("271828" in repr(request) for request in beside)
    assert not any(request.code for request in sandbox.requests if "271828" in repr(request))


@shared_loop
async def test_a_guessed_call_that_ends_the_answer_is_not_its_failure(sandbox: Any) -> None:
    test = suite("xs = []", "while not f(len(xs)):", "    xs.append(f(len(xs)))", "assert len(xs) == 0")
    code = "def f(n):\n    import os\n    if n: os._exit(1)\n    return True"
    assert (await grade(sandbox, code, {"tests": [test]}, limits=LIMITS)).passed == 1


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        (suite("g = object()", "assert f(g) == 1"), "a value of type object is no plain data"),
        (suite("assert f.calls == 1"), "it uses f, an object or a class of the answer"),
        (suite("1 / 0", "assert f(1) == 1"), "fail before they call the answer: ZeroDivisionError"),
        (suite("import os", "os._exit(3)", "assert f(1) == 1"), "do not run by themselves"),
    ],
)
@shared_loop
async def test_a_suite_that_cannot_be_run_apart_is_no_verdict(sandbox: Any, test: dict[str, Any], reason: str) -> None:
    """It is the environment's fault, and no zero."""
    with pytest.raises(EnvError, match=reason):
        await grade(sandbox, "def f(x): return 1", {"tests": [test]}, limits=LIMITS)


@pytest.mark.parametrize(
    "code",
    [
        "def f(x): return iter([1])",
        "import random\ndef f(x): return random.random()",
        "def f(x): return 'x' * 60_000",
        "def f(x): return [[]] * 9_000",
        "def f(x): return 10 ** 4000",
        "def f(x): return float('nan')",
        "def f(x): return '\\ud800'",
        "class E(Exception):\n    def __str__(self): raise SystemExit\ndef f(x): raise E",
        "def f(x): raise KeyboardInterrupt",
        "def f(x):\n    xs = []\n    for _ in range(400): xs = [xs]\n    return xs",
    ],
)
@shared_loop
async def test_no_result_makes_a_suite_fail_to_be_run(sandbox: Any, code: str) -> None:
    """Results that it passes on, that are large, change from call to call or cannot be read are the answer's doing."""
    test = suite("x = f(1)", "y = f([x] * 3)", "z = f({'a': y})", "assert x + y + z == 6 and f(x * 100_000) == 2")
    limits = Limits(wall_s=2.0, cpu_s=2.0)
    verdict = await grade(sandbox, code, {"tests": [test]}, limits=limits)
    assert verdict.passed == 0 and verdict.reason
