"""The episodes that clients of a server play: their tasks, seeds, ids and records."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import random
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from contrib.common.server_settings import ServeSettings
from contrib.serve.client_episode import ClientEpisode
from forge_env import __version__
from forge_env.core.episode import Episode
from forge_env.core.errors import InfraError, UserError
from forge_env.core.types import EpisodeLimits, Task, ToolSpec
from forge_env.evaluation.digests import environment_digests
from forge_env.evaluation.folder import EvalFolder
from forge_env.evaluation.plan import PLAN_VERSION, task_list_digest
from forge_env.rollout.env_calls import close_env
from forge_env.rollout.factory import EnvFactory
from forge_env.utils.digests import value_digest
from forge_env.utils.threads import invoke

SPLITS = ("train", "test")
CLOSE_SECONDS = 30.0
logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlayOptions:
    """What a server needs to know about the episodes of its clients."""

    split: str = "test"
    """Where a client that names no split gets its tasks from."""
    tasks: int = 200
    """Number of tasks of each split."""
    seed: int = 0
    """Of the tasks."""
    limits: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Limits of an episode that differ from the environment's, by the names of `EpisodeLimits`."""
    out: Path | None = None
    """Folder of the records; None records nothing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The task of an episode, its source, and the seed of the episode."""

    split: str
    index: int
    task: Task
    seed: int


class Desk:
    """Begins episodes, and records them.

    Args:
        factory: of the environment, open.
        settings: of the server.
        options: of the episodes.
        tasks: of the server's own split.
        tools: that an instance has before its first episode.
        folder: of the records, if there are any.
    """

    def __init__(
        self,
        factory: EnvFactory,
        settings: ServeSettings,
        options: PlayOptions,
        tasks: list[Task],
        tools: Sequence[ToolSpec],
        folder: EvalFolder | None,
    ) -> None:
        self.factory = factory
        self.settings = settings
        self.tools = tools  # that an instance has before its first episode
        self.limits = _limits(factory, options)
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has the exception that ends the server."""
        self._options, self._folder = options, folder
        self._tasks = {options.split: tasks}
        self._lock = asyncio.Lock()
        self._open: set[ClientEpisode] = set()
        self._next: Counter[str] = Counter()
        self._attempts: Counter[str] = Counter()
        for episode in () if folder is None else (*folder.episodes(), *folder.faults()):
            number = int(episode.id.rpartition("/")[2])
            self._attempts[episode.task.id] = max(self._attempts[episode.task.id], number + 1)

    async def tasks(self, split: str = "") -> list[Task]:
        """Return the tasks of a split, by default of the server's own."""
        split = split or self._options.split
        async with self._lock:
            if split not in self._tasks:
                count, seed = self._options.tasks, self._options.seed
                self._tasks[split] = list(await invoke(self.factory.tasks, split, count=count, seed=seed))
            return self._tasks[split]

    async def splits(self) -> list[str]:
        names = []
        for split in dict.fromkeys((*SPLITS, self._options.split)):
            try:
                await self.tasks(split)
                names.append(split)
            except UserError as error:
                logger.info("no tasks of the split %s: %s", split, error)
        return names

    async def choose(self, query: Mapping[str, Any]) -> Chosen:
        """Choose the task of an episode: the one with the index; else one that follows from the seed; else the next.

        Args:
            query: by a client: "split", "index" and "seed", each of which it may leave out.
        """
        split, index, seed = (query.get(name) for name in ("split", "index", "seed"))
        for part, value in (("index", index), ("seed", seed)):
            if value is not None and (type(value) is not int or value < 0):
                raise UserError(f"{part} is {value!r:.40}; it is a whole number from 0")
        if split is not None and not isinstance(split, str):
            raise UserError(f"split is {split!r:.40}; it is the name of a split")
        name = split or self._options.split
        tasks = await self.tasks(name)
        if index is None and seed is None:
            index = self._next[name] % len(tasks)
            self._next[name] += 1
        elif index is None:
            index = random.Random(seed).randrange(len(tasks))
        elif index >= len(tasks):
            raise UserError(
                f"the split {name} has {len(tasks)} tasks, and the index is {index}: give 0 or more below it"
            )
        seed = secrets.randbelow(2**31) if seed is None else seed
        return Chosen(split=name, index=index, task=tasks[index], seed=seed)

    def begin(self, choice: Chosen) -> ClientEpisode:
        number = self._attempts[choice.task.id]
        self._attempts[choice.task.id] += 1
        start_time, clock = time.time(), time.perf_counter()

        def on_end(record: Episode) -> None:
            self._open.discard(episode)
            self._record(record, {"started": start_time, "seconds": time.perf_counter() - clock})

        episode = ClientEpisode(
            self.factory,
            choice.task,
            seed=choice.seed,
            episode_id=f"{choice.task.id}/{number}",
            limits=self.limits,
            idle_seconds=self.settings.idle_seconds,
            on_end=on_end,
        )
        self._open.add(episode)
        return episode

    async def close(self) -> None:
        ends = [episode.end("the server was stopped before the end of the episode") for episode in self._open]
        await asyncio.gather(*ends, return_exceptions=True)

    def _record(self, record: Episode, times: Mapping[str, float]) -> None:
        if self._folder is None:
            return
        try:
            self._folder.add(dataclasses.replace(record, info={**record.info, **times}))
        except InfraError as error:
            if not self.failure.done():
                self.failure.set_exception(error)


@asynccontextmanager
async def open_desk(
    factory: EnvFactory, protocol: str, settings: ServeSettings, options: PlayOptions
) -> AsyncIterator[Desk]:
    """Open the desk of a server with an open factory. At the end, open episodes are ended and recorded as faults."""
    tasks = list(await invoke(factory.tasks, options.split, count=options.tasks, seed=options.seed))
    with nullcontext() if options.out is None else _folder(options.out, factory, protocol, options, tasks) as folder:
        if folder is not None:
            folder.begin()
        desk = Desk(factory, settings, options, tasks, await _tools(factory), folder)
        try:
            yield desk
        finally:
            await desk.close()


async def _tools(factory: EnvFactory) -> list[ToolSpec]:
    """Return the tools of an instance, which a client may ask for before its episode."""
    env = await factory.construct(seconds=CLOSE_SECONDS)
    tools = list(env.tools)
    await close_env(env, CLOSE_SECONDS)
    return tools


def _limits(factory: EnvFactory, options: PlayOptions) -> EpisodeLimits:
    return dataclasses.replace(factory.episode_limits(), **options.limits)


def _folder(path: Path, factory: EnvFactory, protocol: str, options: PlayOptions, tasks: list[Task]) -> EvalFolder:
    """The folder of the records. Its plan has everything that they depend on."""
    plan = {
        "version": PLAN_VERSION,
        "env": factory.name,
        "agent": "client",
        "served": protocol,
        "options": factory.options,
        "split": options.split,
        "tasks": options.tasks,
        "seed": options.seed,
        "limits": dataclasses.asdict(_limits(factory, options)),
        "task_digest": task_list_digest(tasks),
        "depends_on": {
            "forge_env": {"forge_env": __version__},
            "environment": environment_digests(factory),
            "agent": {},
            "tasks": {"tasks": value_digest([json.dumps(dataclasses.asdict(task), default=str) for task in tasks])},
            "not_covered": ["the agents, which run elsewhere"],
        },
    }
    return EvalFolder(path, plan)
