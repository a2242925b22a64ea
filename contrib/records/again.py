"""Judges recorded episodes again, by the environment as it is today, without the agent.

What an episode made is made again by its recorded turns (`contrib.records.replay`), and scored by the environment's
present code and tasks. An episode is judged only if every recorded turn was an answer to what the environment shows
today; otherwise the record does not hold enough, and the reason is given.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from contrib.records.replay import Replay, replay_in
from contrib.records.run_settings import RunSettings
from forge_env.core.episode import Episode, Group
from forge_env.core.errors import UserError
from forge_env.core.types import Message, Outcome, Task
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.group_reward import with_group_rewards
from forge_env.rollout.task_list import TASKS_SECONDS

ALL = "all"
"""The split of an environment with every task of its data."""
_FEW_TASKS, _MOST_TASKS = 1_000, 200_000
_SECONDS = 20.0
"""What lists tasks for longer makes them without end: data of that size are read in less."""
_NOT_THE_ENVIRONMENT = (Outcome.INFRA_FAULT, Outcome.TIMEOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAgain:
    before: Episode
    after: Episode
    """The recorded one where `refused` is set."""
    refused: str = ""
    """Why it was not judged."""

    @property
    def has_changed(self) -> bool:
        was, now = self.before, self.after
        return (was.outcome, was.reward, was.success) != (now.outcome, now.reward, now.success)


class TasksOfToday:
    """The tasks that the data of an environment have now, found by their prompts.

    An environment that makes tasks without end never lists them all. So it is asked for a few, and for more only if a
    recorded task is not among these. `note` says why tasks of the record are judged instead.
    """

    def __init__(self, factory: EnvFactory, tasks_of_run: Iterable[Task]) -> None:
        self._by_prompt: dict[str, dict[str, Task]] = {}
        self._is_whole = False
        self.note = ""
        ids = {task.id for task in tasks_of_run}
        try:
            self._list(factory, max(_FEW_TASKS, len(ids)), TASKS_SECONDS)
        except UserError as error:
            self.note = f"the tasks are those of the record, since the environment lists no others: {error}"
            return
        ids_today = {id_ for tasks in self._by_prompt.values() for id_ in tasks}
        if self._is_whole or ids <= ids_today:
            return
        with contextlib.suppress(UserError):
            self._list(factory, _MOST_TASKS, _SECONDS)
        if not self._is_whole:
            self.note = (
                "the environment has tasks without end: of tasks that are not among those that were listed, those of "
                "the record are judged"
            )

    def _list(self, factory: EnvFactory, count: int, seconds: float) -> None:
        tasks = factory.tasks(ALL, count=count, at_most=True, seconds=seconds)
        for task in tasks:
            self._by_prompt.setdefault(_key(task.prompt), {})[task.id] = task
        self._is_whole = len(tasks) < count

    def of(self, record: Task) -> Task:
        """Return the task that is judged, under its recorded id."""
        candidates = self._by_prompt.get(_key(record.prompt), {})
        if record.id in candidates or (not candidates and not self._is_whole):
            return record
        if len(candidates) != 1:
            many = "no task" if not candidates else f"{len(candidates)} tasks"
            raise UserError(f"the environment has {many} with its prompt today")
        [task] = candidates.values()
        return replace(task, id=record.id)


async def judge_again(
    episodes: Iterable[Episode], settings: RunSettings, factory: EnvFactory, tasks: TasksOfToday, *, at_once: int
) -> AsyncIterator[JudgedAgain]:
    """Yield the episodes, judged; those that are compared with each other come at the end, group by group."""
    remaining, groups = iter(episodes), dict[str, list[JudgedAgain]]()
    while batch := list(islice(remaining, at_once)):
        for verdict in await asyncio.gather(*(_judge(episode, settings, factory, tasks) for episode in batch)):
            if factory.group_rewards:
                groups.setdefault(verdict.before.group_id, []).append(verdict)
            else:
                yield verdict
    for siblings in groups.values():
        for verdict in await _compare(siblings, settings, factory):
            yield verdict


async def _compare(
    siblings: Sequence[JudgedAgain], settings: RunSettings, factory: EnvFactory
) -> Sequence[JudgedAgain]:
    """The siblings with the rewards of their comparison, if all that had a reward were judged; one alone as it is."""
    if len(siblings) == 1:
        return siblings
    if any(one.refused and one.before.outcome.is_valid for one in siblings):
        reason = "it is compared with its siblings, and one of them was not judged"
        return [one if one.refused else _refusal(one.before, reason) for one in siblings]
    after = tuple(one.after for one in siblings)
    group = Group(task=after[0].task, episodes=after, id="again")
    result = await with_group_rewards(factory, group, limits=settings.limits)
    return [replace(one, after=episode) for one, episode in zip(siblings, result.episodes, strict=True)]


async def _judge(before: Episode, settings: RunSettings, factory: EnvFactory, tasks: TasksOfToday) -> JudgedAgain:
    if before.outcome in _NOT_THE_ENVIRONMENT:
        return _refusal(before, f"it has nothing to judge: {before.outcome.replace('_', ' ')}: {before.error}")
    try:
        task = tasks.of(before.task)
    except UserError as error:
        return _refusal(before, str(error))
    replay = await replay_in(factory, replace(before, task=task), settings)
    if reason := _not_enough(replay):
        return _refusal(before, reason)
    return JudgedAgain(before=before, after=_with_verdict(before, replay, task))


def _not_enough(replay: Replay) -> str:
    """Why the replay is not the recorded episode; "" if it is, whatever its rewards are."""
    if replay.replayed.outcome in _NOT_THE_ENVIRONMENT and not replay.stop_reason:
        return f"the machinery failed: {replay.replayed.error}"
    if replay.stop_reason:
        return f"the record does not hold enough: {replay.stop_reason}"
    for difference in replay.differences:
        # What is shown after the last turn is not a question to the agent: it may tell the verdict.
        if difference.what in ("observation", "tools", "end") and difference.turn != len(replay.recorded.turns):
            return f"the record does not hold enough: turn {difference.turn} has another {difference.what} today"
    return ""


def _with_verdict(before: Episode, replay: Replay, task: Task) -> Episode:
    """The recorded episode with what the environment says today."""
    today = replay.replayed
    turns = [replace(turn, reward=replay.turn_of[number].reward) for number, turn in enumerate(before.turns)]
    return replace(
        before,
        task=task,
        turns=tuple(turns),
        outcome=today.outcome,
        reward=today.reward,
        rewards=today.rewards,
        success=today.success,
        error=today.error,
        ended_by=today.ended_by,
        tail=today.tail,
        info={**before.info, **today.info},
    )


def _refusal(episode: Episode, reason: str) -> JudgedAgain:
    return JudgedAgain(before=episode, after=episode, refused=reason)


def _key(prompt: Sequence[Message]) -> str:
    return "\0".join(f"{message['role']}\0{message['content']}" for message in prompt)
