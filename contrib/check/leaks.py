"""The check of leaks: no episode leaves resources behind, however it ends."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from contrib.check.context import LIMITS, CheckContext, CheckFailed
from contrib.check.direct_calls import cancel, fresh_instance, play_directly, reset, step
from contrib.check.strategies import StrategyAgent, actions_in_order, tool_calls, try_every_tool
from contrib.check.threads import advice
from contrib.common.guard import descendants, parents_of_processes
from forge_env.core.episode import Turn
from forge_env.core.errors import ForgeError, PolicyError
from forge_env.core.protocols import Agent, Conversation
from forge_env.core.types import Action, ToolSpec
from forge_env.rollout.env_calls import HELD_SECONDS, close_env
from forge_env.rollout.rollout import run_episode
from forge_env.utils.folders import temporary_files_in
from forge_env.utils.gates import gate_of

SETTLE_SECONDS = 1.0  # how long threads and processes that were told to end may take
POLL_SECONDS = 0.1
MOMENTS = (0.1, 0.3, 0.6)  # when a method is cancelled: shares of its usual time
CANCEL_SECONDS = 2 * HELD_SECONDS  # how long a cancelled episode may take to close its environment


async def leaks(context: CheckContext) -> str:
    """Episodes that end, fault or are cancelled leave nothing behind once the factory is closed.

    What is opened once and kept for the whole process is not a leak, so only what grows in two rounds fails the check.
    """
    # Within the block, this process and its children keep temporary files in a new folder, which is then deleted.
    temporary = tempfile.TemporaryDirectory(prefix="forge_check_", ignore_cleanup_errors=True)
    with temporary as name, temporary_files_in(name):
        folder = Path(name)
        if await _leaks(context, folder) and (phrases := await _leaks(context, folder)):
            raise CheckFailed(f"after all episodes and the environment are closed there are {'; '.join(phrases)}")
    return "nothing is left after episodes that ended, faulted or were cancelled"


async def _leaks(context: CheckContext, folder: Path) -> list[str]:
    """Play one round of episodes; returns what there is more of than before, one phrase for each kind."""
    before = _resources(folder)
    async with context.factory:
        await _play_round(context)
    deadline = time.monotonic() + SETTLE_SECONDS
    while (phrases := _more(_resources(folder), before)) and time.monotonic() < deadline:
        await asyncio.sleep(POLL_SECONDS)
    return phrases


async def _play_round(context: CheckContext) -> None:
    for task in context.tasks[:2]:
        for strategy in context.strategies:
            await context.episode(task, strategy)
    await context.episode(context.tasks[0], actions_in_order(tool_calls(("no_such_tool", None))))
    await _run_episode(context, FailingAgent())
    for when, agent in (("at its start", None), ("in a turn", HangingAgent())):
        await _cancel_episode(context, when, agent)
    try:
        usual = map(min, await _usual_seconds(context), await _usual_seconds(context))  # the first has imports in it
    except ForgeError:  # another check reports it
        return
    for method, seconds in enumerate(usual):
        for moment in MOMENTS:
            await _cancel_method(context, method, seconds * moment)


class FailingAgent:
    """An agent with a policy that fails after one turn: for the environment, the episode just ends."""

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        if conversation.turns:
            raise PolicyError("the policy is gone")
        return await StrategyAgent(try_every_tool).act(conversation, tools)


class HangingAgent:
    def __init__(self) -> None:
        self.first_turn = asyncio.Event()  # set when it is asked

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        self.first_turn.set()
        await asyncio.Event().wait()
        raise AssertionError("it is cancelled")


async def _cancel_episode(context: CheckContext, when: str, agent: HangingAgent | None) -> None:
    running = asyncio.create_task(_run_episode(context, agent or StrategyAgent(try_every_tool)))
    if agent is None:
        await asyncio.sleep(0)
    else:
        turn = asyncio.create_task(agent.first_turn.wait())
        await asyncio.wait({running, turn}, return_when=asyncio.FIRST_COMPLETED)
        await cancel(turn)
    await _end(running, f"an episode that is cancelled {when}")


async def _end(running: asyncio.Task[Any], what: str) -> None:
    if not await cancel(running, CANCEL_SECONDS):
        raise CheckFailed(
            f"{what} does not end: let asyncio.CancelledError pass, and set a time limit for what close() waits for"
        )


async def _run_episode(context: CheckContext, agent: Agent) -> None:
    await run_episode(
        context.factory, agent, context.tasks[0], seed=context.seed, episode_id="check/broken", limits=LIMITS
    )


async def _usual_seconds(context: CheckContext) -> list[float]:
    async with fresh_instance(context) as env:
        calls = play_directly(env, context.tasks[0], context.seed, context.strategies[0])
        async with aclosing(calls):
            return [(await anext(calls))[0] for _ in range(2)]


async def _cancel_method(context: CheckContext, method: int, seconds: float) -> None:
    """Cancel the reset of a new instance (method 0), or its first step, after some seconds; then close it."""
    task, strategy = context.tasks[0], context.strategies[0]
    env = await context.factory.construct(seconds=LIMITS.step_seconds)
    call, what = reset(env, task, context.seed), "a reset() that is cancelled in its middle"
    if method:
        messages, _ = await call
        conversation = Conversation(request_id="check", seed=context.seed, observation=tuple(messages))
        call, what = step(env, await strategy(conversation, env.tools)), "a step() that is cancelled in its middle"
    running = asyncio.create_task(call)
    await asyncio.wait({running}, timeout=seconds)
    await _end(running, what)
    problem = await close_env(env, LIMITS.step_seconds)
    if names := gate_of(env).running:
        raise CheckFailed(
            f"{what} runs on in {' and '.join(names)}, since Python cannot stop a C call, and keeps its instance open: "
            "set a time limit for what it waits for, or await it"
        )
    if problem:
        remedy = advice(problem) or ": let close() free what there is, however far the method has come"
        raise CheckFailed(f"after {what}, {problem}{remedy}")


# Thread pools that outlive episodes on purpose: ours, the event loop's and anyio's. Idle threads end by themselves.
POOL_PREFIXES = ("forge_env", "asyncio_", "AnyIO worker thread")
MAX_NAMED = 4  # how many leaked items a phrase names


REMEDIES = {
    "file descriptors": "close them in close()",
    "threads": "end and join them in close()",
    "asyncio tasks": "cancel and await them in close()",
    "child processes": "end and await them in close()",
    "temporary files": "delete them in close()",
}
Resources = Mapping[str, Mapping[object, str]]
"""A snapshot: for each kind of `REMEDIES`, a mapping from identity to display name."""


def _resources(folder: Path) -> Resources:
    """Take a snapshot; a process with the folder's path in its environment was started by this one."""
    gc.collect()  # an object without references is not a leak, even if it has not been collected yet
    return {
        "file descriptors": _descriptors(),
        "threads": {t: t.name for t in threading.enumerate() if not t.name.startswith(POOL_PREFIXES)},
        "asyncio tasks": {t: getattr(t.get_coro(), "__qualname__", t.get_name()) for t in asyncio.all_tasks()},
        "child processes": _processes(str(folder)),
        "temporary files": {path: str(path.relative_to(folder)) for path in folder.rglob("*")},
    }


