"""Serves an agent: every session that somebody opens over HTTP is an episode, and is recorded in a folder.

The folder is that of an offline evaluation, see `forge_env.evaluation.folder`. A server that is started again with the
same settings adds to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import Any

from contrib.common.http_server import RequestRefused
from contrib.common.server_settings import TOKEN_VARIABLE, ServeSettings
from contrib.external.served.desk import Desk, visitor
from contrib.external.served.requests import Wish, read_wish
from contrib.external.served.visit import Visit
from contrib.external.sessions import ServedSetup
from forge_env.core.episode import Episode
from forge_env.core.errors import ForgeError
from forge_env.core.protocols import Agent
from forge_env.core.types import Task
from forge_env.evaluation.folder import EvalFolder
from forge_env.evaluation.plan import Attempt, EvalPlan, episode_seed
from forge_env.evaluation.summary import summarise
from forge_env.registry.agent_spec import AgentSettings, open_agent
from forge_env.rollout.factory import EnvFactory, make
from forge_env.rollout.rollout import run_episode

BEGIN_SECONDS = 30.0
STOP_SECONDS = 10.0
"""How long open sessions may take to end when the server is stopped; they are recorded as faults."""


async def serve_agent(
    plan: EvalPlan,
    path: Path,
    settings: ServeSettings,
    agent_settings: AgentSettings,
    *,
    public_url: str = "",
    announce: Callable[[str], None],
) -> None:
    """Serve until the caller is cancelled.

    Args:
        plan: the agent, the options of the environment sessions, and the limits of a session. Where its options name
            tasks, these are handed out; otherwise agents bring theirs.
        path: of the folder for the episodes.
        settings: the address, the token, and the bounds of the server.
        agent_settings: of the agent.
        public_url: under which agents reach the server.
        announce: called with the URL, once agents can come.
    """
    os.environ[TOKEN_VARIABLE] = settings.token  # options are recorded, and a token must not be
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    factory = make(
        plan.env,
        **{**plan.options, "listen": f"{host}:{settings.port}", "public_url": public_url},
        max_request_bytes=settings.max_request_bytes,
    )
    has_tasks = bool(plan.options.get("tasks") or plan.options.get("data"))
    tasks = factory.tasks(plan.split, count=plan.tasks, seed=plan.seed) if has_tasks else ()
    with EvalFolder(path, {**plan.to_dict(factory, tasks), "served": True}) as folder:
        async with factory, open_agent(plan.agent, agent_settings) as agent:
            folder.begin()
            setup = factory.shared["setup"]
            assert isinstance(setup, ServedSetup)
            server = _Server(plan, factory, agent, folder, tasks, setup.desk, settings.max_sessions)
            setup.desk.begin = server.begin
            announce(setup.gateway.base_url.removesuffix("/v1"))
            try:
                await server.failure
            finally:
                await server.stop()
                figures = summarise(plan, server.attempts, folder.episodes(), folder.faults())
                folder.finish({**folder.plan, **figures})


class _Server:
    """The episodes of the sessions that are open, and the numbers of those that were."""

    def __init__(
        self,
        plan: EvalPlan,
        factory: EnvFactory,
        agent: Agent,
        folder: EvalFolder,
        tasks: Sequence[Task],
        desk: Desk,
        max_sessions: int,
    ) -> None:
        self._desk = desk
        self._plan, self._factory, self._agent, self._folder = plan, factory, agent, folder
        self._tasks = {task.id: task for task in tasks}
        self._max_sessions = max_sessions
        self._running: set[asyncio.Task[None]] = set()
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has the exception that ends the server."""
        self.attempts: dict[Attempt, None] = {}
        self._counts: Counter[str] = Counter()
        for episode in (*folder.episodes(), *folder.faults()):
            self._note(Attempt.of(episode))

    async def begin(self, body: Mapping[str, Any]) -> Visit:
        wish = read_wish(body, self._plan.limits)
        task = self._task_of(wish)
        if self._desk.is_closed:
            raise RequestRefused(503, "the server is being stopped", code="stopping")
        if len(self._running) >= self._max_sessions:
            raise RequestRefused(
                503, f"{self._max_sessions} sessions are open, which is all that may be at once: ask again", code="busy"
            )
        attempt = Attempt(task.id, self._counts[task.id])
        self._note(attempt)
        visit: asyncio.Future[Visit] = asyncio.get_running_loop().create_future()
        context = copy_context()
        context.run(visitor.set, visit)
        playing = asyncio.get_running_loop().create_task(self._play(task, attempt, wish, visit), context=context)
        self._running.add(playing)
        playing.add_done_callback(self._running.discard)
        either: set[asyncio.Future[Any]] = {visit, playing}
        await asyncio.wait(either, timeout=BEGIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not visit.done():
            playing.cancel()
            raise RequestRefused(500, "the session could not be begun", code="not_begun")
        return visit.result()

    async def stop(self) -> None:
        """End the open sessions as faults, which are recorded."""
        self._desk.stop()
        for visit in self._desk.open_sessions:
            visit.fail("the server was stopped before the session was finished")
        if self._running:
            await asyncio.wait(self._running, timeout=STOP_SECONDS)
        for playing in self._running:
            playing.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _play(self, task: Task, attempt: Attempt, wish: Wish, visit: asyncio.Future[Visit]) -> None:
        """Run one episode, record it, and tell its agent."""
        start, clock = time.time(), time.perf_counter()
        summary: dict[str, Any] = {"outcome": "fault", "error": "the server was stopped"}
        try:
            episode = await run_episode(
                self._factory,
                self._agent,
                task,
                seed=episode_seed(self._plan.seed, attempt) if wish.seed is None else wish.seed,
                episode_id=attempt.episode_id,
                group_id=attempt.task_id,
                limits=wish.limits,
            )
            times = {"started": start, "seconds": time.perf_counter() - clock}
            episode = dataclasses.replace(episode, info={**episode.info, **times})
            self._folder.add(episode)
            summary = _summary(episode)
        except ForgeError as error:  # a mistake or a fault that would affect every episode
            summary["error"] = str(error)
            with contextlib.suppress(asyncio.InvalidStateError):
                self.failure.set_exception(error)
        finally:
            if visit.done() and not visit.cancelled():
                visit.result().conclude(summary)

    def _task_of(self, wish: Wish) -> Task:
        """Return the task of a session: the agent's own, the one that it names, or the one with the fewest attempts."""
        if not self._tasks:
            if wish.task_id:
                raise RequestRefused(
                    400, "this server has no tasks: bring one with prompt, or none", code="invalid_request"
                )
            number = {} if wish.has_task else {"session": len(self.attempts)}
            metadata = {**wish.metadata, **number}
            return Task(prompt=wish.prompt or (), target=wish.target, metadata=metadata, id=wish.id)
        if wish.has_task:
            raise RequestRefused(
                400,
                "this server hands out its own tasks: leave prompt, target, metadata and id out; task_id chooses one",
                code="invalid_request",
            )
        if wish.task_id:
            if wish.task_id not in self._tasks:
                raise RequestRefused(404, f"this server has no task {wish.task_id!r}", code="not_found")
            return self._tasks[wish.task_id]
        return min(self._tasks.values(), key=lambda task: self._counts[task.id])

    def _note(self, attempt: Attempt) -> None:
        self.attempts[attempt] = None
        self._counts[attempt.task_id] = max(self._counts[attempt.task_id], attempt.number + 1)


def _summary(episode: Episode) -> dict[str, Any]:
    return {
        "outcome": str(episode.outcome),
        "reward": episode.reward,
        "rewards": dict(episode.rewards),
        "success": episode.success,
        "ended_by": episode.ended_by,
        "error": episode.error,
        "turns": len(episode.work),
        "episode": episode.id,
    }
