"""Runs an offline evaluation: the attempts that its folder does not hold yet, and then the figures of all attempts."""

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
from forge_env.core.usage import Prices
from forge_env.data.tasks import DataTasks
from forge_env.evaluation.evaluate import evaluate
from forge_env.evaluation.folder import EvalFolder, extended_from
from forge_env.evaluation.plan import Attempt, EvalPlan, all_attempts, before_extension, draw_tasks, episode_seed
from forge_env.evaluation.summary import summarise
from forge_env.registry.agent_spec import AgentSettings, open_agent, split_agent
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode
from forge_env.telemetry.sender import SpanSender
from forge_env.utils.targets import load

COMPARE = "agents.chat.rendering_check:compare_rendering"
"""The function that compares an endpoint with a run: forge_env does not import agents."""
Progress = Callable[[int, "Episode | None"], None]
"""Called with the number of attempts, and each episode that was read or run; None before the first one."""


async def run_evaluation(
    plan: EvalPlan,
    path: Path,
    *,
    at_most: bool = False,
    concurrency: int = 16,
    requests_per_minute: float | None = None,
    api_key_env: str = "OPENAI_API_KEY",
    prices: Prices | None = None,
    like: str = "",
    warn: Callable[[str], None] = lambda text: None,
    progress: Progress = lambda total, episode: None,
    spans: SpanSender | None = None,
) -> dict[str, Any]:
    """Evaluate an agent into a folder; returns the content of eval.json, and the numbers of episodes run and read.

    An interrupted evaluation is resumed: recorded episodes are kept, faulted ones are run again. A cancelled or failed
    call leaves a folder that can be resumed. A folder with fewer tasks is extended: its tasks come first.

    With `at_most` nobody has named the number of tasks, and fewer will do. `spans` gets the episodes that are run now.
    `like` is the folder of a training run, and `warn` is told where the endpoint of an "openai:" agent renders prompts
    otherwise than that run. An endpoint of vLLM that serves a run of this machine is compared without it.

    Raises:
        UserError: for a wrong setting, an agent that cannot be opened, a folder with other content, or results of an
            environment, an agent or tasks that have changed since.
    """
    if like and split_agent(plan.agent)[0] != "openai":
        raise UserError(f"--like {like} is for an endpoint, openai:, and the agent is {plan.agent}: leave --like out")
    if concurrency < 1:
        raise UserError(f"the concurrency is {concurrency}; it is 1 or more")
    factory = make(plan.env, **plan.options)
    earlier = extended_from(path, plan.tasks)
    tasks = draw_tasks(factory, plan, earlier, at_most=at_most)
    attempts = all_attempts(tasks, plan.n)
    settings = _agent_settings(plan, concurrency, requests_per_minute, api_key_env)
    whole = plan.to_dict(factory, tasks, earlier)
    extends = before_extension(whole, tasks[: earlier[-1]]) if earlier else None
    with EvalFolder(path, whole, extends) as folder:
        progress(len(attempts), None)
        recorded = {Attempt.of(episode): episode for episode in folder.episodes()}
        for episode in recorded.values():
            progress(len(attempts), episode)
        missing = {attempt: task for attempt, task in attempts.items() if attempt not in recorded}

        def ended(episode: Episode) -> None:
            if spans is not None:
                spans.add(episode)
            progress(len(attempts), episode)

        if missing:
            async with factory, open_agent(plan.agent, settings) as agent:
                folder.begin()
                otherwise = await _rendered_otherwise(plan, factory, agent, tasks[0], like)
                for found in filter(None, (getattr(agent, "warning", ""), otherwise)):
                    warn(found)
                await _AttemptRunner(plan, factory, agent, folder, ended).run_all(missing, concurrency)
        folder.begin()
        result = summarise(plan, attempts, folder.episodes(), folder.faults(), prices)
        folder.finish({**folder.plan, **result})
    return {
        **result,
        "episodes_run": len(missing),
        "episodes_read": len(recorded),
        "dropped_faults": folder.dropped_faults,
        **({"extended_from": earlier} if earlier else {}),
        **({"rows": str(tasks.rows)} if isinstance(tasks, DataTasks) and tasks.rows.left_out.total else {}),
    }


def _agent_settings(
    plan: EvalPlan, concurrency: int, requests_per_minute: float | None, api_key_env: str
) -> AgentSettings:
    return AgentSettings(
        env=plan.env,
        temperature=plan.temperature,
        top_p=plan.top_p,
        deterministic=plan.deterministic,
        thinking=plan.thinking,
        adapter=plan.adapter,
        max_tokens=plan.limits.max_tokens,
        concurrency=concurrency,
        requests_per_minute=requests_per_minute,
        api_key_env=api_key_env,
        answer_seconds=plan.answer_seconds,
        idle_seconds=plan.idle_seconds,
        seed=plan.seed,
    )


async def _rendered_otherwise(plan: EvalPlan, factory: EnvFactory, agent: Agent, task: Task, like: str) -> str:
    """How an endpoint renders a prompt otherwise than the training run did; "" if it does not, or is no endpoint."""
    if split_agent(plan.agent)[0] != "openai":
        return ""
    found: str = await load(COMPARE)(agent, task.prompt, factory.make().tools, like=like)
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class _AttemptRunner:
    """Runs attempts of one evaluation, and records their episodes."""

    plan: EvalPlan
    factory: EnvFactory
    agent: Agent
    folder: EvalFolder
    on_episode: Callable[[Episode], None]

    async def run_all(self, attempts: dict[Attempt, Task], concurrency: int) -> None:
        """Run attempts with the function that evaluates during training, too; here a group is one episode."""
        order = list(attempts)
        await evaluate(lambda task, i: self.run_one(task, order[i]), list(attempts.values()), concurrency=concurrency)

    async def run_one(self, task: Task, attempt: Attempt) -> Group:
        started, clock = time.time(), time.perf_counter()
        episode = await run_episode(
            self.factory,
            self.agent,
            task,
            seed=episode_seed(self.plan.seed, attempt),
            episode_id=attempt.episode_id,
            group_id=attempt.task_id,
            limits=self.plan.limits,
        )
        times = {"started": started, "seconds": time.perf_counter() - clock}
        episode = dataclasses.replace(episode, info={**episode.info, **times})
        self.folder.add(episode)
        self.on_episode(episode)
        return Group(task=task, episodes=(episode,), id=attempt.episode_id)
