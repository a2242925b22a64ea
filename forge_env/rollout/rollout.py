"""The rollout loop: an agent acts in an environment, turn by turn; the result is an Episode.

This is the only place where environments and agents meet. A bad rollout is data: a failure of the environment, the
agent or the machinery becomes the outcome of the episode, and is counted by reason. A bug in this loop still raises.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Token
from dataclasses import dataclass, field, replace
from typing import Any

from forge_env.core.env import Env
from forge_env.core.episode import Episode, Group, Lineage, Turn
from forge_env.core.errors import EnvError, ForgeError, InfraError, first_error
from forge_env.core.faults import SHRINK, FaultPolicy
from forge_env.core.plain_value import own_task
from forge_env.core.protocols import Agent
from forge_env.core.types import EpisodeLimits, Outcome, Task
from forge_env.core.usage import recording
from forge_env.core.user_code import error_text
from forge_env.rollout.conversations import Conversations
from forge_env.rollout.env_calls import call_env, close_env, final_info_of, recorded_info, success_of
from forge_env.rollout.episode_run import EpisodeRun, LimitReached
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.group_reward import fault_of, with_group_rewards
from forge_env.rollout.options import option_types
from forge_env.utils.deadlines import Deadline
from forge_env.utils.gates import Gate, gate_of, inside
from forge_env.utils.secret_values import masked, masked_text
from forge_env.utils.threads import call_on


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """A group of sibling episodes to run. Example: ``GroupSpec(task=task, count=8, seed=3, group_id="g0")``"""

    task: Task
    count: int
    """Number of episodes."""
    seed: int
    """Sibling i has seed `seed + i`."""
    group_id: str = ""
    agent: str = ""
    """Name of the agent, for a service that has several (`EnvActor`)."""
    env: str = ""
    """Label of the environment, for a run that has several."""
    env_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the environment that differ from the options of its factory."""
    limits: EpisodeLimits | None = None
    """Of each episode, if they differ from the limits of the process that plays it (`EnvActor`)."""
    is_measured: bool = False
    """True for an evaluation: a TIMEOUT counts as a result, and is not run again."""


