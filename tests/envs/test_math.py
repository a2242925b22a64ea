"""math: the expert solves it, a wrong answer earns nothing, and the calculator takes any text."""

from __future__ import annotations

import ast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agents.scripted import ScriptedAgent
from envs.math import Math, calculate
from forge_env.env import EnvFactory
from forge_env.evaluate import Evaluation
from forge_env.rollout import run_episode
from forge_env.types import Action, EpisodeLimits, Task, ToolCall


async def run(agent: ScriptedAgent, tasks: list[Task], **options: bool) -> Evaluation:
    async with EnvFactory(Math) as factory:
        return Evaluation(
            episodes=tuple(
                [
                    await run_episode(
                        factory, agent, task, seed=i, episode_id=str(i), limits=EpisodeLimits(), env_options=options
                    )
                    for i, task in enumerate(tasks)
                ]
            )
        )


async def score(answer: str, target: str = "893") -> float:
    env = Math()
    await env.reset(seed=0, options={"task": Task(prompt=(), target=target)})
    _, reward, terminated, _, _ = await env.step(Action(message={"role": "assistant", "content": answer}))
    assert terminated
    return reward


@pytest.mark.parametrize("split", ["train", "test"])
async def test_the_expert_earns_the_full_reward(split: str) -> None:
    result = await run(ScriptedAgent(Math.expert), list(Math.tasks(split, count=20)))
    assert [e.reward for e in result.episodes] == [1.0] * 20
    assert {len(e.turns) for e in result.episodes} == {2}


async def test_without_its_tool_the_expert_earns_nothing() -> None:
    result = await run(ScriptedAgent(Math.expert), list(Math.tasks(count=20)), use_tools=False)
    assert [e.reward for e in result.episodes] == [0.0] * 20


def test_targets_are_right() -> None:
    for task in Math.tasks(count=200):
        question = task.prompt[0]["content"]
        a, b, c = (int(word) for word in question.split() if word.isdigit())
        right = a * b + c if "added" in question else a * b - c if "lost" in question else (a + b) * c
        assert task.target == str(right)


@pytest.mark.parametrize("answer", ["893", "893.0", "There are 893 pens.", "37 * 24 + 5 = 893.", "8,93", " 893\n"])
async def test_a_right_answer(answer: str) -> None:
    assert await score(answer) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I do not know.",
        "894",
        "-893",
        "893 or 894",
        "8930",
        "0893.5",
        "37 * 24 + 5",
        "eight hundred ninety-three",
        "nan",
        "inf",
        "9" * 5000,
    ],
)
async def test_a_wrong_answer(answer: str) -> None:
    assert await score(answer) == 0.0


# ---- the calculator ----


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("37 * 24 + 5", "893"),
        ("(1 + 2) * 3", "9"),
        ("7 / 2", "3.5"),
        ("7 // 2", "3"),
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


@settings(max_examples=300, deadline=None)
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


@settings(max_examples=150, deadline=None)
@given(text=arithmetic)
def test_values_are_pythons(text: str) -> None:
    try:
        expected = str(eval(compile(ast.parse(text, mode="eval"), "<test>", "eval")))
    except ArithmeticError:
        assert calculate(text).startswith("Error: ")
    else:
        assert calculate(text) == expected


async def test_the_model_calls_it_as_a_tool() -> None:
    env = Math()
    await env.reset(seed=0, options={"task": Math.tasks(count=1)[0]})
    call = ToolCall(id="call_0", name="calculator", arguments={"expression": "6 * 7"})
    messages, reward, terminated, _, _ = await env.step(
        Action(message={"role": "assistant", "content": ""}, tool_calls=(call,))
    )
    assert ([m["content"] for m in messages], reward, terminated) == (["42"], 0.0, False)
