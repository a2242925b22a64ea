"""code_exec: the model runs Python in a sandbox, then answers with a program that hidden tests grade.

The tasks are procedural. A table `t` exists only inside the `python` tool; the program asked for needs one of its
values, so no answer is right without having looked. The answer is graded in fresh sandbox processes, where neither the
table nor anything that the model's earlier code left behind exists; expected values never enter the sandbox.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from envs.procedural import SYMBOLS, draw_tasks
from forge_env.errors import SandboxError
from forge_env.sandbox import Call, ExecRequest, ExecResult, ExecStatus, Limits, Sandbox
from forge_env.tool_env import ToolEnv
from forge_env.tools import reward, tool
from forge_env.types import Message, Task

_FENCE = re.compile(r"```(?:python|py)?\s*\n(.*?)```", re.DOTALL)
_TESTS = "\n\ndef _call_f(arguments):\n    return [f(x) for x in arguments]\n"
_PROMPT = re.compile(r"t\[(\d+)\]")


class CodeExec(ToolEnv):
    """Look something up with the python tool, then write a function. Reward 1 when it passes every hidden test."""

    shared: ClassVar = {"sandbox": "sandboxes:open_sandbox"}
    system_prompt: ClassVar[str] = "Only python knows t. Answer with code."
    limits: ClassVar[Limits] = Limits(wall_s=5.0, cpu_s=4.0)

    sandbox: Sandbox

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
        return draw_tasks(split, count=count, seed=seed, draw=_draw, pair=lambda c: (c[2], c[3]), make=_make_task)

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        """Solve a task from what the conversation shows, as a model would have to."""
        question = next(m["content"] for m in messages if m["role"] == "user")
        seen = next((m["content"].strip() for m in reversed(messages) if m["role"] == "tool"), None)
        if seen is None:
            index = _PROMPT.search(question)
            assert index is not None
            call = {"name": "python", "arguments": {"code": f"print(t[{index[1]}])"}}
            return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
        first, second, constant = re.findall(r"(plus|minus|times)|\b(\d+)\.", question)[0:3]
        expression = f"x {SYMBOLS[first[0]]} {seen} {SYMBOLS[second[0]]} {constant[1]}"
        return {"role": "assistant", "content": f"def f(x): return {expression}"}

    @tool(timeout=30.0)
    async def python(self, code: str) -> str:
        """Run Python code."""
        result = await self.sandbox.run(
            ExecRequest(code=code, setup=f"t = {self.task.metadata['table']!r}", limits=self.limits)
        )
        return _report(_checked(result))

    @reward
    async def tests(self, answer: str) -> float:
        """Share of hidden tests that the answer's function passes: all or nothing."""
        arguments = [argument for argument, _ in self.task.target]
        expected = [value for _, value in self.task.target]
        request = ExecRequest(
            code=extract_code(answer) + _TESTS, call=Call(function="_call_f", args=[arguments]), limits=self.limits
        )
        result = _checked(await self.sandbox.run(request))
        return float(result.status is ExecStatus.OK and _same(result.value, expected))


def extract_code(answer: str) -> str:
    """Return the last fenced block of an answer, or the whole of it when there is none."""
    blocks = _FENCE.findall(answer)
    return blocks[-1] if blocks else answer


Content = tuple[str, int, str, int]  # operation on the table's value, index, second operation, constant


def _draw(rng: random.Random) -> Content:
    words = list(SYMBOLS)
    return rng.choice(words), rng.randint(10, 99), rng.choice(words), rng.randint(2, 99)


def _make_task(content: Content) -> Task:
    first, index, second, constant = content
    rng = random.Random(repr(content))
    table = [rng.randint(100, 999) for _ in range(100)]
    expression = f"x {SYMBOLS[first]} {table[index]} {SYMBOLS[second]} {constant}"
    arguments = rng.sample(range(1000, 10_000), 2)
    tests = [[x, eval(expression, {"__builtins__": {}}, {"x": x})] for x in arguments]  # our own expression
    question = f"Write f(x): x {first} t[{index}] {second} {constant}."
    return Task(
        prompt=({"role": "user", "content": question},),
        target=tests,
        metadata={"table": table, "operation": second, "constant": constant},
    )


def _checked(result: ExecResult) -> ExecResult:
    if result.status is ExecStatus.SANDBOX_ERROR:
        raise SandboxError(f"the {result.backend} sandbox failed: {result.error}")
    return result


def _report(result: ExecResult) -> str:
    """What the model is told of an execution."""
    text = result.stdout.rstrip("\n")
    if result.truncated_stdout:
        text += "\n[output cut]"
    if result.status is ExecStatus.OK:
        return text
    reason = {
        ExecStatus.NONZERO: f"exit code {result.exit_code}",
        ExecStatus.SIGNALED: f"killed by signal {result.signal}",
    }.get(result.status, result.status.value.replace("_", " "))
    last_lines = "\n".join(result.stderr.rstrip().splitlines()[-4:])
    return "\n".join(part for part in (text, last_lines, f"[{reason}]") if part)


def _same(value: str | None, expected: list[Any]) -> bool:
    """Compare a list of values that came out of the sandbox, as data: equal, and of exactly the same types."""
    try:
        got = json.loads(value or "")
    except ValueError:
        return False
    return got == expected and [type(x) for x in got] == [type(x) for x in expected]
