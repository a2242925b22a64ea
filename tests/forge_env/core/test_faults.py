"""The failure algebra: for any mix of faults, only valid siblings make the baseline, and nothing is made up."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.scripted import ScriptedAgent, say_nothing
from benchmarks.simulated_time import World
from benchmarks.simulated_time import run as simulated
from forge_env.core.env import Env
from forge_env.core.episode import Group
from forge_env.core.errors import SandboxError, UserError
from forge_env.core.faults import FaultPolicy
from forge_env.core.types import Action, EpisodeLimits, Outcome, Task
from forge_env.rollout.factory import EnvFactory
from forge_env.rollout.rollout import GroupSpec, run_group
from trainers.objective.advantages import group_relative

TASK = Task(prompt=({"role": "user", "content": "?"},))
FATES = ("scored", "truncated", "model_fault", "timeout", "env_fault", "infra_fault")


class Fated(Env):
    """Each seed has a list of fates, one per attempt, and a reward."""

    fates: dict[int, list[str]]
    rewards: dict[int, float]

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        assert seed is not None
        self.place = seed
        return TASK.prompt, {}

    async def step(self, action: Action) -> Any:
        fate = self.fates[self.place].pop(0)
        if fate == "infra_fault":
            raise SandboxError("gone")
        if fate == "timeout":
            await asyncio.Event().wait()
        if fate == "env_fault":
            raise ZeroDivisionError("a bug of the environment")
        info = {"outcome": Outcome.MODEL_FAULT} if fate == "model_fault" else {}
        return [], self.rewards[self.place], fate == "scored", fate == "truncated", info


def play(fates: list[list[str]], rewards: list[float], policy: FaultPolicy) -> Group:
    class Env(Fated):
        pass

    Env.fates = {i: list(outcomes) for i, outcomes in enumerate(fates)}
    Env.rewards = dict(enumerate(rewards))

    async def run() -> Group:
        async with EnvFactory(Env) as factory:
            return await run_group(
                factory,
                ScriptedAgent(say_nothing),
                GroupSpec(task=TASK, count=len(fates), seed=0, group_id="g"),
                limits=EpisodeLimits(episode_seconds=1.0),
                on_fault=policy,
            )

    return simulated(World(), run())  # a TIMEOUT takes no time then


TRIES = 3
mixes = st.lists(
    st.tuples(st.lists(st.sampled_from(FATES), min_size=TRIES, max_size=TRIES), st.floats(-5, 5)),
    min_size=1,
    max_size=6,
)
policies = st.builds(
    FaultPolicy,
    mode=st.sampled_from(["refill", "shrink", "drop"]),
    min_valid=st.integers(1, 4),
    tries=st.integers(1, TRIES),
)


def is_ours(fate: str) -> bool:
    return fate in ("timeout", "env_fault", "infra_fault")


@given(mix=mixes, policy=policies)
def test_for_any_mix_of_faults(mix: list[tuple[list[str], float]], policy: FaultPolicy) -> None:
    fates, rewards = [fate for fate, _ in mix], [reward for _, reward in mix]
    group = play(fates, rewards, policy)

    # each place is tried until it has no fault, and as often as the policy says at most
    used = []
    for place in fates:
        upto = next((i for i, fate in enumerate(place[: policy.attempts]) if not is_ours(fate)), policy.attempts - 1)
        used.append(place[: upto + 1])
    assert [e.outcome.value for e in group.episodes] == [place[-1] for place in used]
    replaced = sorted(fate for place in used for fate in place[:-1])
    assert sorted(e.outcome.value for e in group.replaced) == replaced
    assert len(group.faults) == sum(is_ours(fate) for place in used for fate in place)

    # nothing is made up: a fault has no reward, everything else has the environment's own
    for episode, reward in zip(group.episodes, rewards, strict=True):
        assert episode.reward == (None if is_ours(episode.outcome.value) else reward)
        assert bool(episode.error) == is_ours(episode.outcome.value)
    assert all(e.reward is None for e in group.replaced)

    # the baseline is that of the valid siblings alone
    valid = [r for place, r in zip(used, rewards, strict=True) if not is_ours(place[-1])]
    assert list(group.rewards) == valid
    advantages = group_relative(group.rewards)
    assert len(advantages) == len(valid)
    assert math.isclose(sum(advantages), 0.0, abs_tol=1e-5)

    # what becomes of the group
    whole = len(valid) == len(fates)
    assert policy.keeps(group) == (len(valid) >= min(policy.min_valid, len(fates)) and (whole or policy.mode != "drop"))


def test_a_refilled_sibling_has_the_same_seed_and_another_id() -> None:
    group = play([["infra_fault", "scored"], ["scored"]], [1.0, 2.0], FaultPolicy(mode="refill", tries=2))
    assert [e.id for e in group.episodes] == ["g/0.1", "g/1"]
    assert [(e.id, e.seed) for e in group.replaced] == [("g/0", 0)]
    assert group.episodes[0].seed == 0
    assert group.rewards == (1.0, 2.0)


@pytest.mark.parametrize("settings", [{"mode": "ignore"}, {"min_valid": 0}, {"tries": 0}])
def test_a_policy_that_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        FaultPolicy(**settings)


def test_a_timeout_is_run_again_as_often_as_the_policy_says_and_not_at_all_where_it_is_measured() -> None:
    slow = [["timeout"] * TRIES, ["timeout", "scored", "scored"], ["scored"] * TRIES, ["scored"] * TRIES]
    rewards = [9.0, 1.0, 0.0, 1.0]
    policy = FaultPolicy(mode="refill", tries=TRIES)
    group = play(slow, rewards, policy)
    assert [episode.outcome for episode in group.replaced] == [Outcome.TIMEOUT] * 3
    assert group.rewards == (1.0, 0.0, 1.0) and policy.keeps(group)  # and no zero for the one that stays

    measured = play(slow, rewards, replace(policy, refills_timeouts=False))
    assert not measured.replaced and [e.outcome for e in measured.episodes].count(Outcome.TIMEOUT) == 2
