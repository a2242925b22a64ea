"""Runs an offline evaluation: the attempts that its folder does not hold yet, and then the figures of all attempts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from forge_env.core.episode import Episode, Group
from forge_env.core.errors import PolicyError, UserError
from forge_env.core.protocols import Agent
from forge_env.core.types import Task
from forge_env.core.usage import Prices
from forge_env.data.row import DataTasks
from forge_env.evaluation.digests import GIVEN_NOT_COVERED
from forge_env.evaluation.evaluate import evaluate
from forge_env.evaluation.folder import EvalFolder, extended_from, fault_class
from forge_env.evaluation.plan import (
    Attempt,
    EvalPlan,
    all_attempts,
    before_extension,
    draw_tasks,
    episode_seed,
    tasks_by_id,
)
from forge_env.evaluation.settings import EvalSettings
from forge_env.evaluation.summary import summarise
from forge_env.records.sinks import Background, open_sinks
from forge_env.registry.agent_spec import AgentSettings, open_agent, split_agent
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.group_reward import with_group_rewards, without_group_rewards
from forge_env.rollout.rollout import run_episode
from forge_env.tool_env.tool_env import why_unscored
from forge_env.utils.targets import load

GIVEN = "agents.scripted:open_scripted"
"""Opens a function or an Agent of Python's code: forge_env does not import agents."""
SINK_OPTION = "--sink"
GREEDY = "greedy"
"""The folder of the attempts at temperature 0, inside of the evaluation's, and the name of their figure."""
_FAILURES, _LATER_FAILURES = 4, 64
"""Faults of an endpoint in a row that end an evaluation: from its first episode on, and after an answer."""
Script = Callable[..., Any]
"""A function of the messages so far, which returns the next one."""
Opener = Callable[[str, AgentSettings], AbstractAsyncContextManager[Agent]]
Progress = Callable[[int, "Episode | None"], None]
"""Called with the number of attempts, and each episode that was read or run; None before the first one. The greedy
attempts come after all others, and begin anew."""


async def run_evaluation(
    plan: EvalPlan,
    path: Path,
    settings: EvalSettings,
    factory: EnvFactory,
    *,
    agent: Script | Agent | None = None,
    open_agent: Opener = open_agent,
    warn: Callable[[str], None],
    progress: Progress,
) -> dict[str, Any]:
    """Evaluate an agent into a folder; returns the content of eval.json, and the numbers of episodes run and read.

    A folder of an interrupted evaluation is resumed: recorded episodes are kept, faulted ones are run again. A folder
    with fewer tasks is extended: its tasks come first.

    With `greedy` a local model that samples also makes one attempt at each task at temperature 0. These attempts are an
    evaluation of their own, in the folder greedy, and their success is the figure "greedy".

    Args:
        settings: the plan's, and those that no figure depends on.
        agent: a function or an Agent of Python's code, for the name in the plan; None opens the agent by its name.
        warn: told what a folder of a model lacks, and where an endpoint renders prompts otherwise than the run in the
            setting `like`. Without it, vLLM's endpoint is compared with the run of this machine that it serves.
    """
    _check(plan, settings)
    earlier = [] if plan.task_ids else extended_from(path, plan.tasks)
    if plan.task_ids:
        tasks: Sequence[Task] = tasks_by_id(factory, plan, settings.tasks)
    else:
        tasks = draw_tasks(factory, plan, earlier, at_most=settings.tasks is None)
    whole = plan.to_dict(factory, tasks, earlier, agent)
    main = _Part(plan, path, whole, tasks, progress)
    async with AsyncExitStack() as sinks, AsyncExitStack() as stack:
        agents: list[Agent] = []

        async def opened_agent() -> Agent:
            if not agents:
                await stack.enter_async_context(factory)
                of_agent = _agent_settings(plan, settings, factory)
                agent_context = open_agent(plan.agent, of_agent) if agent is None else load(GIVEN)(agent, of_agent)
                agents.append(await stack.enter_async_context(agent_context))
                main.folder.begin()
                warnings = [getattr(agents[0], "warning", "")]
                if compare := getattr(agents[0], "compare_rendering", None):
                    warnings.append(await compare(tasks[0].prompt, factory.make().tools, like=settings.like))
                for warning in filter(None, warnings):
                    warn(warning)
            return agents[0]

        with main.open_folder(earlier) as folder:
            read = len(main.attempts) - len(main.missing)
            if read and GIVEN_NOT_COVERED in whole["depends_on"]["not_covered"]:
                warn(f"{read} episodes of the same code were read from {path}; not compared: {GIVEN_NOT_COVERED}")
            if main.missing:
                main_agent = await opened_agent()
                main.sinks = open_sinks(
                    settings.sinks, SINK_OPTION, path, folder.plan, lambda text: warn(text.removeprefix("warning: "))
                )
                for sink in main.sinks:
                    sinks.callback(sink.close)
                await main.run(factory, main_agent, settings.concurrency)
            result = main.summary(factory, settings.prices)
            is_measured = result["episodes"] and "unscored" not in result
            if settings.greedy and (of_greedy := plan.greedily()) and is_measured:
                beside = _Part(of_greedy, path / GREEDY, {**whole, **of_greedy.sampling}, tasks, progress)
                result[GREEDY] = await beside.greedy_figures(factory, opened_agent, settings.concurrency)
            folder.finish({**folder.plan, **result})
            numbers = {name: value for name, value in result.items() if isinstance(value, int | float)}
            for sink in main.sinks:
                sink.log("evaluation", 0, numbers)
    return {
        **result,
        "episodes_run": len(main.missing),
        "episodes_read": read,
        "dropped_faults": folder.dropped_faults,
        **({"extended_from": earlier} if earlier else {}),
        **({"rows": str(tasks.rows)} if isinstance(tasks, DataTasks) and tasks.rows.left_out.total else {}),
    }


