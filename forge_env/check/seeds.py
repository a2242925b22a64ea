"""The checks of randomness: a seed says everything, and it says something."""

from __future__ import annotations

import asyncio
import math
import time
from itertools import cycle, islice
from typing import Any

from forge_env.check.moves import Gate, Move
from forge_env.check.subject import Failed, Skipped, Subject, by_hand, instance
from forge_env.check.tasks import content
from forge_env.check.threads import advice
from forge_env.core.env import Env
from forge_env.core.episode import Episode
from forge_env.core.errors import ForgeError
from forge_env.core.types import Task
from forge_env.core.user_code import told

CONCURRENT, FEWEST = 64, 4
Part = tuple[Task, Move, int]
"""What is played, how, and with which seed."""


async def same_seed(subject: Subject) -> str:
    """The same seed gives the same episode: again, on the same instance, and among many others."""
    parts = [(task, move, subject.seed + i) for i, task in enumerate(subject.tasks) for move in subject.moves]
    started = time.monotonic()
    alone = [await _episode(subject, part) for part in parts]
    kept = [(part, episode) for part, episode in zip(parts, alone, strict=True) if episode.outcome.is_valid]
    if not kept:
        raise Skipped(f"no episode ended without a fault: {alone[0].error}")
    for part, episode in kept[:2]:
        _compare(episode, await _episode(subject, part), "when it is played again")
    await _reused(subject, kept[0][0])
    count = _that_fit(subject, (time.monotonic() - started) / len(parts))
    gate = Gate(count)
    crowd = list(islice(cycle(kept), count))
    together = await asyncio.gather(*(_episode(subject, part, gate) for part, _ in crowd))
    for (_, episode), other in zip(crowd, together, strict=True):
        _compare(episode, other, f"among {count} at once")
    fewer = f", as {CONCURRENT} do not fit into the budget" if count < CONCURRENT else ""
    return f"{len(kept)} episodes are the same alone and among {count} at once{fewer}"


def _that_fit(subject: Subject, seconds: float) -> int:
    """How many episodes of so many seconds fit into what is left, played one after another in the worst case."""
    left = subject.until - time.monotonic()
    return max(FEWEST, min(CONCURRENT, int(left / max(seconds, 0.001)) if math.isfinite(left) else CONCURRENT))


async def _episode(subject: Subject, part: Part, gate: Gate | None = None) -> Episode:
    task, move, seed = part
    return await subject.episode(task, move, seed=seed, gate=gate)


async def _reused(subject: Subject, part: Part) -> None:
    """An instance may be reset again and again, as Gymnasium's vector environments do."""
    async with instance(subject) as env:
        try:
            first, second = await _transcript(env, part), await _transcript(env, part)
        except Exception as error:
            reason = told(error) if isinstance(error, ForgeError) else f"{type(error).__name__}: {error}"
            raise Failed(
                f"an instance that is reset again raises ({reason}): start everything afresh in reset()"
            ) from error
    if first != second:
        raise Failed(
            "an instance that is reset again plays another episode with the same seed: set all of its state in reset()"
        )


async def _transcript(env: Env, part: Part) -> list[Any]:
    task, move, seed = part
    return [_comparable(result) async for _, result in by_hand(env, task, seed, move)]


def _comparable(result: Any) -> list[Any]:
    """What `reset` or `step` returned, without its info, which may hold durations."""
    messages, *numbers, _ = result
    return [list(messages), *numbers]


def _compare(expected: Episode, got: Episode, when: str) -> None:
    if difference := _difference(expected, got):
        what = f"with the same seed the task {expected.task.id!r} is another episode {when}: {difference}"
        raise Failed(f"{what}{_advice(got, difference, when)}")


def _advice(got: Episode, difference: str, when: str) -> str:
    """What to do, by the cause that the words tell."""
    if cause := advice(got.error) or advice(difference):
        return cause
    if not got.outcome.is_valid:
        return f": find what raises {when}, and keep what two episodes must not share on self"
    return ". Draw from self.np_random after self.seed(seed), and keep state on self"


def _difference(expected: Episode, got: Episode) -> str:
    pairs: list[tuple[str, Any, Any]] = [("outcome", str(expected.outcome), str(got.outcome))]
    if not got.outcome.is_valid:
        return f"it ends as {got.outcome} ({_cut(got.error)})"
    messages = zip(expected.messages, got.messages, strict=False)
    pairs += [(f"message {i}", dict(a), dict(b)) for i, (a, b) in enumerate(messages)]
    pairs.append(("number of messages", len(expected.messages), len(got.messages)))
    pairs.append(("step rewards", [turn.reward for turn in expected.turns], [turn.reward for turn in got.turns]))
    pairs.append(("reward", expected.reward, got.reward))
    pairs.append(("rewards", dict(expected.rewards), dict(got.rewards)))
    for name, a, b in pairs:
        if a != b:
            return f"the {name} is {_cut(a)} and then {_cut(b)}"
    return ""


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:160]}..."


async def two_seeds(subject: Subject) -> str:
    """Two seeds differ somewhere: in an episode, or else in the tasks that are drawn."""
    draws = False
    for task in subject.tasks:
        for move in subject.moves:
            (one, first), (other, second) = [await _played(subject, (task, move, subject.seed + i)) for i in (0, 1)]
            if first != second:
                return "two seeds give two episodes"
            draws |= one is not None
            if one is not None and one == other:
                raise Failed(
                    "reset() draws the same numbers whatever its seed is: call self.seed(seed) first, and draw from "
                    "self.np_random"
                )
    one, other = (
        [content(task) for task in subject.factory.tasks(count=len(subject.tasks), seed=subject.seed + i)]
        for i in (0, 1)
    )
    if one != other:
        return "the episodes draw nothing that shows, and two seeds give other tasks"
    if len(subject.tasks) == 1 and not draws:
        raise Skipped("there is one task, and nothing is drawn")
    raise Failed(
        "two seeds give the same episodes and the same tasks in the same order: draw from self.np_random in reset(), "
        "or let tasks() shuffle by its seed"
    )


async def _played(subject: Subject, part: Part) -> tuple[Any, list[Any]]:
    """The generator's state after an episode, None when nothing was drawn, and what was seen."""
    async with instance(subject) as env:
        try:
            transcript = await _transcript(env, part)
        except ForgeError as error:  # a tool that declares its exceptions fatal, or an expert that fails
            transcript = [str(error)]
        generator = env._np_random
        return None if generator is None else generator.bit_generator.state, transcript
