"""A simulated cluster: engines that batch continuously, environments, a trainer, weights that travel.

Engines and trainer are as fast as one H200 was measured to be with a model of 0.5 to 0.6 billion parameters: vLLM made
594 tokens/s with one request, 11,200 with 32 and 20,460 with 256 (CUDA graphs, 256 tokens each), which is a step of
1.64 ms and 0.0424 ms more for each request; TorchTitan trained 90,700 tokens/s (flex attention, compiled, 8 x 4,096).
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.simulated_time import World
from benchmarks.simulated_workload import EpisodePlan, GroupPlan, Workload
from forge_env.core.episode import Episode, Group
from forge_env.core.types import Outcome, Task
from trainers.controller.loop_work import LoopWork

TASK = Task(prompt=(), target=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Seconds and rates of a cluster's parts. An engine is one GPU."""

    decode: float = 1.64e-3
    """Seconds of an engine's step, in which every running request gets one token; prompts cost nothing."""
    decode_request: float = 4.24e-5
    """Seconds more for each running request."""
    slots: int = 128
    """Requests that an engine runs at once; more wait, first come, first served."""
    train_tokens: float = 90_700.0
    """Tokens that one GPU of the trainer trains on in a second, however many there are."""
    train_overhead: float = 0.5
    """Seconds of an optimizer step beside its tokens."""
    publish: float = 0.6
    """Seconds for which the trainer writes its weights."""
    fetch: float = 1.0
    """Seconds until they have reached every engine, which goes on meanwhile."""
    swap: float = 0.05
    """Seconds for which every engine stops to take them in."""

    def step(self, requests: int) -> float:
        """Seconds of an engine's step."""
        return self.decode + self.decode_request * requests

    def tokens_per_second(self, requests: float) -> float:
        """Tokens that one engine makes with so many requests running all the time."""
        return requests / (self.decode + self.decode_request * requests)


ROUNDING = 1e-6  # tokens


class Engine:
    """One replica of the policy: all running requests get their tokens at the same rate."""

    def __init__(self, world: World, speeds: Speeds) -> None:
        self.episodes = 0
        """That are at home here; a session stays with the engine that has its prefix."""
        self._world = world
        self._speeds = speeds
        self._made = 0.0  # tokens that a request has got that has run from the start
        self._since = 0.0  # when this was true
        self._running: list[tuple[float, int, Callable[[], None]]] = []  # (what `_made` is when it is done, ...)
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._order = 0
        self._plan_number = 0
        self._planned = 0  # the request that the plan is for; 0: there is no plan
        self._stopped = False
        self._tokens = self._busy = 0.0

    def generate(self, tokens: int, done: Callable[[], None]) -> None:
        """Sample so many tokens, then call `done`."""
        self._waiting.append((tokens, done))
        if len(self._running) < self._speeds.slots:
            self._catch_up()
            self._plan()

    def swap(self, seconds: float) -> None:
        """Take new weights in: nothing is sampled meanwhile, and no request is lost."""
        self._catch_up()
        self._stopped, self._planned = True, 0
        self._world.after(seconds, self._go_on)

    def used(self) -> tuple[float, float]:
        """Tokens that were sampled, and seconds with at least one request, since the start."""
        self._catch_up()
        return self._tokens, self._busy

    def _go_on(self) -> None:
        self._catch_up()
        self._stopped = False
        self._plan()

    def _catch_up(self) -> None:
        seconds, self._since = self._world.now - self._since, self._world.now
        if self._running:
            self._busy += seconds
            if not self._stopped:
                steps = seconds / self._speeds.step(len(self._running))
                self._made += steps
                self._tokens += steps * len(self._running)

    def _plan(self) -> None:
        """Let what waits begin where there is room, and plan to look when the first request can be done.

        Whoever joins makes that later, so a plan for the same request may stand: it looks too early, and plans again.
        """
        while self._waiting and len(self._running) < self._speeds.slots:
            tokens, done = self._waiting.popleft()
            self._order += 1
            heapq.heappush(self._running, (self._made + tokens, self._order, done))
        if not self._running or self._stopped or self._running[0][1] == self._planned:
            return
        self._plan_number += 1
        self._planned = self._running[0][1]
        seconds = (self._running[0][0] - self._made) * self._speeds.step(len(self._running))
        self._world.after(max(seconds, 0.0), partial(self._look, self._plan_number))

    def _look(self, plan_number: int) -> None:
        if plan_number != self._plan_number or self._stopped:
            return
        self._catch_up()
        self._planned = 0
        ended = []
        if self._running[0][0] - self._made < ROUNDING:
            self._made = self._running[0][0]  # free of rounding, so that what ends together ends at once
            while self._running and self._running[0][0] <= self._made:
                ended.append(heapq.heappop(self._running)[2])
        self._plan()
        for done in ended:
            done()


