"""code_exec: the model runs Python in a sandbox, then answers with a program that hidden tests grade.

The tasks are procedural, by level, or come from a data set. In those of level 1 a table `t` exists only inside the
`python` tool; the program asked for needs one of its values, so no answer is right without having looked. Answers are
graded in fresh sandbox processes, where neither the table nor anything that the model's earlier code left behind
exists; expected values never enter the sandbox (see envs/code_exec/grading.py).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar

from envs.code_exec.cheats import cheats
from envs.code_exec.dataset_tasks import load_tasks
from envs.code_exec.file_tasks import next_step, tasks_with_files
from envs.code_exec.grading import Verdict, grade
from envs.code_exec.story_tasks import Step, solve_story, tasks_of_level
from envs.task_splits import SYMBOLS, draw_tasks
from forge_env.core.env import StepResult
from forge_env.core.errors import SandboxError, UserError
from forge_env.core.sandbox import ExecRequest, ExecResult, ExecStatus, Limits, Sandbox, Session
from forge_env.core.tools import Tool, reward, tool
from forge_env.core.types import Action, Message, Task
from forge_env.tool_env.tool_env import ToolEnv
from forge_env.utils.deadlines import queued

_FENCE = "```"
_OPENING = re.compile(r"```(?:python|py)?\s*\n")
_LOOK_UP = re.compile(r"Write f\(x\): x (plus|minus|times) t\[(\d+)\] (plus|minus|times) (\d+)\.")


class CodeExec(ToolEnv):
    """Try code with the python tool, then answer with a program. Reward 1 when it passes every hidden test."""

    shared: ClassVar = {"sandbox": "sandboxes:open_sandbox"}
    time_spent_by = "model"
    system_prompt: ClassVar[str] = "Only python knows t. Answer with code."
    """Of level 1; other tasks have their own in `metadata["system"]`."""
    sandbox_limits: ClassVar[Limits] = Limits(wall_s=5.0, cpu_s=4.0)
    """Of one call of the tool, and of one test."""

    sandbox: Sandbox

    def __init__(
        self,
        *,
        use_tools: bool = True,
        extra_tools: Iterable[Tool] = (),
        stateful: bool = True,
        partial_credit: bool = False,
        seconds: float | None = None,
    ) -> None:
        """Make an instance.

        Args:
            stateful: the variables and files of the python tool last for the episode. The session is opened at the
                first call, and as many episodes can hold one as the sandbox has sessions; False runs each call alone.
            partial_credit: the reward is the share of the tests that pass.
            seconds: CPU seconds of one call of the tool, and of one test; one more of wall-clock time.
        """
        if seconds is not None and not 0 < seconds <= 60:
            raise UserError(f"the option seconds of code_exec is {seconds!r}; it is above 0 and at most 60")
        self._stateful = stateful
        self._partial_credit = partial_credit
        self._limits_of_run = self.sandbox_limits if seconds is None else _limits_of(self.sandbox_limits, seconds)
        self._session: Session | None = None
        self._verdict: Verdict | None = None
        super().__init__(use_tools=use_tools, extra_tools=extra_tools)

    @classmethod
    def tasks(
        cls, split: str = "train", *, count: int, seed: int = 0, level: int = 1, data: str = ""
    ) -> Sequence[Task]:
        """Return tasks of a level from 1 to 4, or those of a data set.

        Args:
            split: "train" or "test"; of `data` also "all".
            count: how many.
            seed: which ones, and in which order.
            level: 1 is a look-up, 2 has two look-ups or texts, 3 lists and programs that read and print, 4 a file that
                has to be explored.
            data: a local file, .jsonl, .jsonl.gz, .json or .parquet, in the shape of HumanEval, MBPP, APPS or
                LiveCodeBench; see `envs.code_exec.dataset_tasks.load_tasks`.

        Raises:
            UserError: for what does not exist or cannot be read, or more tasks than there are.
        """
        if level not in (1, 2, 3, 4):
            raise UserError(f"code_exec has no level {level}; the levels are 1, 2, 3 and 4")
        if data:
            return load_tasks(data, split=split, count=count, seed=seed)
        if level == 1:
            return draw_tasks(split, count=count, seed=seed, draw=_draw, pair=lambda c: (c[2], c[3]), make=_make_task)
        if level == 4:
            return tasks_with_files(split, count=count, seed=seed)
        return tasks_of_level(level, split, count=count, seed=seed)

    @classmethod
    def limits(cls, *, level: int = 1) -> Mapping[str, float]:
        """The files of level 4 take four turns to explore; the others take fewer than any caller allows."""
        return {"max_turns": 8} if level == 4 else {}

    @classmethod
    def cheats(cls, task: Task) -> Sequence[str]:
        """Final answers that must earn nothing: they go for the grader, or know what was shown by heart."""
        return cheats(task)

    @staticmethod
    def expert(messages: list[Message]) -> Message:
        """Solve a task of any level from what the conversation shows, as a model would have to.

        Raises:
            UserError: for a task of a data set.
        """
        question = next(m["content"] for m in messages if m["role"] == "user")
        results = [m["content"].strip() for m in messages if m["role"] == "tool"]
        step = _solve_look_up(question, results) or solve_story(question, results) or next_step(question, results)
        if step is None:
            raise UserError("the expert of code_exec solves the tasks of its levels, not those of a data set")
        if step.is_answer:
            return {"role": "assistant", "content": step.code}
        call = {"name": "python", "arguments": {"code": step.code}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}

    async def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        await self.close()
        self._verdict = None
        messages, info = await super().reset(seed=seed, options=options)
        if "system" in self.task.metadata:
            own: Message = {"role": "system", "content": self.task.metadata["system"]}
            self.messages = [own, *(m for m in messages if m["role"] != "system")]
        return tuple(self.messages), {**info, "sandbox": self.sandbox.capabilities}

    async def step(self, action: Action) -> StepResult:
        """Take one action; after the final answer `info["tests"]` has the `Verdict` as a dict."""
        observation, total, terminated, truncated, info = await super().step(action)
        if terminated and self._verdict is not None:
            info["tests"] = asdict(self._verdict)
        return observation, total, terminated, truncated, info

    async def close(self) -> None:
        await self._end_session()

    @tool(timeout=30.0)
    async def python(self, code: str) -> str:
        """Run Python code."""
        return _report(_checked(await self._execute(code)))

    @reward
    async def tests(self, answer: str) -> float:
        """1 when the answer passes every hidden test, else 0; the share that passes with `partial_credit`."""
        # What lives on in the tool could tell the answer what it knows: by a lock on a file that both can read, say.
        await self._end_session()
        self._verdict = await grade(
            self.sandbox,
            extract_code(answer),
            self.task.target,
            limits=self._limits_of_run,
            all_or_nothing=not self._partial_credit,
            seed=(self._seed, answer),
        )
        return self._verdict.share if self._partial_credit else float(self._verdict.share == 1.0)

    async def _end_session(self) -> None:
        """End every process of the python tool."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _execute(self, code: str) -> ExecResult:
        setup = _setup(self.task)
        if not self._stateful:
            return await self.sandbox.run(ExecRequest(code=code, setup=setup, limits=self._limits_of_run))
        if self._session is None:
            async with queued():  # other episodes may hold all of the sandbox's sessions
                self._session = await self.sandbox.open_session(setup=setup, limits=self._limits_of_run)
        return await self._session.run(code)


