"""The audit of a set of tasks: every task is solved, left alone, and attacked by cheats that are known.

An environment whose tasks are files of others offers the classmethod `audit()`, which returns a `TaskAudit` for each.
`forge-env check` then audits the tasks, where it otherwise checks the code of an environment.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from contrib.check.report import AuditReport, TaskReport
from contrib.check.strategies import Strategy, StrategyAgent, actions_in_order, as_action, follow_expert
from contrib.common.task_audit import TaskAudit
from forge_env.core.env import Env
from forge_env.core.episode import Episode
from forge_env.core.errors import ForgeError, UserError
from forge_env.core.reward_value import are_same, reaches
from forge_env.core.types import Task
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.options import select_options
from forge_env.rollout.rollout import run_episode

AT_ONCE = 2
SECONDS = 3600.0
MOST_OF_LIMIT = 0.5
"""A verifier that uses a greater part of its time limit fails where the machine is slower."""


async def run_audit(
    factory: EnvFactory,
    *,
    seed: int = 0,
    tasks: int | None = None,
    seconds: float = SECONDS,
    progress: Callable[[str, int], None] = lambda name, done: None,
) -> AuditReport:
    """Audit the tasks of an environment that offers `audit`.

    Args:
        factory: must not be open.
        seed: of the choice of tasks, and of the episodes.
        tasks: how many; None is all.
        seconds: time budget; the tasks that it leaves out are reported as not audited, which is not a success.
        progress: called with the name of a task that is finished, and their number.
    """
    for name, value in (("seconds", seconds), ("tasks", tasks)):
        if value is not None and not value > 0:
            raise UserError(f"{name} is {value:g}; it is above 0")
    start = time.monotonic()
    audit_tasks = factory.env_class.audit  # type: ignore[attr-defined]
    plans: Sequence[TaskAudit] = audit_tasks(**select_options(audit_tasks, factory.options))
    if tasks is not None and tasks < len(plans):
        plans = random.Random(seed).sample(plans, tasks)
    done: dict[int, TaskReport] = {}
    slots = asyncio.Semaphore(AT_ONCE)

    async def audit(number: int, plan: TaskAudit) -> None:
        async with slots:
            try:
                done[number] = await _audit(factory, plan, seed)
            except ForgeError as error:  # of this task; the others can be audited
                about: dict[str, Any] = {"needs_network": bool(plan.fetches), "verifier_limit": plan.verifier_limit}
                done[number] = TaskReport(name=plan.name, problems=(f"it cannot be played: {error}",), **about)
        progress(plan.name, len(done))

    async with factory:
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for number, plan in enumerate(plans):
                    group.create_task(audit(number, plan))
        except TimeoutError:
            pass
    return AuditReport(
        name=factory.name,
        tasks=tuple(done[number] for number in sorted(done)),
        not_audited=tuple(plan.name for number, plan in enumerate(plans) if number not in done),
        seconds=time.monotonic() - start,
    )


async def _audit(factory: EnvFactory, plan: TaskAudit, seed: int) -> TaskReport:
    start = time.monotonic()

    async def play(strategy: Strategy) -> Episode:
        return await play_task(factory, plan.task, strategy, seed)

    solution = follow_expert(plan.solution)
    solution_episodes = [await play(solution), await play(solution)]
    empty = [await play(actions_in_order()), await play(actions_in_order())]
    cheats = {name: await play(actions_in_order(*map(as_action, cheat))) for name, cheat in plan.cheats.items()}
    took = [float(episode.info.get("verdict", {}).get("verifier_seconds", 0.0)) for episode in solution_episodes]
    baseline = max(0.0, *(episode.reward or 0.0 for episode in empty))
    paying_cheats = tuple(name for name, episode in cheats.items() if (episode.reward or 0.0) > baseline)
    return TaskReport(
        name=plan.name,
        solution=solution_episodes[0].reward,
        empty=empty[0].reward,
        cheats={name: episode.reward for name, episode in cheats.items()},
        paid=paying_cheats,
        holes=tuple(hole_of(factory.env_class, name) for name in paying_cheats),
        needs_network=bool(plan.fetches),
        is_deterministic=_is_same(solution_episodes) and _is_same(empty),
        verifier_seconds=max(took),
        verifier_limit=plan.verifier_limit,
        problems=tuple(_problems(plan, solution_episodes, empty, cheats, max(took))),
        seconds=time.monotonic() - start,
    )


def hole_of(env_class: type[Env], name: str) -> str:
    """What is wrong with a grader that rewards a cheat, by the name of the cheat."""
    holes = {cheat.name: cheat.hole for cheat in getattr(env_class, "known_cheats", ())}
    return f"{holes[name]} ({name})" if name in holes else f"it rewards {name}"


async def play_task(factory: EnvFactory, task: Task, strategy: Strategy, seed: int) -> Episode:
    """Play a task by a strategy, within the limits that the environment declares."""
    limits = factory.episode_limits()
    return await run_episode(factory, StrategyAgent(strategy), task, seed=seed, episode_id="audit", limits=limits)


def _is_same(episodes: Sequence[Episode]) -> bool:
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    return not rewards or (len(rewards) == len(episodes) and are_same(rewards))


def _earns_1(episode: Episode) -> bool:
    return episode.reward is not None and reaches(episode.reward, 1.0)


def _problems(
    plan: TaskAudit,
    solution_episodes: Sequence[Episode],
    empty: Sequence[Episode],
    cheats: Mapping[str, Episode],
    took: float,
) -> Iterator[str]:
    """Yield a sentence for each reason not to trust the task, but none for the cheats that are paid."""
    if not all(map(_earns_1, solution_episodes)):
        paths = [
            path for episode in solution_episodes for path in episode.info.get("verdict", {}).get("not_counted", ())
        ]
        changes = f": its changes of {', '.join(dict.fromkeys(paths))} do not count" if paths else ""
        yield f"the solution earns {_rewards_text(solution_episodes)}, not 1{changes}"
    if any(episode.reward is None or not are_same([episode.reward, 0.0]) for episode in empty):
        yield f"an empty answer earns {_rewards_text(empty)}, not 0"
    for name, episodes in (("the solution", solution_episodes), ("an empty answer", empty)):
        if not _is_same(episodes):
            yield f"the verifier is not deterministic: {name} earns {_rewards_text(episodes)} in two runs"
    if plan.fetches and not all(map(_earns_1, solution_episodes)):
        yield f"the verifier needs a network: {plan.fetches}"
    if plan.verifier_limit and took > MOST_OF_LIMIT * plan.verifier_limit:
        yield f"the verifier took {took:.1f} s of {plan.verifier_limit:g} s: leave it twice the time that it takes"
    for name, episode in cheats.items():
        if episode.reward is None:
            yield f"the cheat {name!r} ends as {episode.outcome}: {episode.error[:200]}"


def _rewards_text(episodes: Sequence[Episode]) -> str:
    """The rewards of episodes; for one without a reward, how it ended."""
    values = [
        f"{episode.reward:g}" if episode.reward is not None else f"nothing ({episode.outcome}: {episode.error[:400]})"
        for episode in episodes
    ]
    return " and ".join(dict.fromkeys(values))
