"""Attacks the training tasks of a run before its first step, and knows the cheats in its episodes."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from contrib.check.audit import hole_of, play_task
from contrib.check.context import shorten
from contrib.check.strategies import actions_in_order, as_action, final_answer
from contrib.common.task_audit import KnownCheat
from forge_env.core.episode import Episode
from forge_env.core.errors import ForgeError
from forge_env.core.types import Action, Task, ToolCall
from forge_env.evaluation.evaluate import is_success
from forge_env.rollout.factory import EnvFactory
from trainers.run.audit import Hole

TASKS = 4
MOST_AT_ONCE = 8
MOST_REMEMBERED = 1024
EMPTY = "an empty answer"


@dataclass(frozen=True, slots=True)
class Attack:
    """A cheat on one task."""

    name: str
    actions: Sequence[Action] = ()

    @property
    def answer(self) -> str | None:
        """The final answer, if it is all that the cheat does."""
        is_answer = len(self.actions) == 1 and not self.actions[0].tool_calls
        return str(self.actions[0].message["content"]).strip() if is_answer else None

    @property
    def texts(self) -> set[str]:
        return {text for action in self.actions for text in _texts(action.tool_calls)}


class TaskAuditor:
    """See `trainers.run.audit.Auditor`.

    What counts as a cheat in an episode: a text argument of a call matches the pattern of a known cheat; or the reward
    is above 0, and the final answer of an episode without calls, or all calls of a cheat, are what the environment's
    `cheats(task)` lists. A wrong answer that the list has by chance is not a cheat. A `cheats` that raises lists
    nothing; `forge-env check` shows it.
    """

    def __init__(self, factory: EnvFactory) -> None:
        self._factory, self._class = factory, factory.env_class
        self._known_cheats: Sequence[KnownCheat] = getattr(self._class, "known_cheats", ())
        self._patterns = [(cheat.name, re.compile(cheat.pattern)) for cheat in self._known_cheats if cheat.pattern]
        self._has_list = hasattr(self._class, "cheats")
        self._attacks: dict[str, Sequence[Attack]] = {}  # by the id of a task
        self.tasks_by_default = TASKS if self._known_cheats else 0

    @property
    def knows_cheats(self) -> bool:
        return bool(self._patterns) or self._has_list

    # ---- before a run ----

    async def audit(self, tasks: Sequence[Task], *, seed: int, seconds: float) -> dict[str, Hole | None]:
        """Attack tasks, several attacks at once: a task that has no verdict in time is not in the answer."""
        slots = asyncio.Semaphore(max(2, min(MOST_AT_ONCE, os.cpu_count() or 2)))
        attacks = {task.id: [Attack(EMPTY), *self._attacks_on(task)] for task in tasks}
        episodes_of: dict[str, dict[str, Episode]] = {task.id: {} for task in tasks}

        async def play(task: Task, attack: Attack) -> None:
            async with slots:
                with suppress(ForgeError):  # of this attack: it has no verdict
                    strategy = actions_in_order(*attack.actions)
                    episodes_of[task.id][attack.name] = await play_task(self._factory, task, strategy, seed)

        async with self._factory:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                    for task in tasks:
                        for attack in attacks[task.id]:
                            group.create_task(play(task, attack))
        holes: dict[str, Hole | None] = {}
        for task in tasks:
            episodes, names = episodes_of[task.id], {attack.name for attack in attacks[task.id]}
            verdicts = {name for name, episode in episodes.items() if episode.reward is not None}
            if verdicts == names or any(map(is_success, episodes.values())):
                holes[task.id] = self._hole(task, episodes)
        return holes

    def _attacks_on(self, task: Task) -> Sequence[Attack]:
        """What the environment lists for a task."""
        if task.id not in self._attacks:
            if len(self._attacks) >= MOST_REMEMBERED:
                self._attacks.clear()
            self._attacks[task.id] = []
            with suppress(Exception):  # of the user's code
                self._attacks[task.id] = [*self._cheats_of(task)]
        return self._attacks[task.id]

    def _cheats_of(self, task: Task) -> Iterator[Attack]:
        for cheat in self._class.cheats(task) if self._has_list else ():  # type: ignore[attr-defined]
            if isinstance(cheat, str):
                words = shorten(" ".join(cheat.split()), 40)
                yield Attack(f"the answer {words!r}" if words else EMPTY, [final_answer(cheat)])
            else:
                attack = Attack("", [*map(as_action, cheat)])
                text = "\n".join(sorted(attack.texts))
                names = (item.name for item in self._known_cheats if item.script in text)
                yield Attack(next(names, f"the calls {shorten(text, 40)!r}"), attack.actions)

    def _hole(self, task: Task, episodes: Mapping[str, Episode]) -> Hole | None:
        """The first cheat that is a success, or else the one that earns most and more than an empty answer."""
        rewards = {name: episode.reward or 0.0 for name, episode in episodes.items()}
        name = next((n for n in episodes if is_success(episodes[n])), max(rewards, key=rewards.__getitem__))
        is_paid_in_full = is_success(episodes[name])
        if not is_paid_in_full and rewards[name] <= max(0.0, rewards.get(EMPTY, 0.0)):
            return None
        why = f"{EMPTY} earns {rewards[name]:g}" if name == EMPTY else hole_of(self._class, name)
        return Hole(task=str(task.metadata.get("name") or task.id), why=why, is_paid_in_full=is_paid_in_full)

    # ---- in a run ----

    def cheat_of(self, episode: Episode) -> str:
        texts = {text for turn in episode.turns for text in _texts(turn.tool_calls)}
        for name, pattern in self._patterns:
            if any(map(pattern.search, texts)):
                return name
        if not self._has_list or not (episode.reward or 0.0) > 0 or not episode.turns:
            return ""
        has_called = any(turn.tool_calls for turn in episode.turns)  # to say "done" after the work is not a cheat
        answer = None if has_called else str(episode.turns[-1].message.get("content") or "").strip()
        for attack in self._attacks_on(episode.task):
            is_same = attack.answer == answer if attack.answer is not None else attack.texts and attack.texts <= texts
            if is_same:
                return attack.name
        return ""


def _texts(calls: Sequence[ToolCall]) -> Iterator[str]:
    for call in calls:
        yield from (value for value in (call.arguments or {}).values() if isinstance(value, str))
