"""The reward of a program: by a function, by the environment of its tasks, or by its result file."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrib.common.json_text import decoded, read, write
from forge_env.core.errors import EnvError
from forge_env.core.plain_value import own_task
from forge_env.core.reward_value import is_within, reward_value
from forge_env.core.types import Action, EpisodeLimits, Message, Task
from forge_env.rollout.env_calls import close_env
from forge_env.rollout.factory import EnvFactory
from forge_env.tool_env.rubric import RewardPart, score
from forge_env.utils.threads import call_on

MAX_RESULT = 2**20
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")
"""An escape sequence of a terminal: a colour, a title."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The answer of a program, and the reward that its result file gives, if any.

    Example: ``Result(answer="42", reward=1.0)``
    """

    answer: str
    reward: float | None = None
    printed_reward: bool = False
    """Whether the last line printed named a reward. It does not count, since a program may print the model's text."""


def read_result(file: str | None, stdout: str, last_words: str) -> Result:
    """Read the answer from the result file, else from the last line printed, else use the model's last message.

    `file` is the text of the result file, None if there is none. File and line may be JSON with an "answer"; any other
    line is the answer itself. A "reward" counts in the file only: programs print what a model wrote, and the model
    could write such a line.
    """
    # Not by `splitlines`, which also cuts at U+2028 and form feeds: an answer may hold them.
    lines = [_ESCAPE.sub("", line).strip().strip("\0\ufeff").strip() for line in re.split("[\\r\\n]", stdout)]
    line = next(filter(None, reversed(lines)), "")
    output = _object(line) or {}
    answer = last_words if output else line or last_words
    in_file = {} if file is None else _object(file)
    if in_file is None:
        raise EnvError('the result file of the program is no JSON object like {"answer": "4", "reward": 1.0}')
    values = {**output, **in_file}
    if "answer" in values:
        answer = values["answer"] if isinstance(values["answer"], str) else write(values["answer"])
    reward = in_file.get("reward")
    return Result(
        answer=answer,
        reward=None if reward is None else reward_value(reward, "the program gave the reward"),
        printed_reward="reward" in output,
    )


def _object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object with an "answer" or a "reward"; None for any other text."""
    try:
        value = read(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.keys() & {"answer", "reward"} else None


def text_of(file: Path) -> str:
    try:
        # No link, which could lead out of a sandbox, and no pipe, which would block.
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise EnvError("the result file of the program is no file")
            return decoded(stream.read(MAX_RESULT))
    except OSError as error:
        raise EnvError(f"the result file of the program cannot be read: {error.strerror}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """Gives the reward of a program's work.

    Args:
        part: a reward function; it is used if there is one.
        env: the opened environment of the tasks; it is used if there is no function.
        reward_range: the least and the largest reward that the program may give itself.
        giver: the name of that reward in the Episode.
    """

    part: RewardPart | None = None
    env: EnvFactory | None = None
    reward_range: tuple[float, float] = (-1.0, 1.0)
    giver: str = "program"

    @property
    def name(self) -> str:
        """What scores an answer; empty where the agent says what its work is worth."""
        if self.part is not None:
            return f"the function {self.part.name}"
        return "" if self.env is None else f"the environment {self.env.name}"

    async def score(
        self, task: Task, messages: Sequence[Message], result: Result, *, seed: int, limits: EpisodeLimits
    ) -> tuple[float, dict[str, float]]:
        if self.part is not None:
            return await score([self.part], task, messages, result.answer)
        if self.env is not None:
            return await _score_in(self.env, task, result.answer, seed=seed, limits=limits)
        if result.reward is None:
            hint = "a reward that is printed does not count, since the model's text may be printed too; "
            raise EnvError(
                f"nothing says what the program's work is worth: {hint if result.printed_reward else ''}name a "
                'function with the option reward, or let the program write {"reward": 1.0} to the file FORGE_ENV_RESULT'
            )
        low, high = self.reward_range
        if not is_within(result.reward, low, high):
            raise EnvError(
                f"the program gave the reward {result.reward:g}, and the option reward_range says {low:g},{high:g}: "
                "set it to the range that the program's rewards have"
            )
        reward = min(max(result.reward, low), high)
        return reward, {self.giver: reward}


async def _score_in(
    factory: EnvFactory, task: Task, answer: str, *, seed: int, limits: EpisodeLimits
) -> tuple[float, dict[str, float]]:
    """Run an episode of the environment with the answer as its only action."""
    env = await factory.construct(seconds=limits.step_seconds)
    try:
        await call_on(env, env.reset, seed=seed, options={"task": own_task(task), "limits": limits})
        action = Action(message={"role": "assistant", "content": answer})
        _, reward, terminated, _, info = await call_on(env, env.step, action)
    finally:
        await close_env(env, limits.step_seconds)
    if not terminated:
        raise EnvError(
            f"{factory.name} does not score a final answer by itself: name a function with the option reward"
        )
    return reward_value(reward, f"{factory.name} returned the reward"), dict(info.get("rewards", {}))