def _check(plan: EvalPlan, settings: EvalSettings) -> None:
    if settings.like and split_agent(plan.agent)[0] != "openai":
        what = f"--like {settings.like} is for an endpoint, openai:, and the agent is {plan.agent}"
        raise UserError(f"{what}: leave --like out")
    if settings.concurrency < 1:
        raise UserError(f"the concurrency is {settings.concurrency}; it is 1 or more")


def _agent_settings(plan: EvalPlan, settings: EvalSettings, factory: EnvFactory) -> AgentSettings:
    """The settings of an agent: the plan's, and those that only `EvalSettings` has."""
    names = [field.name for field in dataclasses.fields(AgentSettings)]
    values = {name: getattr(source, name) for source in (settings, plan) for name in names if hasattr(source, name)}
    return AgentSettings(**{**values, "env_class": factory.env_class, "max_tokens": plan.limits.max_tokens})


@dataclasses.dataclass
class _Part:
    """The attempts of one folder: those that it holds, and those that are run now."""

    plan: EvalPlan
    path: Path
    settings: dict[str, Any]
    """The plan as JSON data, with its digests."""
    tasks: Sequence[Task]
    progress: Progress
    sinks: Sequence[Background] = ()
    """They get the episodes that are run now."""

    def __post_init__(self) -> None:
        self.attempts = all_attempts(self.tasks, self.plan.n)
        self.missing = self.attempts
        self._num_attempts = self._failures = 0
        self._group: dict[str, list[Episode]] = {}
        self._earlier: list[Episode] = []

    @contextmanager
    def open_folder(self, earlier: Sequence[int]) -> Iterator[EvalFolder]:
        """Open the folder, and read which attempts it lacks; `earlier` are its numbers of tasks before."""
        settings = {**self.settings, "extended_from": list(earlier)}
        if not earlier:
            del settings["extended_from"]
        extends = before_extension(settings, self.tasks[: earlier[-1]]) if earlier else None
        with EvalFolder(self.path, settings, extends) as self.folder:
            self.progress(len(self.attempts), None)
            by_attempt = {Attempt.of(episode): episode for episode in self.folder.episodes()}
            for episode in by_attempt.values():
                self.progress(len(self.attempts), episode)
            self.missing = {attempt: task for attempt, task in self.attempts.items() if attempt not in by_attempt}
            incomplete = {attempt.task_id for attempt in self.missing}
            self._earlier = [episode for episode in by_attempt.values() if episode.task.id in incomplete]
            yield self.folder

    def summary(self, factory: EnvFactory, prices: Prices | None) -> dict[str, Any]:
        def why_no_score(episodes: Sequence[Episode]) -> str:
            return why_unscored(factory.env_class, self.tasks, [episode.reward for episode in episodes])

        self.folder.begin()
        return summarise(self.plan, self.attempts, self.folder.episodes(), self.folder.faults(), prices, why_no_score)

    async def run(self, factory: EnvFactory, agent: Agent, concurrency: int) -> None:
        """Run the attempts with the function that evaluates during training, too; here a group is one episode.

        Attempts that are compared are recorded when those at the same task have ended, which run next to each other.
        """
        self.folder.begin()
        order = list(self.missing)
        await evaluate(
            lambda task, i: self._run_one(factory, agent, task, order[i]),
            list(self.missing.values()),
            concurrency=concurrency,
        )

    async def greedy_figures(
        self, factory: EnvFactory, opened_agent: Callable[[], Awaitable[Agent]], concurrency: int
    ) -> dict[str, Any]:
        """Run the attempts at temperature 0 that the folder lacks; returns the figures of all of them."""
        with self.open_folder(extended_from(self.path, self.plan.tasks)) as folder:
            if self.missing:
                agent: Any = await opened_agent()  # of a local model
                await self.run(factory, agent.greedily(), concurrency)
            figures = self.summary(factory, None)
            folder.finish({**folder.plan, **figures})
        return {name: figures[name] for name in ("avg@1", "ci95", "episodes", "faults")}

    async def _run_one(self, factory: EnvFactory, agent: Agent, task: Task, attempt: Attempt) -> Group:
        start_time, clock = time.time(), time.perf_counter()
        episode = await run_episode(
            factory,
            agent,
            task,
            seed=episode_seed(self.plan.seed, attempt),
            episode_id=attempt.episode_id,
            group_id=attempt.task_id,
            limits=self.plan.limits,
        )
        times = {"started": start_time, "seconds": time.perf_counter() - clock}
        episode = dataclasses.replace(episode, info={**episode.info, **times})
        for rewarded_episode in await self._group_rewards(factory, episode):
            self.folder.add(rewarded_episode)
            for sink in self.sinks:
                sink.episode(rewarded_episode, "")
            self.progress(len(self.attempts), rewarded_episode)
            self._check_endpoint(rewarded_episode)
        return Group(task=task, episodes=(episode,), id=attempt.episode_id)

    async def _group_rewards(self, factory: EnvFactory, episode: Episode) -> Sequence[Episode]:
        """The attempts at the task of an episode with the rewards of their comparison, once all have ended.

        Attempts that the folder holds are compared with, and keep the rewards that they have.
        """
        if self.plan.n == 1 or not factory.group_rewards:
            return [episode]
        task_id = episode.task.id
        attempts = self._group.setdefault(task_id, [])
        attempts.append(episode)
        if len(attempts) < sum(attempt.task_id == task_id for attempt in self.missing):
            return []
        del self._group[task_id]
        earlier = [episode for episode in self._earlier if episode.task.id == task_id]
        before = [without_group_rewards(episode, factory.group_rewards) for episode in earlier]
        group = Group(task=episode.task, episodes=(*before, *attempts), id=task_id)
        return (await with_group_rewards(factory, group, limits=self.plan.limits)).episodes[len(before) :]

    def _check_endpoint(self, episode: Episode) -> None:
        """Give up when an endpoint fails again and again: each episode has tried it several times."""
        self._num_attempts += 1
        self._failures = 0 if episode.outcome.is_attempt else self._failures + 1
        enough = _FAILURES if self._failures == self._num_attempts else _LATER_FAILURES
        is_endpoint = split_agent(self.plan.agent)[0] == "openai" and fault_class(episode) == "PolicyError"
        if is_endpoint and self._failures >= enough and self._num_attempts < len(self.missing):
            raise PolicyError(
                f"{self._failures} episodes in a row have no answer of the endpoint, and no more are tried: "
                f"{episode.error.removeprefix('PolicyError: ')}; the same command goes on"
            )
