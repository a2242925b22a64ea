"""The checks of seeds: equal seeds give equal episodes, and different seeds give different ones."""

from __future__ import annotations

import asyncio
import math
import time
from itertools import cycle, islice
from typing import Any

from contrib.check.context import CheckContext, CheckFailed, CheckSkipped, shorten
from contrib.check.direct_calls import fresh_instance, play_directly
from contrib.check.strategies import Strategy, TurnBarrier
from contrib.check.tasks import content
from contrib.check.threads import advice
from forge_env.core.env import Env
from forge_env.core.episode import Episode
from forge_env.core.errors import ForgeError
from forge_env.core.types import Task
from forge_env.core.user_code import error_text

MAX_CONCURRENT, MIN_CONCURRENT = 64, 4
EpisodeSpec = tuple[Task, Strategy, int]
"""Task, strategy and seed of an episode."""


async def same_seed(context: CheckContext) -> str:
    """The same seed gives the same episode: when played again, on the same instance, and at the same time as others."""
    specs = [
        (task, strategy, context.seed + i) for i, task in enumerate(context.tasks) for strategy in context.strategies
    ]
    start = time.monotonic()
    alone = [await _episode(context, spec) for spec in specs]
    valid = [(spec, episode) for spec, episode in zip(specs, alone, strict=True) if episode.outcome.is_valid]
    if not valid:
        raise CheckSkipped(f"no episode ended without a fault: {alone[0].error}")
    for spec, episode in valid[:2]:
        _compare(episode, await _episode(context, spec), "when it is played again")
    await _check_reset_again(context, valid[0][0])
    count = _concurrent_episodes(context, (time.monotonic() - start) / len(specs))
    barrier = TurnBarrier(count)
    crowd = list(islice(cycle(valid), count))
    together = await asyncio.gather(*(_episode(context, spec, barrier) for spec, _ in crowd))
    for (_, episode), other in zip(crowd, together, strict=True):
        _compare(episode, other, f"among {count} at once")
    _check_tasks_are_kept(context)
    fewer = f", as {MAX_CONCURRENT} do not fit into the budget" if count < MAX_CONCURRENT else ""
    return f"{len(valid)} episodes are the same alone and among {count} at once{fewer}"


def _check_tasks_are_kept(context: CheckContext) -> None:
    """Check that no episode has edited in place what `tasks` hands out."""
    again = (
        context.factory.tasks(count=len(context.tasks), seed=context.seed) if context.are_repeatable else context.tasks
    )
    if [content(task) for task in again] != [content(task) for task in context.tasks]:
        raise CheckFailed(
            "tasks() returns other tasks after episodes were played: an episode edits in place what the class or a "
            "module keeps; let it edit self.task and self.messages, which are its own copies"
        )


def _concurrent_episodes(context: CheckContext, seconds: float) -> int:
    """Return how many episodes of this duration fit into the budget if they run one after another, within bounds."""
    remaining_s = context.deadline - time.monotonic()
    fitting = int(remaining_s / max(seconds, 0.001)) if math.isfinite(remaining_s) else MAX_CONCURRENT
    return max(MIN_CONCURRENT, min(MAX_CONCURRENT, fitting))


async def _episode(context: CheckContext, spec: EpisodeSpec, barrier: TurnBarrier | None = None) -> Episode:
    task, strategy, seed = spec
    return await context.episode(task, strategy, seed=seed, barrier=barrier)


async def _check_reset_again(context: CheckContext, spec: EpisodeSpec) -> None:
    """Check that an instance can be reset again, as Gymnasium's vector environments do."""
    async with fresh_instance(context) as env:
        try:
            first, second = await _transcript(env, spec), await _transcript(env, spec)
        except Exception as error:
            reason = error_text(error) if isinstance(error, ForgeError) else f"{type(error).__name__}: {error}"
            raise CheckFailed(
                f"an instance that is reset again raises ({reason}): start everything afresh in reset()"
            ) from error
    if first != second:
        raise CheckFailed(
            "an instance that is reset again plays another episode with the same seed: set all of its state in reset()"
        )


async def _transcript(env: Env, spec: EpisodeSpec) -> list[Any]:
    task, strategy, seed = spec
    results = [result async for _, result in play_directly(env, task, seed, strategy)]
    # Without the infos, which may hold durations.
    return [[list(messages), *numbers] for messages, *numbers, _ in results]


def _compare(expected: Episode, actual: Episode, when: str) -> None:
    if difference := _difference(expected, actual):
        what = f"with the same seed the task {expected.task.id!r} is another episode {when}: {difference}"
        remedy = ". Draw from self.np_random after self.seed(seed), and keep state on self"
        if not actual.outcome.is_valid:
            remedy = f": find what raises {when}, and keep what two episodes must not share on self"
        raise CheckFailed(f"{what}{advice(actual.error) or advice(difference) or remedy}")


def _difference(expected: Episode, actual: Episode) -> str:
    fields: list[tuple[str, Any, Any]] = [("outcome", str(expected.outcome), str(actual.outcome))]
    if not actual.outcome.is_valid:
        return f"it ends as {actual.outcome} ({shorten(repr(actual.error))})"
    messages = zip(expected.messages, actual.messages, strict=False)
    fields += [(f"message {i}", dict(a), dict(b)) for i, (a, b) in enumerate(messages)]
    fields.append(("number of messages", len(expected.messages), len(actual.messages)))
    fields.append(("step rewards", [turn.reward for turn in expected.turns], [turn.reward for turn in actual.turns]))
    fields.append(("reward", expected.reward, actual.reward))
    fields.append(("rewards", dict(expected.rewards), dict(actual.rewards)))
    for name, a, b in fields:
        if a != b:
            return f"the {name} is {shorten(repr(a))} and then {shorten(repr(b))}"
    return ""


async def two_seeds(context: CheckContext) -> str:
    """Different seeds give different episodes, or else different tasks."""
    is_random = False
    for task in context.tasks:
        for strategy in context.strategies:
            state, first = await _state_and_transcript(context, (task, strategy, context.seed))
            other_state, second = await _state_and_transcript(context, (task, strategy, context.seed + 1))
            if first != second:
                return "two seeds give two episodes"
            is_random |= state is not None
            if state is not None and state == other_state:
                raise CheckFailed(
                    "reset() draws the same numbers whatever its seed is: call self.seed(seed) first, and draw from "
                    "self.np_random"
                )
    tasks, other_tasks = (
        [content(task) for task in context.factory.tasks(count=len(context.tasks), seed=context.seed + i)]
        for i in (0, 1)
    )
    if tasks != other_tasks:
        return "the episodes draw nothing that shows, and two seeds give other tasks"
    if len(context.tasks) == 1 and not is_random:
        raise CheckSkipped("there is one task, and nothing is drawn")
    raise CheckFailed(
        "two seeds give the same episodes and the same tasks in the same order: draw from self.np_random in reset(), "
        "or let tasks() shuffle by its seed"
    )


async def _state_and_transcript(context: CheckContext, spec: EpisodeSpec) -> tuple[Any, list[Any]]:
    """Return the state of `np_random` after an episode, None if it was not used, and the transcript."""
    async with fresh_instance(context) as env:
        try:
            transcript = await _transcript(env, spec)
        except ForgeError as error:  # a fatal exception of a tool, or an expert that fails
            transcript = [str(error)]
        generator = env._np_random
        return None if generator is None else generator.bit_generator.state, transcript
