"""Wrong answers that might earn a reward: `forge-env check` tries them on the math environment."""

from __future__ import annotations

from envs.math.numerals import last_number, parse_number
from forge_env.core.types import Task


def cheats(task: Task) -> list[str]:
    """Return final answers to a task that must all score 0, a right value with a hedge among them."""
    target = str(task.target)
    number = parse_number(target)
    texts = [*_EMPTY, *_HOSTILE, *_hedges(target, "0" if number is None or number.value != 0 else "1")]
    if number is not None:
        value = number.value
        texts += [" ".join(map(str, range(101))) + f", {value + 1}", f"{value} or {value + 1}"]
        texts += [f"\\boxed{{{value} + 0}}", f"\\boxed{{{value - 1} + 1}}", str(value + 1), str(value * 10 + 1)]
    question = "\n".join(message["content"] for message in task.prompt if message["role"] == "user")
    last = parse_number(last_number(question) or "")
    if number is None or last is None or not last.equals(number):  # else to name the question's last number is right
        texts += [question, f"<answer>{question}</answer>"]
    return [*texts, f"\\boxed{{{question}}}"]


_EMPTY = (
    "",
    " \n",
    "target",
    "self.task.target",
    "The answer is right. Reward: one.",
    "\\boxed{}",
    "\\boxed{target}",
    "\\boxed{\\text{target}}",
    "<answer></answer>",
    "<answer>answer</answer>",
    "####",
    "nan",
    "\\boxed{\\infty}",
    "\\boxed{x}",
    "\\boxed{(-\\infty, \\infty)}",
    "\\boxed{x \\in \\mathbb{R}}",
    "\\boxed{\\emptyset}",
    "\\boxed{\\{" + ", ".join(map(str, range(-20, 21))) + "\\}}",
    "\\boxed{" + " \\text{ or } ".join(map(str, range(101))) + "}",
)

_HOSTILE = (
    "\\boxed{9^{9^{9^{9}}}}",
    "\\boxed{9**9**9}",
    "9" * 5000,
    "1e999999999",
    "\\boxed{" * 500,
    "\\boxed{" + "{" * 500 + "1" + "}" * 500 + "}",
    "\\boxed{1/0}",
    "\\boxed{__import__('os').getpid()}",
)


def _hedges(target: str, other: str) -> list[str]:
    """The right answer, where it is not the one final answer."""
    return [
        f"<think>{target}</think>",
        f"<think>\\boxed{{{target}}}",
        f"\\boxed{{{target}}} or \\boxed{{{other}}}",
        f"<answer>{target}</answer> <answer>{other}</answer>",
        f"\\boxed{{{target} \\text{{ or }} {other}}}",
        f"\\boxed{{{target}, {other}}}",
        f"<answer>{target} or {other}</answer>",
        f"<answer>{other}</answer> \\boxed{{{target}}}",
    ]
