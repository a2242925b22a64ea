"""verifiers:ID: environments of the package verifiers (its API v1), as they are.

    make("verifiers:my_env", python="verifiers-env/bin/python")

They ask the model themselves. So an episode is one rollout of verifiers, in a process of their own, against the gateway
of `contrib.external`: what the model reads and writes is recorded there, and the reward comes with the rollout's
result.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from contrib.common.json_text import portable
from contrib.external.dialects.reading import medium_of
from contrib.external.env import External
from contrib.external.player import Player
from contrib.external.sampled import TokenLogprob
from contrib.external.session import ProgramSession
from contrib.verifiers.interpreter import configuration, describe, make_settings
from contrib.verifiers.process import Rollout
from contrib.verifiers.setup import VerifiersSetup, target_of
from envs.task_splits import bucket, check_split
from forge_env.core.env import StepResult, TimeSpentBy
from forge_env.core.errors import TooFewTasks, UserError
from forge_env.core.reward_value import reaches, reward_value
from forge_env.core.types import Action, Message, Task

MOST_TASKS = 100_000
"""Tasks that are read of an environment at most."""
TEST_SHARE = 5
"""One task in five is held out, chosen by a hash of its prompt."""
_STOPPED_BY = {"max_turns": "max_turns", "max_total_tokens": "max_tokens"}


class Verifiers(External):
    """Base of the classes of `resolve`: one rollout of verifiers an episode."""

    made_of: ClassVar[Sequence[str]] = ("contrib.verifiers", "contrib.external")
    time_spent_by: TimeSpentBy = "service"
    id: ClassVar[str]

    setup: VerifiersSetup

    def __init__(self, *, success_reward: float = 1.0) -> None:
        super().__init__()
        self._success_reward = success_reward

    @classmethod
    def tasks(  # type: ignore[override]
        cls,
        split: str = "train",
        *,
        count: int,
        seed: int = 0,
        python: str = "",
        config: str = "",
        test_config: str = "",
        harness: str = "",
        runtime: str = "",
    ) -> Sequence[Task]:
        """Return `count` of the environment's tasks; the worker lists them, which takes seconds.

        Args:
            split: "train" or "test". verifiers has no splits of its own: one task in five is held out for "test",
                unless there is a `test_config`.
            count: how many.
            seed: which ones, and in which order.
            python: the interpreter, see `contrib.verifiers.setup`, also for config, harness and runtime.
            config: see there.
            test_config: merged over `config` for the tasks of "test", {"taskset": {"split": "test"}} for example; all
                of its tasks are held out then.
            harness: see there.
            runtime: see there.
        """
        check_split(split)
        settings = make_settings(cls.id, python=python, config=config, harness=harness, runtime=runtime)
        of_test = json.loads(configuration(test_config, "test_config"))
        if of_test and split == "test":
            settings = replace(settings, config=json.dumps(_merge(json.loads(settings.config), of_test)))
        tasks = [_task(cls.id, entry) for entry in describe(settings, MOST_TASKS)["tasks"]]
        if not of_test:
            tasks = [task for task in tasks if (bucket(task.prompt, TEST_SHARE) == 0) == (split == "test")]
        if len(tasks) < count:
            text = f"{count} {split} tasks were asked for, and verifiers:{cls.id} has {len(tasks)}: ask for fewer"
            raise TooFewTasks(text, len(tasks))
        return random.Random(f"{split}/{seed}").sample(tasks, count)

    @classmethod
    def effects(cls) -> str:  # type: ignore[override]
        """Say that an episode runs code of the environment."""
        return f"runs verifiers:{cls.id}"

    @classmethod
    def limits(  # type: ignore[override]
        cls, *, python: str = "", config: str = "", harness: str = "", runtime: str = ""
    ) -> Mapping[str, float]:
        """The turns that the environment allows, if it has a limit."""
        settings = make_settings(cls.id, python=python, config=config, harness=harness, runtime=runtime)
        max_turns = describe(settings, MOST_TASKS)["max_turns"]
        return {} if max_turns is None else {"max_turns": max_turns}

    def success(self, reward: float) -> bool:
        return reaches(reward, self._success_reward)

    async def answer(self, context: int, action: Action, logprobs: Sequence[TokenLogprob] = ()) -> None:
        """Deliver an answer; the JSON reader of verifiers refuses half a surrogate pair, which a model may write."""
        calls = tuple(
            replace(call, arguments=portable(call.arguments), raw=portable(call.raw)) for call in action.tool_calls
        )
        action = replace(action, message=portable(action.message), tool_calls=calls)
        await super().answer(context, action, logprobs)

    async def _begin(self, session: ProgramSession, seed: int) -> Player:
        request = {"data": self._task.metadata["data"], "base_url": self.setup.gateway.base_url, "token": session.token}
        return await self.setup.worker.play(request)

    async def _end(self) -> StepResult:
        rollout = self._player
        assert isinstance(rollout, Rollout)
        await rollout.wait_for_end()
        if self._full_at is None or "died" in rollout.result_data:
            rollout.raise_failure()
        observation, reward, terminated, truncated, info = await super()._end()
        if terminated:
            result = rollout.result_data
            info["verifiers"] = {name: result[name] for name in ("metrics", "stop_condition", "info")}
            if result["truncated"]:
                terminated, truncated = False, True
                info.pop("outcome", None)  # not SCORED, although the program's own limit cut the last answer
                info["ended_by"] = _STOPPED_BY.get(str(result["stop_condition"]), "environment")
        return observation, reward, terminated, truncated, info

    async def _reward(self, player: Player, code: int) -> tuple[float, dict[str, float]]:
        assert isinstance(player, Rollout)
        reward = reward_value(player.result_data["reward"], f"verifiers:{self.id} gave the reward")
        return reward, dict(player.result_data["rewards"])


def _task(id_: str, entry: Mapping[str, Any]) -> Task:
    data = entry["data"]
    prompt: list[Message] = []
    if data.get("system_prompt"):
        prompt.append({"role": "system", "content": data["system_prompt"]})
    first = data.get("prompt")
    if isinstance(first, str):
        prompt.append({"role": "user", "content": first})
    else:
        prompt += [{"role": m["role"], "content": _text(m.get("content"))} for m in first or ()]
    if not prompt:
        prompt.append({"role": "user", "content": f"Task {data.get('idx')} of {id_}."})
    answer = data.get("answer")
    target = answer if isinstance(answer, (str, int, float)) else None
    return Task(prompt=tuple(prompt), target=target, metadata={"env": id_, "data": data}, id=entry["key"])


def _text(content: Any) -> str:
    if isinstance(content, list):
        media = [medium_of(part) for part in content]
        texts = [part.get("text", f"[{part.get('type')}]") for part in content]
        return "\n".join(m.note if m else str(text) for m, text in zip(media, texts, strict=True))
    return str(content or "")


def _merge(first: dict[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first with the second written over it, level by level."""
    result = dict(first)
    for name, value in second.items():
        present = result.get(name)
        result[name] = _merge(present, value) if isinstance(present, dict) and isinstance(value, Mapping) else value
    return result


@functools.cache
def resolve(rest: str) -> type[Verifiers]:
    """Return the environment of "verifiers:REST"; REST is the id of a taskset, "owner/name" too."""
    if not rest.strip():
        raise UserError("verifiers: needs the id of an environment behind it, such as verifiers:my_env")
    name = "".join(word.capitalize() for word in rest.replace("/", "_").replace("-", "_").split("_") if word)
    attributes = {
        "id": rest,
        "shared": {"setup": target_of(rest)},
        "__doc__": f"The environment {rest} of verifiers.",
        "__module__": __name__,
    }
    return type(name if name.isidentifier() else "OfVerifiers", (Verifiers,), attributes)
