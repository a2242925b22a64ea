"""Episodes in lockstep: every batch holds the same requests in the same order, whatever the tools take."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from agents.scripted import ScriptedAgent
from benchmarks.simulated_time import World
from benchmarks.simulated_time import run as simulated
from forge_env.core.episode import Turn
from forge_env.core.errors import InvariantError, PolicyError
from forge_env.core.faults import FaultPolicy
from forge_env.core.protocols import Conversation
from forge_env.core.turn import Completion
from forge_env.core.types import Action, EpisodeLimits, Outcome, Sampling, ToolSpec
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.lockstep import LockstepPolicy, Request, Wave
from forge_env.rollout.rollout import GroupSpec, run_group
from forge_env.utils.deadlines import Deadline
from tests.forge_env.core.test_faults import TASK, Fated


@dataclass
class Batches:
    """A policy that answers with the number of the batch, and writes down what each one held."""

    seen: list[list[str]] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)
    refused: str = ""
    before: Callable[[], Awaitable[object]] | None = None

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, session: str
    ) -> Completion:
        self.alone.append(request_id)
        return completion(0)

    async def generate_batch(self, requests: Sequence[Request]) -> Sequence[Completion | Exception]:
        self.seen.append([request.request_id for request in requests])
        number = len(self.seen)
        if self.before is not None:
            await self.before()
        return [PolicyError("no") if r.request_id == self.refused else completion(number) for r in requests]


def completion(token: int) -> Completion:
    return Completion(prompt_ids=(1,), token_ids=(token,), logprobs=(-1.0,), versions=((0, 1),), finish_reason="stop")


async def ask(policy: LockstepPolicy, name: str) -> int:
    answer = await policy.generate([1], Sampling(), request_id=name, session=name)
    return answer.token_ids[0]


async def batches_of(turns: dict[str, int], delays: random.Random) -> list[list[str]]:
    """The batches of a wave in which each episode asks so often, and lets others go first for as long as it likes."""
    policy = Batches(before=lambda: pause(delays))
    lockstep = LockstepPolicy(policy)

    async def play(name: str, wave: Wave) -> None:
        with wave.episode():
            for turn in range(turns[name]):
                await pause(delays)
                assert await ask(lockstep, f"{name}/{turn}") == turn + 1
            await pause(delays)

    async with Wave(len(turns)) as wave, asyncio.TaskGroup() as episodes:
        for name in delays.sample(sorted(turns), len(turns)):
            episodes.create_task(play(name, wave))
    return policy.seen


async def ends(*plays: Callable[[], Awaitable[Any]]) -> list[Any]:
    """What becomes of episodes that are one wave."""

    async def one(play: Callable[[], Awaitable[Any]], wave: Wave) -> Any:
        with wave.episode():
            return await play()

    async with Wave(len(plays)) as wave:
        return await asyncio.gather(*(one(play, wave) for play in plays), return_exceptions=True)


async def pause(delays: random.Random) -> None:
    for _ in range(delays.randrange(20)):
        await asyncio.sleep(0)


async def test_the_batches_do_not_depend_on_the_delays() -> None:
    turns = {"a": 3, "b": 1, "c": 0, "d": 4, "e": 3}
    expected = [sorted(f"{name}/{turn}" for name in turns if turns[name] > turn) for turn in range(4)]
    for seed in range(15):
        assert await batches_of(turns, random.Random(seed)) == expected


async def test_two_requests_of_one_episode_do_not_stand_for_another_episode() -> None:
    policy = Batches()
    lockstep = LockstepPolicy(policy)

    async def play(name: str, requests: int, wave: Wave) -> None:
        with wave.episode():
            await asyncio.gather(*(ask(lockstep, f"{name}/{i}") for i in range(requests)))

    async with Wave(2) as wave, asyncio.TaskGroup() as episodes:
        episodes.create_task(play("parallel", 2, wave))
        for _ in range(20):
            await asyncio.sleep(0)  # until both of its requests have come
        assert policy.seen == []
        episodes.create_task(play("slow", 1, wave))
    assert policy.seen == [["parallel/0", "parallel/1", "slow/0"]]


async def test_an_episode_that_breaks_or_times_out_is_not_waited_for() -> None:
    policy = Batches()
    lockstep = LockstepPolicy(policy)

    async def play(name: str) -> None:
        await ask(lockstep, f"{name}/0")
        if name == "broken":
            raise PolicyError("broken")
        if name == "slow":
            await Deadline(0.01).run(asyncio.Event().wait())
        await ask(lockstep, f"{name}/1")

    found = await ends(*(partial(play, name) for name in ("broken", "good", "slow", "well")))
    assert policy.seen == [["broken/0", "good/0", "slow/0", "well/0"], ["good/1", "well/1"]]
    assert [type(each) for each in found] == [PolicyError, type(None), TimeoutError, type(None)]


async def test_an_episode_may_end_while_its_request_is_in_a_batch_and_begin_again() -> None:
    release = asyncio.Event()
    policy = Batches(before=release.wait)
    lockstep = LockstepPolicy(policy)

    async def impatient() -> int:
        first = asyncio.create_task(ask(lockstep, "a"))
        while not policy.seen:
            await asyncio.sleep(0)
        first.cancel()
        again = asyncio.create_task(ask(lockstep, "a.1"))
        await asyncio.sleep(0)
        assert len(policy.seen) == 1, "one batch at a time"
        release.set()
        return await again

    async def patient() -> int:
        return await ask(lockstep, "b") + await ask(lockstep, "b/1")

    assert await ends(impatient, patient) == [2, 3]
    assert policy.seen == [["a", "b"], ["a.1", "b/1"]]


def test_waiting_for_the_others_does_not_count_against_a_deadline() -> None:
    lockstep = LockstepPolicy(Batches())

    async def play(name: str, seconds: float) -> int:
        await asyncio.sleep(0.2 if name == "late" else 0)
        return await Deadline(seconds).run(ask(lockstep, name))

    both = ends(partial(play, "early", 0.1), partial(play, "late", 30.0))
    assert simulated(World(), both) == [1, 1]  # on a busy machine, a real clock goes on where the work does not


async def test_each_request_has_its_own_error_or_that_of_its_batch() -> None:
    async def gone() -> None:
        raise PolicyError("the engine is gone")

    lockstep = LockstepPolicy(Batches(refused="b"))
    good, refused = await ends(*(partial(ask, lockstep, name) for name in "ab"))
    assert good == 1 and isinstance(refused, PolicyError)
    lockstep = LockstepPolicy(Batches(before=gone))
    found = await ends(*(partial(ask, lockstep, name) for name in "ab"))
    assert [str(error) for error in found] == ["the engine is gone"] * 2


class Asking:
    """An agent that asks the policy for each of its turns."""

    def __init__(self, policy: LockstepPolicy) -> None:
        self._policy = policy
        self._scripted = ScriptedAgent(lambda messages: {"role": "assistant", "content": "x"})

    async def act(self, conversation: Conversation, tools: Sequence[ToolSpec]) -> tuple[Turn, Action]:
        await ask(self._policy, f"{conversation.request_id}/{len(conversation.turns)}")
        return await self._scripted.act(conversation, tools)


async def test_an_episode_that_is_run_again_keeps_its_place() -> None:
    class Breaks(Fated):
        pass

    Breaks.fates = {0: ["infra_fault", "scored"], 1: ["scored"], 10: ["going on", "scored"], 11: ["scored"]}
    Breaks.rewards = dict.fromkeys(Breaks.fates, 1.0)
    policy = Batches()
    agent = Asking(LockstepPolicy(policy))
    async with EnvFactory(Breaks) as factory, Wave(4) as wave:
        groups = await asyncio.gather(
            *(
                run_group(
                    factory,
                    agent,
                    GroupSpec(task=TASK, count=2, seed=seed, group_id=f"g{seed}"),
                    limits=EpisodeLimits(),
                    on_fault=FaultPolicy(mode="refill"),
                    around=wave.episode,
                )
                for seed in (0, 10)
            )
        )
    assert all(episode.outcome is Outcome.SCORED for group in groups for episode in group.episodes)
    assert policy.seen == [["g0/0/0", "g0/1/0", "g10/0/0", "g10/1/0"], ["g0/0.1/0", "g10/0/1"]]


async def test_outside_of_a_wave_it_is_the_policy_itself() -> None:
    policy = Batches()
    async with Wave(0):
        pass
    assert await ask(LockstepPolicy(policy), "x") == 0
    assert (policy.alone, policy.seen) == (["x"], [])


async def test_a_wave_that_is_cancelled_leaves_nothing() -> None:
    policy = Batches(before=asyncio.Event().wait)
    before = asyncio.all_tasks()

    async def play() -> None:
        async with Wave(1) as wave:
            with wave.episode():
                await ask(LockstepPolicy(policy), "a")

    playing = asyncio.create_task(play())
    while not policy.seen:
        await asyncio.sleep(0)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert asyncio.all_tasks() <= before


async def test_mistakes_are_noticed() -> None:
    async with Wave(2) as wave:
        with wave.episode():
            waiting = asyncio.create_task(ask(LockstepPolicy(Batches()), "a"))
            await asyncio.sleep(0)
            with pytest.raises(InvariantError, match="more than one policy"):
                await ask(LockstepPolicy(Batches()), "b")
            waiting.cancel()