def extract_code(answer: str) -> str:
    """Return the last fenced block of an answer, or the whole of it when there is none."""
    block, at = answer, 0
    while opening := _OPENING.search(answer, at):
        end = answer.find(_FENCE, opening.end())
        if end < 0:  # nothing closes after here: to look for it from every later opening would be quadratic
            break
        block, at = answer[opening.end() : end], end + len(_FENCE)
    return block


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


def _solve_look_up(question: str, results: Sequence[str]) -> Step | None:
    """The next step of a task of level 1."""
    story = _LOOK_UP.fullmatch(question)
    if story is None:
        return None
    first, index, second, constant = story.groups()
    if not results:
        return Step(code=f"print(t[{index}])")
    return Step(code=f"def f(x): return x {SYMBOLS[first]} {results[-1]} {SYMBOLS[second]} {constant}", is_answer=True)


def _setup(task: Task) -> str:
    """The code that runs in the python tool before the model's own: it makes the tables and files of the task."""
    if "table" in task.metadata:
        return f"t = {task.metadata['table']!r}"
    return str(task.metadata.get("setup", ""))


def _limits_of(limits: Limits, seconds: float) -> Limits:
    return replace(limits, cpu_s=seconds, wall_s=seconds + 1.0)


def _checked(result: ExecResult) -> ExecResult:
    if result.status is ExecStatus.SANDBOX_ERROR:
        raise SandboxError(f"the {result.backend} sandbox failed: {result.error}")
    return result


def _report(result: ExecResult) -> str:
    """What the model is told of an execution."""
    text = result.stdout.rstrip("\n")
    if result.truncated_stdout:
        text += "\n[output cut]"
    lost = "[variables and files are gone]" if result.state_lost else ""
    if result.status is ExecStatus.OK:
        return "\n".join(part for part in (text, lost) if part)
    reason = {
        ExecStatus.NONZERO: f"exit code {result.exit_code}",
        ExecStatus.SIGNALED: f"killed by signal {result.signal}",
    }.get(result.status, result.status.value.replace("_", " "))
    last_lines = "\n".join(result.stderr.rstrip().splitlines()[-4:])
    return "\n".join(part for part in (text, last_lines, f"[{reason}]", lost) if part)