class Router:
    """Gives an episode the engine with the fewest episodes, and the first of those."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines
        self._heap = [(0, number) for number in range(len(engines))]  # entries that are out of date among them

    def enter(self) -> int:
        """The number of an engine, which has one episode more from now on."""
        while True:
            episodes, number = heapq.heappop(self._heap)
            if self._engines[number].episodes == episodes:
                self._change(number, 1)
                return number

    def leave(self, number: int) -> None:
        self._change(number, -1)

    def _change(self, number: int, by: int) -> None:
        self._engines[number].episodes += by
        heapq.heappush(self._heap, (self._engines[number].episodes, number))
        if len(self._heap) > 8 * len(self._engines) + 1024:
            self._heap = [(engine.episodes, i) for i, engine in enumerate(self._engines)]
            heapq.heapify(self._heap)


@dataclass(frozen=True, kw_only=True)
class PlayedEpisode(Episode):
    """An episode of which only the number of its tokens is known."""

    sampled: int = 0
    trained: int = 0

    @property
    def num_sampled(self) -> int:
        return self.sampled


@dataclass
class Cluster(LoopWork):
    """The work of a Loop in simulated seconds: groups, steps and updates of the weights."""

    world: World
    workload: Workload
    engines: int
    trainers: int
    """GPUs of the trainer."""
    speeds: Speeds = field(default_factory=Speeds)
    seed: int = 0
    version: int = 0
    """Weights that every engine has."""
    admitted: dict[int, int] = field(default_factory=dict)
    """Group -> version at its admission; forgotten when it is trained on."""
    train_seconds: float = 0.0
    """For which the trainer was at work, the writing of its weights included."""
    tokens_trained: int = 0

    def __post_init__(self) -> None:
        self.replicas = [Engine(self.world, self.speeds) for _ in range(self.engines)]
        self._router = Router(self.replicas)

    @property
    def engine_steps(self) -> int:
        return self.version

    def task(self, number: int) -> Task:
        return TASK

    async def run_group(self, task: Task, number: int) -> Group:
        self.admitted[number] = self.version
        back: asyncio.Future[Group] = asyncio.get_running_loop().create_future()
        with self.world.at_work():
            plans = self.workload.group(self.seed, number)
            _Play(self.world, self._router, self.replicas, task, number, plans, back)
        return await back

    async def train_step(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        with self.world.at_work():
            tokens = sum(e.trained for g in groups for e in g.episodes if isinstance(e, PlayedEpisode))
        seconds = self.speeds.train_overhead + tokens / (self.speeds.train_tokens * self.trainers)
        await asyncio.sleep(seconds)
        self.train_seconds += seconds
        self.tokens_trained += tokens
        return {}

    async def publish_weights(self, step: int) -> dict[str, float]:
        await asyncio.sleep(self.speeds.publish)
        self.train_seconds += self.speeds.publish
        return {}

    async def pull_weights(self, step: int) -> dict[str, float]:
        await asyncio.sleep(self.speeds.fetch)
        with self.world.at_work():
            for engine in self.replicas:
                engine.swap(self.speeds.swap)
        await asyncio.sleep(self.speeds.swap)
        self.version = step
        return {}

    def trained_staleness(self, step: int, groups: Sequence[Group]) -> list[int]:
        """By how many optimizer steps the weights of each group's admission were behind those of its step."""
        return [step - 1 - self.admitted.pop(int(group.id)) for group in groups]

    def engine_use(self) -> tuple[float, float]:
        """Tokens that all engines have sampled, and seconds with work, summed over them."""
        used = [engine.used() for engine in self.replicas]
        return sum(tokens for tokens, _ in used), sum(busy for _, busy in used)


class _Play:
    """A group that is being played: episode by episode, turn by turn."""

    def __init__(
        self,
        world: World,
        router: Router,
        engines: Sequence[Engine],
        task: Task,
        number: int,
        plans: GroupPlan,
        back: asyncio.Future[Group],
    ) -> None:
        self._world, self._router, self._engines = world, router, engines
        self._task, self._number, self._plans, self._back = task, number, plans, back
        self._missing = len(plans)
        for plan in plans:
            self._turn(plan, 0, router.enter())

    def _turn(self, plan: EpisodePlan, turn: int, engine: int) -> None:
        if turn < len(plan):
            self._engines[engine].generate(plan[turn].tokens, partial(self._react, plan, turn, engine))
            return
        self._router.leave(engine)
        self._missing -= 1
        if not self._missing:
            self._world.answer(self._back, played(self._task, self._number, self._plans))

    def _react(self, plan: EpisodePlan, turn: int, engine: int) -> None:
        self._world.after(plan[turn].env_seconds, partial(self._turn, plan, turn + 1, engine))


def played(task: Task, number: int, plans: GroupPlan) -> Group:
    """The group that comes back; every second episode has a reward of 1."""
    episodes = []
    for i, plan in enumerate(plans):
        sampled = sum(turn.tokens for turn in plan)
        episodes.append(
            PlayedEpisode(
                task=task,
                turns=(),
                outcome=Outcome.SCORED,
                reward=float(i % 2),
                id=f"{number}/{i}",
                sampled=sampled,
                trained=sampled + sum(turn.prompt_tokens for turn in plan),
            )
        )
    return Group(task=task, episodes=tuple(episodes), id=str(number))
