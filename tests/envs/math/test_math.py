"""math: the expert solves it, a wrong answer earns nothing, and the calculator takes any text."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agents.scripted import ScriptedAgent
from envs.math import Math, calculate
from envs.math.answers import same_answer
from envs.math.story_tasks import STORIES
from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.core.types import Action, EpisodeLimits, Task, ToolCall
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import run_episode


async def run(agent: ScriptedAgent, tasks: list[Task], **options: Any) -> list[Episode]:
    common: dict[str, Any] = {"limits": EpisodeLimits(), "env_options": options}
    async with EnvFactory(Math) as factory:
        return [
            await run_episode(factory, agent, task, seed=i, episode_id=str(i), **common) for i, task in enumerate(tasks)
        ]


async def score(answer: str, target: str = "893") -> float:
    env = Math()
    await env.reset(seed=0, options={"task": Task(prompt=(), target=target)})
    _, reward, terminated, _, _ = await env.step(Action(message={"role": "assistant", "content": answer}))
    assert terminated
    return reward


async def test_without_its_tool_the_expert_earns_nothing() -> None:
    result = await run(ScriptedAgent(Math.expert), list(Math.tasks(count=5)), use_tools=False)
    assert [e.reward for e in result] == [0.0] * 5


async def test_answers_are_scored() -> None:
    for answer in ("893", "893.0", "There are 893 pens.", "37 * 24 + 5 = 893.", " 893\n"):
        assert await score(answer) == 1.0, answer
    wrong = ("", "I do not know.", "894", "-893", "893 or 894", "8930", "0893.5", "37 * 24 + 5", "nan", "9" * 5000)
    for answer in wrong:
        assert await score(answer) == 0.0, answer


async def test_level_1_reads_as_it_always_did() -> None:
    [task] = Math.tasks(count=1)
    env = Math()
    messages, _ = await env.reset(seed=0, options={"task": task})
    assert messages == (
        {"role": "system", "content": "Use the calculator. Answer with a number."},
        {"role": "user", "content": "46 boxes hold 88 pens each. 52 pens are added. How many pens?"},
    )
    assert (task.id, task.target) == ("f3c9a80c9d5db4a1", "4100")
    assert [spec["function"] for spec in env.tools] == [
        {
            "name": "calculator",
            "description": "Calculate.",
            "parameters": {
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
                "type": "object",
            },
        }
    ]


async def test_the_calculator_is_a_tool_and_one_that_was_taken_away_cannot_be_called() -> None:
    call = ToolCall(id="call_0", name="calculator", arguments={"expression": "6 * 7"})
    action = Action(message={"role": "assistant", "content": ""}, tool_calls=(call,))
    env = Math()
    await env.reset(seed=0, options={"task": Math.tasks(count=1)[0]})
    messages, reward, terminated, _, _ = await env.step(action)
    assert ([m["content"] for m in messages], reward, terminated) == (["42"], 0.0, False)
    env = Math(calculator=False)
    messages, _ = await env.reset(seed=0, options={"task": Math.tasks(count=1)[0]})
    assert (list(env.tools), messages[0]["content"]) == ([], "Answer with a number.")
    messages, *_ = await env.step(action)
    assert messages[0]["content"].startswith("Error: there is no tool 'calculator'")


@pytest.mark.parametrize("level", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("options", [{}, {"calculator": False}])
async def test_the_expert_solves_every_level(level: int, options: dict[str, bool]) -> None:
    tasks = [*Math.tasks("train", count=20, level=level), *Math.tasks("test", count=5, level=level)]
    result = await run(ScriptedAgent(Math.expert), tasks, **options)
    assert [e.reward for e in result] == [1.0] * 25
    turns = {} if options else {0: {2, 3, 4}, 1: {2}, 2: {3}}
    assert {len(e.turns) for e in result} == turns.get(level, {1})


def test_held_out_stories_of_level_0_have_numbers_that_are_not_in_training() -> None:
    train, test = (Math.tasks(split, count=count, level=0) for split, count in (("train", 4000), ("test", 250)))
    told = {(task.kind, *numbers(task)) for task in train}
    assert [task for task in test if (task.kind, *numbers(task)) in told] == []
    for tasks in (train, test):
        assert all(sum(task.kind == kind for task in tasks) > len(tasks) / 16 for kind in STORIES[0])


def numbers(task: Task) -> list[int]:
    return [int(text) for text in re.findall(r"-?\d+", task.prompt[0]["content"].replace("x^2", ""))]


RIGHT: dict[int, dict[str, Callable[..., float]]] = {
    0: {
        "find": lambda a, b: a + b,
        "give": lambda a, b: a - b,
        "packs": lambda a, b: a * b,
        "parts": lambda a, b: a / b,
        "lose": lambda a, b, c: a + b - c,
        "gift": lambda a, b, c: a * b + c,
        "both": lambda a, b: 2 * a + b,
        "sell": lambda a, b, c, d: a * b + c - d,
    },
    1: {
        "plus": lambda a, b, c: a * b + c,
        "minus": lambda a, b, c: a * b - c,
        "times": lambda a, b, c: (a + b) * c,
    },
    2: {
        "stock": lambda a, b, c, d: a * b + c - d,
        "rows": lambda a, b, c, d: (a * b - c) * d,
        "shares": lambda a, b, c, d: a * b / c + d,
        "bags": lambda a, b, c, d: (a + b) * c - d,
    },
    3: {
        "price": lambda a, b, c: a * (1 + b / 100) * (1 - c / 100),
        "pump": lambda a, b, c: a / b * c,
        "rest": lambda a, b, c, d, e: (a - a * b / c) - (a - a * b / c) * d / e,
        "together": lambda a, b: 1 / (1 / a + 1 / b),
        "speed": lambda a, b: 2 / (1 / a + 1 / b),
    },
}


@pytest.mark.parametrize("level", RIGHT)
def test_targets_are_right(level: int) -> None:
    tasks = Math.tasks(count=200, level=level)
    assert {task.kind for task in tasks} == RIGHT[level].keys()
    for task in tasks:
        value = Fraction(task.target)
        assert float(value) == pytest.approx(RIGHT[level][task.kind](*numbers(task))) and value > 0
    has_fractions = sum(Fraction(task.target).denominator > 1 for task in tasks)
    assert has_fractions > 100 if level == 3 else not has_fractions


def test_targets_of_level_4_are_right() -> None:
    kinds = set()
    for task in Math.tasks(count=200, level=4):
        kind, given = task.metadata["operation"], numbers(task)
        kinds.add(kind)
        ends = [Fraction(text) for text in re.findall(r"-?\d+(?:/\d+)?", task.target)]
        if kind == "linear":
            a, b, c, d = given
            assert a * ends[0] + b == c * ends[0] + d
        elif kind == "system":
            a, b, c, d, e, f = given
            x, y = ends
            assert (a * x + b * y, d * x + e * y) == (c, f)
        elif kind == "line":
            a, b, c, d = given
            assert all(abs(_line_at(task.target, x) - y) < 1e-9 for x, y in ((a, b), (c, d)))
        else:
            b, c = given[:2]
            assert [x * x + b * x + c for x in ends] == [0, 0]
            assert ends[0] < ends[1]
    assert kinds == {"linear", "system", "quadratic", "between", "outside", "line"}


def _line_at(target: str, x: int) -> float:
    text = re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"(\1/\2)", target)
    return float(eval(re.sub(r"(?<=[\d)])x", "*x", text), {"__builtins__": {}}, {"x": x}))


@pytest.mark.parametrize("level", [5, -1])
def test_a_level_that_there_is_not(level: int) -> None:
    with pytest.raises(UserError, match=f"math has no level {level}; the levels are 0, 1, 2, 3 and 4"):
        Math.tasks(count=1, level=level)


async def test_level_4_asks_for_a_box() -> None:
    [task] = Math.tasks(count=1, level=4)
    messages, _ = await Math().reset(seed=0, options={"task": task})
    assert messages[0]["content"] == "Use the calculator. Put the final answer in \\boxed{}."


async def test_the_graders_process_ends_with_the_factory() -> None:
    async with EnvFactory(Math) as factory:
        env = factory.make()
        for target, answers in {
            "x+1": {"1+x": 1.0},
            "(2, 3)": {"(2, 3)": 1.0, "[2, 3]": 0.0, "(2, 4)": 0.0, "(x-2)(x-3) < 0": 0.0},
        }.items():
            await env.reset(seed=0, options={"task": Task(prompt=(), target=target)})
            assert {answer: env.correct(f"\\boxed{{{answer}}}") for answer in answers} == answers
        pid = env.verifier.pid  # type: ignore[attr-defined]
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("level", [0, 1, 2, 3])
async def test_no_cheat_scores_where_the_answer_is_a_number(level: int) -> None:
    for task in Math.tasks(count=10, level=level):
        env = Math()
        await env.reset(seed=0, options={"task": task})
        cheats = Math.cheats(task)
        assert [cheat for cheat in cheats if env.correct(cheat)] == []
        assert len(cheats) > 30
        assert env.correct(task.target) == 1.0


@pytest.mark.slow
async def test_no_cheat_scores_in_algebra() -> None:
    by_kind = {task.metadata["operation"]: task for task in Math.tasks(count=60, level=4)}
    for kind in ("line", "quadratic", "between"):
        task = by_kind[kind]
        env = Math()
        await env.reset(seed=0, options={"task": task})
        assert [cheat for cheat in Math.cheats(task) if env.correct(cheat)] == []
        assert same_answer(task.target, task.target)


async def test_a_question_that_names_its_answer_is_no_cheat() -> None:
    question = "11 boxes hold 12 pens each. 66 pens are lost. How many pens?"
    task = Task(prompt=({"role": "user", "content": question},), target="66")
    assert question not in Math.cheats(task)
    env = Math()
    await env.reset(seed=0, options={"task": task})
    assert [cheat for cheat in Math.cheats(task) if env.correct(cheat)] == []


async def test_partial_credit_is_an_option() -> None:
    env = Math(format="boxed", partial_credit=0.5)
    await env.reset(seed=0, options={"task": Task(prompt=(), target="893")})
    assert [env.correct(answer) for answer in ("\\boxed{893}", "893", "894")] == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("37 * 24 + 5", "893"),
        ("7 / 2", "3.5"),
        ("-7 % 3", "2"),
        ("+1 - -1", "2"),
        (" 2 ", "2"),
        ("1 / 0", "Error: division by zero"),
    ],
)
def test_values(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    ["", "1 +", "2 ** 9", "x", "True", "'a' * 9", "[1]", "1 if 1 else 2", "1, 2", "a.b", "1j", "1 << 9", "9" * 201],
)
def test_what_is_no_arithmetic_is_refused(expression: str) -> None:
    assert calculate(expression).startswith("Error: ")


@pytest.mark.parametrize("expression", ["__import__('os').system('true')", "print(1)", "().__class__", "(lambda: 1)()"])
def test_nothing_is_run(expression: str) -> None:
    assert calculate(expression) == "Error: only numbers, + - * / // % and parentheses are allowed"


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=250) | st.text("0123456789+-*/%(). e_jx'\"[]", max_size=250))
@example("-" * 199 + "1")
@example("(" * 100 + ")" * 100)
@example("1e308 * 10 // 1")
@example("9" * 99 + "*" + "9" * 99)
@example("1e400 % 2")
@example("\0")
@example("\ud800")
@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_any_text_has_an_answer(text: str) -> None:
    assert isinstance(calculate(text), str)


arithmetic = st.recursive(
    st.integers(0, 999).map(str),
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "//", "%", "/"]), inner),
    max_leaves=8,
).filter(lambda text: len(text) <= 200)


@settings(max_examples=50, deadline=None)
@given(text=arithmetic)
def test_values_are_pythons(text: str) -> None:
    try:
        expected = str(eval(compile(ast.parse(text, mode="eval"), "<test>", "eval")))
    except ArithmeticError:
        assert calculate(text).startswith("Error: ")
    else:
        assert calculate(text) == expected
