"""What a program's work is worth: by a function, by the environment whose tasks it did, or by its own word."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_env.core.errors import EnvError
from forge_env.core.reward_value import reward_value
from forge_env.core.types import Action, EpisodeLimits, Message, Task
from forge_env.rollout.factory import EnvFactory
from forge_env.tool_env.rubric import RewardPart, score
from forge_env.utils.threads import invoke

MAX_RESULT = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a program leaves: its answer, and its own word on the reward, which is in its file or nowhere.

    Example: ``Result(answer="42", reward=1.0)``
    """

    answer: str
    reward: float | None = None
    printed_reward: bool = False
    """Whether its last line named a reward, which counts nowhere: what is printed may be the model's text."""


def read_result(file: Path, stdout: str, last_words: str) -> Result:
    """Read the answer out of the result's file, else out of the last line printed; else take the model's words.

    Both may be JSON with an "answer"; a line that is not is the answer. A "reward" counts in the file only: programs
    print what a model wrote, and the model could write such a line.

    Raises:
        EnvError: when the file cannot be read, or the reward is none.
    """
    lines = [line for line in stdout.splitlines() if line.strip()]
    line = lines[-1].strip() if lines else ""
    printed = _object(line) or {}
    answer = last_words if printed else line or last_words
    filed = _object(_text_of(file)) if os.path.lexists(file) else {}
    if filed is None:
        raise EnvError('the result file of the program is no JSON object like {"answer": "4", "reward": 1.0}')
    said = {**printed, **filed}
    if "answer" in said:
        answer = said["answer"] if isinstance(said["answer"], str) else json.dumps(said["answer"])
    reward = filed.get("reward")
    return Result(
        answer=answer,
        reward=None if reward is None else reward_value(reward, "the program gave the reward"),
        printed_reward="reward" in printed,
    )


def _object(text: str) -> dict[str, Any] | None:
    """A JSON object that says something of the result; None for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.keys() & {"answer", "reward"} else None


def _text_of(file: Path) -> str:
    try:
        # Neither a link, which could lead out of a sandbox, nor a pipe, which would keep us waiting.
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise EnvError("the result file of the program is no file")
            return opened.read(MAX_RESULT).decode("utf-8", "replace")
    except OSError as error:
        raise EnvError(f"the result file of the program cannot be read: {error.strerror}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """Gives the reward of a program's work.

    Args:
        part: a reward function; it comes before all others.
        env: the environment of the tasks, opened; its own word comes before the program's.
        reward_range: the least and the largest reward that the program may give itself.
    """

    part: RewardPart | None = None
    env: EnvFactory | None = None
    reward_range: tuple[float, float] = (-1.0, 1.0)

    async def score(
        self, task: Task, messages: Sequence[Message], result: Result, *, seed: int, limits: EpisodeLimits
    ) -> tuple[float, dict[str, float]]:
        """Return the reward and its breakdown.

        Raises:
            EnvError: when there is none, or it is out of range.
        """
        if self.part is not None:
            return await score([self.part], task, messages, result.answer)
        if self.env is not None:
            return await _score_in(self.env, task, result.answer, seed=seed, limits=limits)
        if result.reward is None:
            printed = "a reward that is printed does not count, since the model's text may be printed too; "
            raise EnvError(
                f"nothing says what the program's work is worth: {printed if result.printed_reward else ''}name a "
                'function with the option reward, or let the program write {"reward": 1.0} to the file FORGE_ENV_RESULT'
            )
        low, high = self.reward_range
        if not low <= result.reward <= high:
            raise EnvError(
                f"the program gave the reward {result.reward:g}, and the option reward_range says {low:g},{high:g}: "
                "set it to the range that the program's rewards have"
            )
        return result.reward, {"program": result.reward}


async def _score_in(
    factory: EnvFactory, task: Task, answer: str, *, seed: int, limits: EpisodeLimits
) -> tuple[float, dict[str, float]]:
    """Give the answer as the first and last word of an episode of the environment."""
    env = factory.make()
    try:
        await invoke(env.reset, seed=seed, options={"task": task, "limits": limits})
        action = Action(message={"role": "assistant", "content": answer})
        _, reward, terminated, _, info = await invoke(env.step, action)
    finally:
        await invoke(env.close)
    if not terminated:
        raise EnvError(
            f"{factory.name} does not score a final answer by itself: name a function with the option reward"
        )
    return reward_value(reward, f"{factory.name} returned the reward"), dict(info.get("rewards", {}))