def _more(now: Resources, before: Resources) -> list[str]:
    """Return what there is more of than before, one phrase for each kind, with the remedy."""
    phrases = []
    for kind, remedy in REMEDIES.items():
        if (count := len(now[kind]) - len(before[kind])) > 0:
            names = sorted(name for key, name in now[kind].items() if key not in before[kind])
            more = ", ..." if len(names) > MAX_NAMED else ""
            phrases.append(f"{count} more {kind} ({', '.join(names[:MAX_NAMED])}{more}): {remedy}")
    return phrases


def _descriptors() -> dict[object, str]:
    descriptors: dict[object, str] = {}
    for name in os.listdir("/dev/fd"):
        try:
            target = os.readlink(f"/dev/fd/{name}")
        except OSError:  # the descriptor that listed the folder is closed by now
            continue
        descriptors[name, target] = target
    return descriptors


def _processes(mark: str) -> dict[object, str]:
    """Return the descendants of this process, and orphans that have `mark` in their environment, by process id."""
    names: dict[object, str] = {}
    below = descendants()
    for pid in parents_of_processes():
        with suppress(OSError):  # it has ended, or belongs to another user
            is_ours = pid in below or mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
            if is_ours and pid != os.getpid():
                names[pid] = f"{Path(f'/proc/{pid}/comm').read_text(errors='replace').strip()} {pid}"
    return names
