"""Answers of mathematics: how they are found, when they are equal, and what a hostile text can do (nothing)."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import importlib.util
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.math import answers, worker
from envs.math.answers import FORMATS, after_thinking, extract_answer, needs_verifier, same_answer
from envs.math.latex import normal
from envs.math.numerals import last_number, parse_number
from envs.math.rewards import MathReward, ThinkingReward
from envs.math.shapes import read
from envs.math.verifier import Verifier, _verdict
from forge_env.core.errors import EnvError, ServiceError, UserError
from forge_env.utils.threads import invoke
from tests.helpers.rows import rows
from tests.helpers.waiting import is_alive, wait_until

ROOT = Path(__file__).parents[3]
ENDLESS = "(x+y+z+1)^{999}"  # multiplying it out takes hours
# The verdicts of answer_pairs.tsv, by form. The forms are those of MATH, GSM8K, AIME, OlympiadBench and Minerva. An
# answer is right when it has the value of the target and a form that answers the question: 1, 2, 3, 4 is no matrix of
# these numbers.
PAIRS: dict[str, list[tuple[str, str, bool]]] = {"expressions": [("\ud800\0", "x", False)]}  # no file holds half a pair
for form, answer, target, verdict in rows(__file__, "answer_pairs.tsv"):
    PAIRS.setdefault(form, []).append((answer, target, verdict == "right"))


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    """One for all tests: to start it is what takes time."""
    verifier = Verifier(cpu_seconds=0.5)
    yield verifier
    pid = verifier.pid
    verifier.close()
    assert verifier.pid is None
    assert pid is not None and not Path(f"/proc/{pid}").exists()


@pytest.fixture(scope="module")
def algebra(request: pytest.FixtureRequest) -> Iterator[None]:
    """The helper's work, done in this process: a fork for each of 350 comparisons takes most of their time.

    What the same code and packages have said is kept in pytest's cache for the next run.
    """
    versions = [sys.version, *(version(name) for name in ("math-verify", "latex2sympy2-extended", "sympy"))]
    code = hashlib.sha256(repr(versions).encode() + Path(worker.__file__).read_bytes()).hexdigest()
    cache = request.config.cache
    assert cache is not None
    kept: dict[str, bool] = cache.get("math/comparisons", {}).get(code, {})
    known, parse = dict(kept), functools.cache(worker._parse)

    def compare(target: str, answer: str, *, tolerance: float, unevaluated: bool) -> bool:
        if answer == ENDLESS:
            return request.getfixturevalue("verifier").compare(target, answer, tolerance)
        name = repr((target, answer, tolerance, unevaluated))
        if name not in known:
            if not parse.cache_info().currsize:
                worker.open_library(lambda *_, **__: ([], 0))
            written: list[str] = []
            pair = {"target": target, "answer": answer, "tolerance": tolerance, "unevaluated": unevaluated}
            worker._compare(pair, written.append)
            known[name] = _verdict({"written": written, "exit_code": 0}, target)
        return known[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_parse", parse)
        patch.setattr(answers, "equal_expressions", compare)
        yield
    if known != kept:
        cache.set("math/comparisons", {code: known})


@pytest.mark.usefixtures("algebra")
@pytest.mark.parametrize("section", PAIRS)
def test_answers_of_every_form_have_their_verdict(section: str) -> None:
    assert [pair for pair in PAIRS[section] if same_answer(*pair[:2]) is not pair[2]] == []


def documented() -> list[tuple[str, str, float]]:
    """The examples under "Answers of math" in docs/included_environments.md: target, answer, reward."""
    page = (ROOT / "docs" / "included_environments.md").read_text(encoding="utf-8")
    items = re.findall(r"^- [^`]*: (`.*(?:\n  .*)*)$", page.partition("## Answers of math")[2], re.MULTILINE)
    parts = [
        [re.findall(r"`([^`]+)`", part) for part in re.split(r"\s+is\s+(?=`)|,\s+not\s+(?=`)", item)] for item in items
    ]
    return [
        (target, text, score)
        for [target], *sides in parts
        for score, part in zip((1.0, 0.0), sides, strict=True)
        for text in part
    ]


@pytest.mark.usefixtures("algebra")
@pytest.mark.parametrize("form", ["\\boxed{%s}", "<answer>%s</answer>", "So it is %s.", "**So it is \\(%s\\)**"])
def test_the_documented_examples_are_what_the_grader_does(form: str) -> None:
    examples = [row for row in documented() if "it is" not in form or parse_number(row[0])]
    assert len(examples) >= 90
    assert [row for row in examples if MathReward()("", form % row[1], row[0]) != row[2]] == []


def written() -> list[tuple[str, str, float, str]]:
    """Rows of pairs.tsv: the target, an answer as a model writes it, its reward, and why math-verify's differs.

    The forms are those of MATH-500 and GSM8K. The verdicts were made by hand before the grader was asked, but for four
    that follow a rule of the page: the base of a numeral (2), the last number of a text, the exact side of "about".
    """
    cells = ([*row, ""][:4] for row in rows(__file__, "pairs.tsv"))
    return [(target, text, float(reward), judgement) for target, text, reward, judgement in cells]


@pytest.mark.usefixtures("algebra")
def test_answers_as_models_write_them_have_their_reward() -> None:
    table = written()
    assert len({row[:2] for row in table}) == len(table) >= 300
    assert [row for row in table if MathReward()("", row[1], row[0]) != row[2]] == []


def test_the_number_that_ends_a_text() -> None:
    cases = rows(__file__, "prose.tsv")
    assert len(cases) == 205
    assert [(target, text) for target, text, reward in cases if MathReward()("", text, target) != float(reward)] == []


@pytest.mark.usefixtures("algebra")
def test_arithmetic_is_right_for_its_value_by_an_option() -> None:
    for answer, target in [
        *((r"\sqrt{16}", "4"), ("2^3", "8"), (r"\frac12+\frac13", "5/6"), ("5!", "120"), (r"\binom{5}{2}", "10")),
        *((r"\log_2 8", "3"), (r"\sqrt{16}\text{ cm}", "4"), (r"\sin\frac{\pi}{3}", r"\frac{\sqrt3}{2}"), ("3", "3")),
    ]:
        assert same_answer(answer, target, unevaluated=True)
        assert same_answer(answer, target) is (answer == target)
    assert MathReward(unevaluated=True)("", "It is $2^3$.", "8") == 1.0
    for answer, target in [("2+2", "5"), ("3 or 4", "4"), (r"\sqrt2", "1.414"), ("9**9**9", "9"), ("x", "4")]:
        assert not same_answer(answer, target, unevaluated=True)


@pytest.mark.slow
def test_math_verify_differs_where_the_table_says_why() -> None:
    library = importlib.import_module("math_verify")
    table = written()
    verdicts = [library.verify(library.parse(f"${target}$"), library.parse(text)) for target, text, *_ in table]
    assert [row for row, verdict in zip(table, verdicts, strict=True) if (verdict != row[2]) != bool(row[3])] == []


@pytest.mark.usefixtures("algebra")
@given(digits=st.integers(3, 15), target=st.sampled_from([("\\pi", math.pi), ("\\sqrt{2}", math.sqrt(2))]))
@settings(max_examples=8, deadline=None)
def test_no_decimal_is_an_exact_value_but_within_the_tolerance(digits: int, target: tuple[str, float]) -> None:
    rounded = f"{target[1]:.{digits}f}"
    assert not same_answer(rounded, target[0])
    assert same_answer(rounded, target[0], tolerance=10.0**-digits)


@pytest.mark.parametrize(
    ("answer", "target", "tolerance", "same"),
    [
        ("0.333", "1/3", 0.01, True),
        ("0.333", "1/3", 0.0001, False),
        ("101", "100", 0.01, True),
        ("102", "100", 0.01, False),
        ("-100", "100", 1.0, False),
        ("1.414", "\\sqrt{2}", 0.001, True),
        ("1.4", "\\sqrt{2}", 0.001, False),
        ("x + 1.0001", "x + 1", 0.01, False),
    ],
)
def test_tolerance_is_relative(answer: str, target: str, tolerance: float, same: bool) -> None:
    assert same_answer(answer, target, tolerance=tolerance) is same


@given(value=st.fractions(), other=st.fractions())
def test_fractions_are_compared_exactly(value: Fraction, other: Fraction) -> None:
    assert same_answer(str(value), f"\\frac{{{value.numerator}}}{{{value.denominator}}}")
    assert same_answer(str(other), str(value)) is (other == value)


@given(value=st.integers(-(10**12), 10**12))
def test_thousands_separators_change_nothing(value: int) -> None:
    assert same_answer(f"{value:,}", str(value))
    assert last_number(f"There are {value:,}.") == f"{value:,}"


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=300) | st.text("0123456789+-*/%(). e^{}\\,$=!x", max_size=300))
def test_any_text_is_read(text: str) -> None:
    number = parse_number(text)
    assert number is None or number.equals(number)
    for name in FORMATS:
        result = extract_answer(text, [name])
        assert result is None or result.format == name
    assert same_answer(text, "893.25") in (True, False)
    assert read(normal(text)).kind


def test_a_brace_that_is_not_closed_is_left_alone() -> None:
    assert normal(r"\frac{12") == r"\frac{12"


def test_what_needs_math_verify() -> None:
    assert [t for t in ("3", "1/2", "50%", "even", "\\text{blue}", "A", "x+1", "(1,2)") if needs_verifier(t)] == [
        "x+1",
        "(1,2)",
    ]


@pytest.mark.usefixtures("algebra")
def test_the_bounds_of_what_is_read() -> None:
    """Of a response 200,000 characters, a formula 2,000, an answer 1,000, a number 200; brackets are 20 deep."""
    boxed, ones = "\\boxed{7}", "1" + "+1" * 498 + "=42"
    assert [extract_answer(boxed.ljust(n), ["boxed"]) is not None for n in (200_000, 200_001)] == [True, False]
    formulas = [extract_answer("$a$".ljust(n, "."), ["text"]) for n in (2000, 2001)]
    assert [formula is not None and formula.text == "a" for formula in formulas] == [True, False]
    assert len(ones) == 1000 and same_answer(ones, "42") and not same_answer(" " + ones, "42")
    nested = ["(" * depth + "x+1" + ")" * depth for depth in (20, 21)]
    assert [same_answer(answer, "1+x") for answer in nested] == [True, False]
    assert same_answer("x+1" + "+(0)" * 21, "1+x"), "brackets in a row are not deep"
    assert [same_answer("Ab" * n, "aB" * n) for n in (500, 501)] == [True, False]
    assert [parse_number("1" * n) is not None for n in (200, 201)] == [True, False]
    assert same_answer("x^{2}-y^{2}", "-y^{2}+x^{2}")
    assert not same_answer("x^{2^{3}}", "x^{8}") and not same_answer("x^{(1+1)^{2}}", "x^{4}")


@pytest.mark.parametrize(("format", "text", "response"), rows(__file__, "final_answers.tsv"))
def test_the_final_answer(response: str, text: str, format: str) -> None:
    result = extract_answer(response)
    assert result is not None
    assert (result.text, result.format) == (text, format)


@pytest.mark.parametrize("response", ["", " \n", "<think>42", "<think>\\boxed{42}", "\\boxed{42</think>"])
def test_no_final_answer(response: str) -> None:
    assert extract_answer(response) is None


def test_only_the_formats_asked_for_count() -> None:
    assert extract_answer("\\boxed{1} 2", ["number"]).text == "2"  # type: ignore[union-attr]
    assert extract_answer("it is 2", ["answer", "boxed"]) is None
    with pytest.raises(UserError, match=r"'box'.*Did you mean boxed"):
        extract_answer("2", ["box"])


def test_thinking_is_not_searched_and_what_follows_its_first_end_is_content() -> None:
    assert after_thinking("<think>a</think> b") == after_thinking("a</think> b") == " b"
    assert after_thinking("\n<think>a") == ""
    assert after_thinking("<think>a</think> b <think>c</think> d") == " b <think>c</think> d"
    assert after_thinking("a</think>b<think>c") == "b<think>c"
    for response in (
        "<think>x</think> Use the <think> tag: \\boxed{4}",
        "<think>x</think> Between <think> and </think> I thought: \\boxed{4}",
        "Use the <think> tag: \\boxed{4}",
    ):
        assert extract_answer(response).text == "4"  # type: ignore[union-attr]


def test_math_reward_takes_text_and_numbers() -> None:
    reward = MathReward()
    assert reward("What is 6 * 7?", "It is 42.", 42) == 1.0
    assert reward("", "\\boxed{0.1}", 0.1) == 1.0
    assert reward("", "\\boxed{x+1}", "1+x") == 1.0
    assert reward("", "It is 41.", "42") == 0.0
    assert reward("", "", "") == 0.0


@pytest.mark.parametrize("target", [None, [1], True, float("nan"), float("inf")])
def test_a_target_that_is_no_answer_is_a_users_mistake(target: object) -> None:
    with pytest.raises(UserError, match="text or a finite number"):
        MathReward()("", "1", target)  # type: ignore[arg-type]


def test_partial_credit_for_another_format() -> None:
    reward = MathReward(format="boxed", partial_credit=0.25)
    assert reward("", "\\boxed{42}", 42) == 1.0
    assert reward("", "<answer>1</answer> \\boxed{42}", 42) == 1.0
    assert reward("", "It is 42.", 42) == 0.25
    assert reward("", "It is 41.", 42) == 0.0
    assert MathReward(format="boxed")("", "It is 42.", 42) == 0.0


def test_partial_credit_for_a_close_value() -> None:
    reward = MathReward(tolerance=0.001, close=0.1, partial_credit=0.5)
    assert [reward("", answer, 100) for answer in ("100", "100.1", "105", "111")] == [1.0, 1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tolerance": -1.0}, "tolerance is -1.0"),
        ({"partial_credit": 2.0}, "partial_credit is 2.0"),
        ({"close": float("nan")}, "close is nan"),
        ({"format": "box"}, "Did you mean boxed"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, float], match: str) -> None:
    with pytest.raises(UserError, match=match):
        MathReward(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("response", "expected"), rows(__file__, "thinking.tsv"))
def test_thinking_reward(response: str, expected: str) -> None:
    assert ThinkingReward()("", response, None) == float(expected)


def test_thinking_reward_with_its_own_tag_and_figures() -> None:
    reward = ThinkingReward(tag="plan", full_reward=0.5, partial_reward=0.1)
    assert [reward("", text, "") for text in ("<plan>a</plan> b", "<plan>a", "<think>a</think> b")] == [0.5, 0.1, 0.0]
    assert reward("Go.\n<plan>\n", "a</plan> b", "") == 0.5, "the chat template opened the tag"
    with pytest.raises(UserError, match="without brackets"):
        ThinkingReward(tag="<think>")


HARD_TO_READ = "(" * 60 + "x" + ")" * 60


def test_what_takes_too_long_is_wrong_and_the_next_one_is_right(verifier: Verifier) -> None:
    assert not verifier.compare("(x+y)^2", ENDLESS, 0.0)
    pid = verifier.pid
    assert verifier.compare("(x+y)^2", "x^2+2xy+y^2", 0.0)
    assert verifier.pid == pid, "one fork was given up, not the process"


def test_threads_take_turns(verifier: Verifier) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: verifier.compare(f"x+{i % 3}", "x+1", 0.0), range(24)))
    assert results == [i % 3 == 1 for i in range(24)]


async def test_a_cancelled_comparison_leaves_the_helper_usable(verifier: Verifier) -> None:
    await invoke(verifier.compare, "x", "x", 0.0)
    pid = verifier.pid
    for seconds in (0.0, 0.1):
        comparisons = [asyncio.create_task(invoke(verifier.compare, "(x+y)^2", ENDLESS, 0.0)) for _ in range(3)]
        await asyncio.wait(comparisons, timeout=seconds)
        for comparison in comparisons:
            comparison.cancel()
        await asyncio.gather(*comparisons, return_exceptions=True)
    assert await asyncio.wait_for(invoke(verifier.compare, "x+1", "1+x", 0.0), 60)
    assert verifier.pid == pid


def test_a_helper_that_dies_is_a_fault_of_ours_if_it_works_and_another_one_starts(verifier: Verifier) -> None:
    assert verifier.compare("x", "x", 0.0)
    first = verifier.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not is_alive(first))
    assert verifier.compare("x", "x", 0.0), "one that died while idle harms nothing"
    second = verifier.pid
    assert second is not None and second != first
    with ThreadPoolExecutor(1) as pool:
        comparison = pool.submit(verifier.compare, "(x+y)^2", ENDLESS, 0.0)
        wait_until(lambda: bool(Path(f"/proc/{second}/task/{second}/children").read_text().strip()))
        os.killpg(second, signal.SIGKILL)
        with pytest.raises(ServiceError, match=r"ended in the middle of its work: it died of SIGKILL \(signal 9\)"):
            comparison.result(timeout=60)
    with pytest.raises(EnvError, match="the target .* takes the math grader too long to read"):
        verifier.compare(HARD_TO_READ, "x", 0.0)  # of a target that takes too long: no fault of the answer
    assert verifier.pid != second


def test_only_the_limit_of_processor_time_is_the_answers_doing() -> None:
    assert _verdict({"written": ["target", "equal"], "exit_code": 0}, "x")
    assert not _verdict({"written": ["target", "different"], "exit_code": 0}, "x")
    assert not _verdict({"written": ["target"], "exit_code": -signal.SIGPROF}, "x")
    for code in (-signal.SIGKILL, -signal.SIGSEGV, 1):
        with pytest.raises(ServiceError, match=f"ended with status {int(code)}"):
            _verdict({"written": ["target"], "exit_code": code}, "x")
    assert not _verdict({"written": ["unreadable"], "exit_code": 0}, "x")
    with pytest.raises(EnvError, match="the target 'x' takes the math grader too long"):
        _verdict({"written": [], "exit_code": -signal.SIGPROF}, "x")


@pytest.mark.parametrize("target", [r"x\equiv 2 \pmod 5", r"A \Rightarrow B", "(x-1)^2 (x+3"])
def test_an_answer_to_a_target_that_no_grammar_reads_is_right_or_wrong_by_its_text(target: str) -> None:
    assert same_answer(target, target) and not same_answer(r"x\equiv 3 \pmod 5", target)


def test_without_math_verify_numbers_work_and_the_rest_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "math_verify" else find(name, *a))
    assert MathReward()("", "1/2", 0.5) == 1.0
    with pytest.raises(UserError, match=r"^math-verify is not installed.* pip install 'forge-env\[math\]'"):
        Verifier().compare("x+1", "x", 0.0)


def test_the_helper_ends_with_a_killed_owner_and_belongs_to_no_fork() -> None:
    """A fork that kept the pipe's end would keep the helper alive."""
    code = (
        "import os, signal\n"
        "from envs.math.verifier import _verifier, equal_expressions\n"
        "assert equal_expressions('x+1', '1+x') and not equal_expressions('x+1', '1-x')\n"
        "if os.fork() == 0:\n"
        "    os._exit(7 if _verifier.pid is None else 1)\n"
        "code = os.waitstatus_to_exitcode(os.wait()[1])\n"
        "print(code, equal_expressions('2x', 'x+x'), _verifier.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    status, equal, pid = done.stdout.split()
    assert (status, equal) == ("7", "True"), done.stderr
    wait_until(lambda: not is_alive(int(pid)))