async def run_group(
    factory: EnvFactory,
    agent: Agent,
    spec: GroupSpec,
    *,
    limits: EpisodeLimits | None = None,
    on_fault: FaultPolicy = SHRINK,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Group:
    """Run the sibling episodes of a group concurrently.

    Args:
        limits: of each episode; by default those that the environment declares.
        on_fault: decides which episodes without a reward are run again, with the same seed.
        around: entered around each sibling and its repetitions.

    Where the factory has group rewards, the siblings are compared at the end.
    """
    retries: list[Episode] = []
    if spec.is_measured:
        on_fault = replace(on_fault, refills_timeouts=False)

    async def run_sibling(i: int) -> Episode:
        attempts = 0
        with around():
            while True:
                episode = await run_episode(
                    factory,
                    agent,
                    spec.task,
                    seed=spec.seed + i,
                    episode_id=f"{spec.group_id}/{i}" + (f".{attempts}" if attempts else ""),
                    group_id=spec.group_id,
                    limits=limits,
                    env_options=spec.env_options,
                )
                attempts += 1
                if not on_fault.runs_again(episode.outcome, attempts):
                    return episode
                retries.append(episode)

    try:
        async with asyncio.TaskGroup() as task_group:
            siblings = [task_group.create_task(run_sibling(i)) for i in range(spec.count)]
    except* Exception as errors:
        raise first_error(errors) from None
    episodes = tuple(sibling.result() for sibling in siblings)
    group = Group(task=spec.task, episodes=episodes, id=spec.group_id, replaced=tuple(retries))
    return (
        group
        if spec.count == 1
        else await with_group_rewards(factory, group, limits=limits, env_options=spec.env_options)
    )


async def run_episode(
    factory: EnvFactory,
    agent: Agent,
    task: Task,
    *,
    seed: int,
    episode_id: str,
    limits: EpisodeLimits | None = None,
    group_id: str = "",
    env_options: Mapping[str, Any] | None = None,
) -> Episode:
    """Run one episode to its end; without `limits`, under those that its environment declares.

    Returns:
        An Episode in every case: a fault of the environment or the machinery is an outcome, not an exception.
    """
    limits = limits or factory.episode_limits()
    factory.check_compacts(limits.compact_at)
    run = EpisodeRun(agent, Conversations(episode_id, seed, limits), limits)
    if env_options:
        run.info["env_options"] = recorded_info(masked(env_options))
    env: Env | None = None
    outcome, error, ended_by = Outcome.SCORED, "", ""
    token: Token[Gate | None] | None = None
    recorded = recording.set(run.info)
    factory.playing[run] = episode_id
    try:
        env = await factory.construct(env_options or {}, seconds=limits.step_seconds)
        token = inside.set(gate_of(env))
        play = env._episode_player or EpisodeRun.play
        outcome, ended_by = await play(run, env, task, seed)
    except LimitReached as end:
        assert env is not None
        outcome, ended_by, error = run.time_limit_outcome(env, factory.name, end)
        await run.notify_limit(env, end.limit)
    except (EnvError, InfraError) as fault:
        outcome, error = fault_of(fault)
    finally:
        del factory.playing[run]
        recording.reset(recorded)
        if token is not None:
            inside.reset(token)
        if env is not None:
            await _close(env, limits.step_seconds, run.info)
    turns = run.conversations.turns
    lineage: tuple[Lineage, ...] = ()
    if run.conversations.are_several or sum([turn.starts_row for turn in turns]) > 1:
        run.conversations.mark_retries()
        lineage = _lineage(run, turns)
    reward = sum([turn.reward for turn in turns]) + run.reward
    if outcome is Outcome.TRUNCATED and env is not None:
        reward += env.truncation_reward
    success = None
    if outcome.is_valid and env is not None:
        try:
            success = await success_of(env, reward, limits.step_seconds)
        except (EnvError, InfraError) as fault:  # an InfraError of an environment on another machine
            (outcome, error), ended_by = fault_of(fault), ""
    return Episode(
        task=task,
        turns=turns,
        tail=tuple(run.conversations.tail),
        outcome=outcome,
        reward=reward if outcome.is_valid else None,
        rewards=run.rewards,
        id=episode_id,
        group_id=group_id,
        env=factory.name,
        seed=seed,
        error=error and masked_text(error),
        success=success,
        ended_by=ended_by,
        info=run.info,
        lineage=lineage,
    )


async def _close(env: Env, seconds: float, info: dict[str, Any]) -> None:
    """Close an environment; what went wrong, and its facts about the whole episode, go to `info`."""
    if close_error := await close_env(env, seconds):
        info["close_error"] = masked_text(close_error)
    if running := gate_of(env).running:
        info["unstopped"] = running
    try:
        info |= await final_info_of(env, seconds)
    except ForgeError as error:
        info["final_info_error"] = error_text(error)


async def offers_tools(factory: EnvFactory, task: Task, *, seed: int, env_options: Mapping[str, Any]) -> bool:
    """Whether an instance of the environment has tools once it is reset for a task, and can switch them off.

    An instance that cannot be made or reset counts as one that has: its episodes report the fault.
    """
    if "use_tools" not in option_types(factory.env_class.__init__):
        return False
    limits = factory.episode_limits()
    env: Env | None = None
    try:
        env = await factory.construct(env_options, seconds=limits.step_seconds)
        call = call_on(env, env.reset, seed=seed, options={"task": own_task(task), "limits": limits})
        await call_env("reset", call, Deadline(limits.step_seconds))
        return bool(env.tools)
    except ForgeError:
        return True
    finally:
        if env is not None:
            await close_env(env, limits.step_seconds)


def _lineage(run: EpisodeRun, turns: Sequence[Turn]) -> tuple[Lineage, ...]:
    """Return where the rows come from, if there are several; add to the record what they repeat."""
    if repeats := repeated_tokens([turn for turn in turns if not turn.auxiliary]):
        run.info["repeated_tokens"] = repeats
    lineage = run.conversations.lineage()
    return lineage if len(lineage) > 1 else ()


def repeated_tokens(turns: Sequence[Turn]) -> int:
    """Return how many tokens of an episode's rows are a beginning that an earlier row has, too: where a chat template
    rewrites history, a new row begins with old tokens.

    Engine and trainer compute them once more. In the later row they are a prompt, so none of them is a target twice.
    """
    if sum([turn.starts_row for turn in turns]) < 2:
        return 0
    rows: list[array[int]] = []
    for turn in turns:
        if turn.starts_row or not rows:
            rows.append(array("i"))
        rows[-1].frombytes(turn.prompt_ids.tobytes())
        rows[-1].frombytes(turn.token_ids.tobytes())
    return sum(_longest_prefix(rows[:i], row) for i, row in enumerate(rows))


def _longest_prefix(earlier: Sequence[array[int]], row: array[int]) -> int:
    """The number of leading items that a row shares with the row of `earlier` that is most similar."""
    most = 0
    for other in earlier:
        if other[: most + 1] == row[: most + 1]:
            most = max(most, _common_prefix(other, row))
    return most


def _common_prefix(a: array[int], b: array[int]) -> int:
    longest = min(len(a), len(b))
    # Slices are compared as a whole: comparing item by item would take milliseconds for a long row.
    return bisect_left(range(longest), True, key=lambda n: a[: n + 1] != b[: n + 1])
