"""Runs an offline evaluation: the places of a plan that its folder does not hold yet, and then the figures of all."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forge_env.core.episode import Episode, Group
from forge_env.core.errors import UserError
from forge_env.core.protocols import Agent
from forge_env.core.types import Task
from forge_env.evaluation.evaluate import evaluate
from forge_env.evaluation.folder import EvalFolder, says_digests
from forge_env.evaluation.plan import EvalPlan, Place, episode_seed, places
from forge_env.evaluation.summary import Prices, summarise
from forge_env.registry.agent_spec import AgentSettings, open_agent
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode

Progress = Callable[[int, "Episode | None"], None]
"""Told how many places there are, with each episode that is there or has just ended; None before the first one."""


async def run_evaluation(
    plan: EvalPlan,
    path: Path,
    *,
    concurrency: int = 16,
    requests_per_minute: float | None = None,
    api_key_env: str = "OPENAI_API_KEY",
    prices: Prices | None = None,
    progress: Progress = lambda total, episode: None,
) -> dict[str, Any]:
    """Evaluate an agent into a folder; returns what eval.json holds then, and how many episodes were run and read.

    An interrupted evaluation goes on where it was: episodes that ended stay, faulted ones are tried again. A cancelled
    or failing call leaves the folder so that it can go on.

    Raises:
        UserError: for a wrong setting, an agent that cannot be had, a folder of something else, or one whose results
            are of an environment, an agent or tasks that have changed since.
    """
    if concurrency < 1:
        raise UserError(f"the concurrency is {concurrency}; it is 1 or more")
    factory = make(plan.env, **plan.options)
    tasks = factory.tasks(plan.split, count=plan.tasks, seed=plan.seed)
    wanted = places(tasks, plan.n)
    settings = AgentSettings(
        env=plan.env,
        temperature=plan.temperature,
        top_p=plan.top_p,
        deterministic=plan.deterministic,
        max_tokens=plan.limits.max_tokens,
        concurrency=concurrency,
        requests_per_minute=requests_per_minute,
        api_key_env=api_key_env,
        answer_seconds=plan.answer_seconds,
        idle_seconds=plan.idle_seconds,
        seed=plan.seed,
    )
    run_now = 0
    with EvalFolder(path, plan.to_dict(factory, tasks)) as folder:
        progress(len(wanted), None)
        there = {Place.of(episode): episode for episode in folder.episodes()}
        for episode in there.values():
            progress(len(wanted), episode)
        missing = {place: task for place, task in wanted.items() if place not in there}
        if missing and there and not says_digests(folder.plan):
            raise UserError(
                f"{path} lacks {len(missing)} of {len(wanted)} episodes, and an older forge_env began it without a "
                "record of what it measured: the rest may be of something else; choose another --out"
            )
        if missing:
            async with factory, open_agent(plan.agent, settings) as agent:
                folder.begin()
                run = _Run(plan, factory, agent, folder, lambda episode: progress(len(wanted), episode))
                await run.all(missing, concurrency)
            run_now = len(missing)
        result = summarise(plan, wanted, folder.episodes(), folder.faults(), prices)
        folder.finish({**folder.plan, **result})
    of_this_command = {"episodes_run": run_now, "episodes_read": len(there), "dropped_faults": folder.dropped_faults}
    return {**result, **of_this_command, "unrecorded": not says_digests(folder.plan)}


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    """What the episodes of an evaluation have in common."""

    plan: EvalPlan
    factory: EnvFactory
    agent: Agent
    folder: EvalFolder
    ended: Callable[[Episode], None]

    async def all(self, missing: dict[Place, Task], concurrency: int) -> None:
        """Run the places with the loop that evaluates in training too; a group is one episode."""
        order = list(missing)
        await evaluate(lambda task, i: self.one(task, order[i]), list(missing.values()), concurrency=concurrency)

    async def one(self, task: Task, place: Place) -> Group:
        started, clock = time.time(), time.perf_counter()
        episode = await run_episode(
            self.factory,
            self.agent,
            task,
            seed=episode_seed(self.plan.seed, place),
            episode_id=place.episode_id,
            group_id=place.task_id,
            limits=self.plan.limits,
        )
        times = {"started": started, "seconds": time.perf_counter() - clock}
        episode = dataclasses.replace(episode, info={**episode.info, **times})
        self.folder.add(episode)
        self.ended(episode)
        return Group(task=task, episodes=(episode,), id=place.episode_id)
