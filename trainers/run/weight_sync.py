"""WeightSync: which weights the trainer has published, and which the engines generate from.

The life of one update. The engines have the weights of 6 optimizer steps, as version 3:

    weights.make_room()             # where engines sleep while the trainer works, they do until the next pull
    weights.mark_ahead()            # after steps 7 and 8: the trainer is ahead of version 3
    await weights.publish(8)        # version 4 is a copy of the weights; the next step may change the trainer's
    await weights.pull()            # version 4 is in the store, and then in every engine
    await weights.prove()           # every engine answers a fixed prompt as the trainer does with version 4
    weights.engine_steps            # 8: from now on groups are sampled from the weights of 8 optimizer steps

A version is the number of an update, and every token is stamped with the version that sampled it. An engine
keeps the number that it was told here, because it does the stamping; nothing else counts versions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agents.generator.policy import PolicyActor, Scored
from forge_env.core.episode import Episode
from forge_env.core.errors import ServiceError
from forge_env.runtime.calls.answers import unless_gone, within
from forge_env.runtime.launcher import Spawned
from forge_env.runtime.process.ranks import AllRanks
from forge_env.runtime.service import Service
from trainers.run.delivery import Delivery
from trainers.run.run_record import RunRecord
from trainers.run.trainer_actor import TrainerActor


@dataclass(kw_only=True)
class WeightAges:
    """The optimizer steps behind the trainer's weights and behind each version that may still have sampled a token."""

    staleness: int
    """Optimizer steps between the weights that sampled and those that are trained, at most."""
    updates: int = 0
    """Optimizer steps that changed the trainer's weights."""
    versions: dict[int, int] = field(default_factory=dict)
    """Version -> `updates` at its publication."""

    def note_version(self, version: int) -> None:
        """Record that the present weights are published as `version`; call it before the next optimizer step."""
        self.versions.setdefault(version, self.updates)
        for older in sorted(self.versions)[: -self.staleness - 2]:
            del self.versions[older]

    def note_step(self, *, skipped: bool) -> None:
        """Record an optimizer step; a skipped one changed no weights."""
        self.updates += not skipped

    def of(self, episodes: Sequence[Episode]) -> list[int]:
        """Optimizer steps from the oldest weights that sampled a token of an episode to the present ones.

        Returns:
            One number for each episode that has sampled tokens.
        """
        return [self.updates - min(self.versions[v] for v in e.versions) for e in episodes if e.versions]

    def state_dict(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {"updates": self.updates, "versions": [[*pair] for pair in self.versions.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.updates, self.versions = state["updates"], dict(state["versions"])


R = TypeVar("R")
PUBLISH = "publishing the weights"
RELEASE = "the trainer, which makes room for the engine,"
SCORE = "the trainer, which scores a fixed prompt,"
SCORE_S = 10.0
"""An engine that is too busy to score the prompt for so long is judged at the next update."""


@dataclass(kw_only=True)
class WeightSync:
    """The versions of a run's weights."""

    trainer: AllRanks[TrainerActor]
    engines: Service[PolicyActor]
    engine_ready: asyncio.Task[None]
    """Done when the engines are up."""
    record: RunRecord
    """Told how long each update takes."""
    delivery: Delivery
    """Judges whether updates arrive."""
    ages: WeightAges
    """Of the weights that a step trains on."""
    seconds: float
    """Deadline of moving the weights once."""
    sleeps: bool = False
    """Whether the engines sleep while the trainer steps."""

    are_asleep: bool = field(default=False, init=False)
    """Whether the engines sleep, or are about to."""
    newest: int = field(default=-1, init=False)
    """The version that was published last."""
    in_store: int = field(default=-1, init=False)
    """The newest version that can be fetched; a new engine is given it before it is put to use."""
    in_engines: int = field(default=-1, init=False)
    """The version that every engine generates from."""
    engine_steps: int = field(default=0, init=False)
    """Optimizer steps behind the weights of every engine."""
    _published_steps: int = field(default=0, init=False)
    _sleep_seconds: float = field(default=0.0, init=False)  # of falling asleep the last time
    _scoring: asyncio.Task[None] | None = field(default=None, init=False)  # the trainer's last score
    _is_ahead: bool = field(default=True, init=False)  # whether the trainer has newer weights than it published
    _no_commit: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self._no_commit.set()  # it is not while a version that was taken waits for its commit
        self.engines.on_ready = self.catch_up

    @property
    def is_synced(self) -> bool:
        """Whether the engines generate from the weights that the trainer has now."""
        return not self._is_ahead and self.in_engines == self.newest

    @property
    def of_trainer(self) -> int:
        """The version that the trainer's weights have, or are going to be published as; a checkpoint keeps it."""
        return self.newest + self._is_ahead

    def mark_ahead(self) -> None:
        """The trainer takes a step, or has loaded other weights."""
        self._is_ahead = True

    def restore(self, version: int) -> None:
        """The trainer has loaded the weights of a checkpoint, which are published as `version` next."""
        self.newest = version - 1
        self.mark_ahead()

    async def begin(self) -> None:
        """Let the trainer score the model that the engines start with, before anything is trained."""
        self._score(-1)
        await self._trainer_has_scored()

    async def stop_waiting(self) -> None:
        """Cancel the wait for the engines, if the run ends before they are up."""
        self.engine_ready.cancel()
        await asyncio.gather(self.engine_ready, return_exceptions=True)

    async def make_room(self) -> None:
        """Put the engines to sleep before the trainer works, where the plan says so; the next pull wakes them."""
        if not self.sleeps or self.are_asleep:
            return
        with self.record.phase("waiting for the engine"):
            await self.engine_ready
        self.are_asleep = True  # an engine that is replaced from now on is put to sleep by `catch_up`
        start_time = time.perf_counter()
        with self.record.span("weights", "sleep"):
            await self.engines.deadline(self.seconds).fanout(PolicyActor.sleep)
        self._sleep_seconds = time.perf_counter() - start_time

    async def publish(self, steps: int) -> dict[str, float]:
        """Publish the trainer's weights as the next version; `steps` is the number of optimizer steps behind them.

        Returns:
            seconds/publish. The next step may then change the trainer's weights, and `pull` does the rest.
        """
        await self.make_room()
        version = self.newest + 1
        span = self.record.span("weights", "publish", version=version)
        self._no_commit.clear()
        with self.record.phase("weights: publish"), span:
            seconds = await self.trainer.deadline(self.seconds, PUBLISH).call_one(TrainerActor.take, version)
        self._score(version)
        self.newest, self._published_steps, self._is_ahead = version, steps, False
        return {"seconds/publish": seconds}

    async def pull(self) -> dict[str, float]:
        """Put the version that was published last into the store, and then into the engines; those that sleep wake.

        Returns:
            seconds/commit, and seconds/fetch and seconds/swap of the slowest engine. Of engines that slept also
            seconds/sleep, of falling asleep, seconds/release and seconds/wake.
        """
        version, steps = self.newest, self._published_steps
        span = self.record.span("weights", "commit", version=version)
        with self.record.phase("weights: commit"), span:
            commit = await self.trainer.deadline(self.seconds, PUBLISH).call_one(TrainerActor.commit)
        self.in_store = version
        self._no_commit.set()
        slept: dict[str, float] = {}
        if self.are_asleep:
            start_time = time.perf_counter()
            await self.trainer.deadline(self.seconds, RELEASE).call_one(TrainerActor.release_memory)
            slept = {"seconds/sleep": self._sleep_seconds, "seconds/release": time.perf_counter() - start_time}
            self.are_asleep = False
        with self.record.phase("waiting for the engine"):
            await self.engine_ready
        with self.record.phase("weights: pull"), self.record.span("weights", "pull", version=version):
            pulls = await self.engines.deadline(self.seconds).fanout(PolicyActor.pull, version, self.seconds)
        self.in_engines, self.engine_steps = version, steps
        parts = ("fetch", "swap", "wake") if slept else ("fetch", "swap")
        slowest = {f"seconds/{part}": max((pull[part] for pull in pulls), default=0.0) for part in parts}
        return {"seconds/commit": commit, **slept, **slowest}

    async def prove(self) -> dict[str, float]:
        """Compare the answers of the engines to a fixed prompt with the trainer's, see `Delivery`.

        It is not part of `pull`: sampling need not wait for it, and an engine full of requests may take a while.

        Returns:
            delivery/difference, delivery/missing, and seconds/proof, until all have answered.
        """
        start_time, version, prompt = time.perf_counter(), self.in_engines, self.delivery.prompt
        with self.record.span("weights", "proof", version=version):
            await self._trainer_has_scored()
            scores = await self.engines.deadline(self.seconds).fanout(PolicyActor.score, prompt, SCORE_S)
        values = self.delivery.check(version, scores)
        self.delivery.refuse()
        return values | {"seconds/proof": time.perf_counter() - start_time}

    async def sync(self, steps: int) -> dict[str, float]:
        """Publish, pull and prove the trainer's weights, unless the engines have them.

        If nothing newer was published, sleeping engines wake with the last version.
        """
        if self.is_synced and not self.are_asleep:
            return {}
        metrics = {} if self.is_synced else await self.publish(steps)
        return metrics | await self.pull() | await self.prove()

    async def catch_up(self, engine: Spawned) -> None:
        """Give a new engine the weights that the others have, and put it to sleep if they sleep. It scores the fixed
        prompt before and after.

        A store that keeps one version has none between two updates: then the next one is waited for. Nothing is awaited
        after the last look at `in_store` and `are_asleep`.
        """
        self.delivery.note_start(await self._scored_by(engine))
        version, is_asleep = -1, False
        while (version, is_asleep) != (self.in_store, self.are_asleep):
            version, is_asleep = self.in_store, self.are_asleep
            try:
                if version >= 0:
                    await self._ask(engine, engine.call_one(PolicyActor.pull, version, self.seconds))
                    await self._trainer_has_scored()
                    self.delivery.check(version, [await self._scored_by(engine)])
                if is_asleep:
                    await self._ask(engine, engine.call_one(PolicyActor.sleep))
            except ServiceError:
                # Otherwise there is a newer one, or will be in a moment, and this one may be forgotten.
                if version == self.in_store and self._no_commit.is_set():
                    raise
                await unless_gone(within(self.seconds, self._no_commit.wait(), PUBLISH), engine.dead)

    def ages_of(self, episodes: Sequence[Episode]) -> list[int]:
        """The staleness of episodes that the next optimizer step trains on, see `WeightAges.of`."""
        self.ages.note_version(self.newest)
        return self.ages.of(episodes)

    def _score(self, version: int) -> None:
        """Let the trainer score the fixed prompt with the weights of a version; -1 is the model's folder.

        The message leaves at once, before the next step changes the weights.
        """
        trainer = self.trainer.deadline(self.seconds, SCORE)
        call = trainer.call_one(TrainerActor.score, self.delivery.prompt, of_folder=version < 0)

        async def score() -> None:
            self.delivery.note_update(version, await call)

        self._scoring = asyncio.create_task(score())
        self._scoring.add_done_callback(
            lambda task: task.cancelled() or task.exception()
        )  # a run that ends asks nobody

    async def _trainer_has_scored(self) -> None:
        if self._scoring is not None:
            await asyncio.shield(self._scoring)

    async def _scored_by(self, engine: Spawned) -> Scored:
        return await self._ask(engine, engine.call_one(PolicyActor.score, self.delivery.prompt, self.seconds))

    async def _ask(self, engine: Spawned, call: Awaitable[R]) -> R:
        """The answer of a new engine, unless it dies or takes too long."""
        return await unless_gone(within(self.seconds, call, "the new engine"), engine.dead)
