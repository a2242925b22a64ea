"""No reader of a model's text is quadratic: eight times the text takes about eight times as long, whatever it holds.

One answer of a model would otherwise hold up every episode of its process. Processor time is compared between two
sizes, generously: a quadratic reader takes 64 times as long.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.renderer import dialects, model_json
from agents.renderer.rendering import Renderer
from envs.code_exec import env as code_exec
from envs.code_exec import grading, values
from envs.math import answers, numerals, rewards
from envs.math.env import calculate
from envs.math.shapes import read as read_shape
from tests.helpers.tokenizer_folders import make_llama, make_qwen25

TIMES = 8
MOST = 24
"""Times the processor time that `TIMES` the text may take."""
SIZES = (120, 2000)
"""The smaller ones: below the limits of the readers that look at a part of a text only, and above them."""
NOTHING = 0.006
"""Seconds for the larger text, below which nothing is measured: not even one of a megabyte would hold up anything."""

Read = Callable[[str], object]


def call_of(text: str) -> dict[str, Any]:
    return {"id": "a", "type": "function", "function": {"name": "f", "arguments": text}}


def form_of(text: str) -> object:
    return (
        answers.stated_values(f"{text}=x", "x"),
        answers.separate_cases(text, "x+X"),
        answers.computes_more(text, "x"),
    )


FORMATS = [name for name in answers.FORMATS if name != "number"]
"""Of answers. A number is what MathReward looks for last in each text."""
READERS: dict[str, Read] = {
    "the code of an answer": code_exec.extract_code,
    **{f"calls, {name}": lambda text, name=name: dialects.parse(text, name) for name in dialects.DIALECTS},
    "calls, written again": lambda text: dialects.write({"role": "assistant", "content": text}, "openai"),
    "arguments of a call": lambda text: dialects.from_openai({"tool_calls": [call_of(text)]}),
    "JSON": model_json.decode_all,
    "an error's sentence": model_json.shorten,
    **{f"answer, {name}": lambda text, name=name: answers.extract_answer(text, [name]) for name in FORMATS},
    "answer, a number is wanted": lambda text: answers.same_answer(text, "42"),
    "answer, words are wanted": lambda text: answers.same_answer(text, "north east"),
    "answer, for the algebra": lambda text: answers._is_bounded(text) and read_shape(text),
    "number": numerals.parse_number,
    "answer, its form": lambda text: answers._is_bounded(text) and form_of(text),
    "calculator": calculate,
    "MathReward": lambda text: rewards.MathReward()("", text, "42"),
    "MathReward, words": lambda text: rewards.MathReward()("", text, "north"),
    "ThinkingReward": lambda text: rewards.ThinkingReward()("", text, ""),
    "output of a program": lambda text: grading.same_output(text, "0.5 1"),
    "value of a program": values.decode,
}


def again(unit: str, *, before: str = "", after: str = "") -> Callable[[int], str]:
    """A text of about `size` characters that repeats a unit."""
    return lambda size: before + unit * (size // len(unit)) + after


UNITS: list[str] = json.loads(Path(__file__).with_name("reader_units.json").read_text(encoding="utf-8"))
"""What attacks repeat."""
ATTACKS: dict[str, Callable[[int], str]] = {
    **{f"{unit!r} again": again(unit) for unit in UNITS},
    "a fence, then newlines": again("\n", before="```python"),
    "a fence, then spaces": again(" ", before="```python"),
    "a call, then spaces": again(" ", before="<tool_call>{}", after="x"),
    "an open call, then spaces": again(" ", before="<tool_call>", after="x"),
    "a tag, then spaces": again(" ", before="<|python_tag|>{}", after="x"),
    "a tag, then calls": again("{}", before="<|python_tag|>"),
    "an end of turn, then spaces": again(" ", before="<|python_tag|>{<|eot_id|>", after="x"),
    "backslashes in a text": again("\\", before='{"name": "'),
    "a's for a pattern": again("a", after="b"),
    "digits, then a letter": again("1", after="x"),
    "a point, then digits": again("1", before="x."),
    "digits in a fraction": again("1", before="\\frac{"),
    "a letter, then spaces": again(" ", before="a", after="1"),
    "a word, then dashes": again("-", before="ab", after="1"),
    "a digit, then spaces": again(" ", before="1", after="x"),
    "a power, then spaces": again(" ", before="^", after="x"),
    "a field, then spaces": again(" ", before="\\mathbb", after="1"),
    "a fraction, then spaces": again(" ", before="\\frac", after="x"),
    "a fraction, a brace, then spaces": again(" ", before="\\frac{", after="x"),
    "an answer, then spaces": again(" ", before="the answer", after="x"),
    "a tag's spaces": again(" ", before="<answer", after="x"),
    "a verdict, then stars": again("*", before="VERDICT: 1", after="a"),
    "lists in a list": lambda size: "[" * (size // 2) + "1" + "]" * (size // 2),
    "the end of lists": again("[", after="]"),
    "an object of many keys": lambda size: "{" + ",".join(f'"{i}": 1' for i in range(size // 9)) + "}",
    "calls of ids that are taken": lambda size: json.dumps(
        {"tool_calls": [{**call_of("{}"), "id": f"call_{i % (size // 180 + 1)}"} for i in range(size // 90)]}
    ),
}


def seconds(read: Read, text: str) -> float:
    numerals._parse.cache_clear()
    started = time.thread_time()
    try:
        read(text)
    except (ValueError, ArithmeticError, SyntaxError, RecursionError):  # what it cannot read
        pass
    return time.thread_time() - started


def growth(read: Read, attack: Callable[[int], str], size: int) -> float:
    """How many times as long the larger text takes: the least of three; 0 where it takes next to nothing."""
    small, large = attack(size), attack(TIMES * size)
    least = float("inf")
    for _ in range(3):
        slow = seconds(read, large)
        if slow < NOTHING:
            return 0.0
        least = min(least, slow / max(seconds(read, small), 1e-6))
        if least < MOST:
            break
    return least


def slow_attacks(read: Read, size: int) -> dict[str, float]:
    """Attacks for which the reader takes much more than in proportion to the text."""
    return {attack: times for attack, make in ATTACKS.items() if (times := growth(read, make, size)) >= MOST}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_time_in_proportion_to_the_text(name: str, size: int) -> None:
    assert slow_attacks(READERS[name], size) == {}


@pytest.mark.parametrize("family", ["qwen3", "qwen25", "llama"])
def test_what_every_family_samples_is_read_in_proportion_to_it(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    makers: dict[str, Callable[[Path], Path]] = {
        "qwen3": lambda _: request.getfixturevalue("tiny_model"),
        "qwen25": make_qwen25,
        "llama": make_llama,
    }
    renderer = Renderer(makers[family](tmp_path / family))
    units = ("<tool_call>", "</tool_call>", "<tool_call>{}</tool_call>", "<|python_tag|>", "{};", "<think>", "\n", "\\")
    slow: dict[str, float] = {}
    for unit in units:
        tokens = renderer.encode(unit) or [0]

        def read(text: str, tokens: list[int] = tokens) -> object:
            return renderer.read(tokens * (len(text) // len(tokens)), "stop")

        slow[unit] = growth(read, again(" "), 500)
    assert {unit: times for unit, times in slow.items() if times >= MOST} == {}


# ---- what was there before, to see that the attacks work ----


def old_fence(text: str) -> object:
    return re.findall(r"```(?:python|py)?\s*\n(.*?)```", text, re.DOTALL)


def old_field(text: str) -> object:
    return re.findall(r"\\mathbb\s*\{?\s*[A-Z]|\\[a-zA-Z]+|[a-zA-Z]", text)


def old_formula(text: str) -> object:
    return re.findall(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\(([^$]*?)\\\)|\\\[([^$]*?)\\\]", text, re.DOTALL)


CONTROLS: dict[str, tuple[Read, Read, Callable[[int], str], int]] = {
    "fence": (old_fence, READERS["the code of an answer"], ATTACKS["a fence, then newlines"], 600),
    "field": (old_field, form_of, ATTACKS["a field, then spaces"], 250),
    "formulas": (old_formula, READERS["answer, text"], ATTACKS["'\\\\(' again"], 500),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_the_attack_works_where_the_text_is_read_as_it_was(name: str) -> None:
    before, now, attack, size = CONTROLS[name]
    assert growth(before, attack, size) > MOST
    assert growth(now, attack, size) < MOST
