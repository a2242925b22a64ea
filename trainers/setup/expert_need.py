"""What an environment's expert needs of an episode, found out by playing it: default limits that would cut it off grow.

An instance that cannot be constructed is refused. An environment is constructed and played for a plan only if its
instances share nothing: one that opens sandboxes or processes is first played when the run starts, see
`trainers.model.make`.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from forge_env.core.episode import Episode
from forge_env.core.errors import EnvError, UserError
from forge_env.core.user_code import error_text
from forge_env.rollout.env_calls import EnvTimeout, close_env
from forge_env.rollout.factory import EnvFactory
from forge_env.utils.settings import with_values
from trainers.config import RunConfig
from trainers.model.make import solved_by_expert, too_few_turns
from trainers.setup.options.defaults import Default

C = TypeVar("C", bound=RunConfig)

TASKS, SECONDS = 4, 5.0
"""Tasks that the expert plays, and the time that a plan waits for it."""
LETTERS = 4.0
"""Letters of a token of an expert's turn at least, with calls as JSON; the tiny tokenizer has 4 to 7 of them in the
longest turns of math, code_exec and examples/filing_cabinet.py."""
MARKS, GRAIN = 8, 32
"""Tokens of a turn's marks, and the multiple to which a limit of tokens is rounded up."""


class Need(NamedTuple):
    """What the longest of the expert's episodes took."""

    turns: int
    turn_tokens: int
    """Of its longest turn, as an estimate: the tokenizer may not be made yet."""


def with_room_for_expert(
    config: C, defaults: Mapping[str, Default], factory: EnvFactory
) -> tuple[C, dict[str, Default]]:
    """Raise the default limits of an episode to what the environment's expert needs."""
    limits = dict(defaults)
    if (need := _need_of(factory, None if config.dataset.path else config.training.seed)) is None:
        return config, limits
    turns = config.env.max_turns
    is_shown = not config.model.path or config.warmup.steps > 0 or config.algorithm is None
    if turns < need.turns and is_shown and not defaults["env.max_turns"].is_taken:
        raise UserError(too_few_turns(config.env.name, need.turns, turns))
    for name, least in (("env.max_turns", need.turns), ("env.max_turn_tokens", need.turn_tokens)):
        default = limits[name]
        if default.is_taken and default.value < least:
            limits[name] = Default(least, f"what the expert of {config.env.name} needs", is_taken=True)
    return with_values(
        config, {name: int(limits[name].value) for name in limits if limits[name] != defaults[name]}
    ), limits


def _need_of(factory: EnvFactory, seed: int | None) -> Need | None:
    """What the expert needs on tasks of a seed; None if it is not known without starting anything, within `SECONDS`, or
    without a seed.

    Raises:
        UserError: when an instance cannot be constructed.
    """
    if factory.env_class.shared or factory.effects():
        return None
    # The thread may outlive its time, so it has a factory of its own.
    own = EnvFactory(factory.env_class, name=factory.name, **factory.options)
    results: list[Need | EnvError | None] = []
    thread = threading.Thread(target=lambda: results.append(_play(own, seed)), daemon=True)
    thread.start()
    thread.join(SECONDS)
    need = results[0] if results else None
    if isinstance(need, EnvError):
        raise UserError(f"no instance of the environment {factory.name} can be made: {error_text(need)}")
    return need


def _play(factory: EnvFactory, seed: int | None) -> Need | EnvError | None:
    async def play() -> list[Episode] | EnvError:
        async with factory:
            try:
                await close_env(await factory.construct(seconds=SECONDS), SECONDS)
            except EnvError as error:
                return error
            if seed is None or not hasattr(factory.env_class, "expert"):
                return []
            tasks = factory.tasks("train", count=TASKS, seed=seed, seconds=SECONDS, at_most=True)
            return await solved_by_expert(factory, [task for task in tasks if factory.env_class.can_demonstrate(task)])

    try:
        episodes = asyncio.run(play())
    except Exception:  # of the user's code: the start reports it
        return None
    if isinstance(episodes, EnvError):
        return None if isinstance(episodes, EnvTimeout) else episodes
    if not episodes:
        return None
    longest = max(_letters(turn.message) for episode in episodes for turn in episode.turns)
    tokens = math.ceil((longest / LETTERS + MARKS) / GRAIN) * GRAIN
    return Need(max(len(episode.turns) for episode in episodes), tokens)


def _letters(message: Mapping[str, Any]) -> int:
    calls = message.get("tool_calls") or ()
    return len(message.get("content") or "") + sum(len(json.dumps(call.get("function", {}))) for call in calls)
