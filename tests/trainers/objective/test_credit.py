"""Credit by turn: which token gets which turn's advantage, and what the returns of a turn are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.episode import Episode
from forge_env.core.reward_value import ROUNDING
from tests.trainers.episodes import episode, group, numbered_episodes, turn
from trainers.batching.batch import Sample, pack
from trainers.objective.advantages import Advantages, centred, group_relative, no_baseline, relative_to_mean
from trainers.objective.credit import (
    by_step,
    by_turn,
    log_ratios,
    per_target,
    returns_to_go,
    target_logprobs,
    turn_advantages,
    turn_targets,
    turn_values,
)
from trainers.objective.objective import Objective
from trainers.objective.reward import TrainingReward


@given(st.lists(numbered_episodes(), min_size=1, max_size=3), st.sampled_from([0, 16]))
def test_every_sampled_target_gets_the_value_of_its_own_turn(episodes: list[Episode], pack_length: int) -> None:
    """On rows of any number and shape, in the layout that a loss sees."""
    samples = [
        Sample(rows=e.rows, advantage=per_target(range(1, len(e.turns) + 1), e), reference_logprobs=target_logprobs(e))
        for e in episodes
    ]
    targets = 0
    for batch in pack(samples, max_tokens=64, pack_length=pack_length, pad_id=0):
        assert batch.advantages.flatten()[batch.slots].tolist() == batch.targets.tolist()
        assert batch.reference_logprobs is not None  # target_logprobs are the generator's, place for place
        same = batch.reference_logprobs[batch.loss_mask] == batch.generator_logprobs[batch.loss_mask]
        assert same.all()
        targets += len(batch.targets)
    assert targets == sum(sum(turn_targets(e)) for e in episodes)


@given(numbered_episodes())
def test_values_of_targets_are_split_by_turn(one: Episode) -> None:
    parts = [part.tolist() for part in by_turn(per_target(range(len(one.turns)), one), one)]
    assert parts == [[number] * count for number, count in enumerate(turn_targets(one))]


def test_a_rows_first_token_is_no_target() -> None:
    one = episode(turn(5, 6, prompt=0), turn(7, prompt=2), turn(8, prompt=0, starts_row=True))
    assert turn_targets(one) == [1, 1, 0]
    assert per_target([0.5, 1.5, 2.5], one).tolist() == [0.5, 1.5]


@given(st.floats(-9, 9), st.lists(st.floats(-9, 9), min_size=1, max_size=6))
def test_returns_fall_by_the_rewards_of_earlier_turns(reward: float, steps: list[float]) -> None:
    returns = returns_to_go(reward, steps)
    assert returns[0] == reward
    for k in range(1, len(steps)):
        assert returns[k] == pytest.approx(returns[k - 1] - steps[k - 1], abs=1e-12)


@pytest.mark.parametrize(
    ("reward", "steps", "rest"),
    [
        (1.0, [0.25, 0.5], [0.75]),
        (0.5, [0.25, 0.25, 0.0], [0.25, 0.0]),
        (1e6 + 0.5 * ROUNDING * 1e6, [1e6, 0.0], [0.0]),  # rounding, of a reward of this size
        (1.5 * ROUNDING, [0.0, 0.0], [1.5 * ROUNDING]),
        (0.75 * ROUNDING, [0.0, 0.0], [0.0]),
        (-1.5 * ROUNDING, [0.0, 0.0], [-1.5 * ROUNDING]),
        (0.0, [5e5, -5e5, 0.5 * ROUNDING * 5e5], [-5e5, 0.5 * ROUNDING * 5e5]),
        (2.0, [], []),
    ],
)
def test_the_returns_worked_by_hand(reward: float, steps: list[float], rest: list[float]) -> None:
    assert returns_to_go(reward, steps) == pytest.approx([reward, *rest][: len(steps)], abs=ROUNDING / 9, rel=1e-12)


def test_values_of_steps_and_of_turns() -> None:
    """A summary is of the step after it; a turn beside the work has no value; a mean of equal values is that value."""
    turns = [
        turn(1, 1, 1),
        replace(turn(2), is_summary=True),
        turn(3, 3, starts_row=True),
        turn(9, prompt=0, starts_row=True),
        turn(4),
    ]
    one = episode(*turns)
    assert by_step([1.0, 2.0, 4.0, 8.0, 16.0], one) == [1.0, 6.0, 8.0, 16.0]
    assert per_target([1.0, 2.0, 3.0, 4.0], one).tolist() == [1.0] * 3 + [2.0] * 3 + [4.0]
    values = np.array([0.1, 0.1, 0.1, 5.0, 2.0, 4.0, -1.0])
    assert turn_values(values, one) == [0.1, 5.0, 3.0, 0.0, -1.0]
    assert turn_values(3, one) == [3.0] * 5
    beside = replace(
        one, turns=(one.turns[0], replace(one.turns[4], auxiliary="title", starts_row=True), *one.turns[2:])
    )
    assert turn_values(0.5, beside) == [0.5, 0.0, 0.5, 0.5, 0.5]


def test_log_ratios_are_bounded_and_0_where_one_is_missing() -> None:
    one = episode(turn(1, 2, 3, 4, 5, logprobs=(-1.0, -90.0, -1.0, math.nan, -1.0)))
    assert log_ratios(one, np.array([-1.5, -1.0, -90.0, -1.0, -math.inf])).tolist() == [0.5, -20.0, 20.0, 0.0, 0.0]


# ---- through the objective ----


def credited(advantages: Advantages, *episodes: Episode, **parts: object) -> list[list[float]]:
    made = Objective(loss=lambda logprobs: logprobs, advantages=advantages, group_size=2, credit="turn", **parts)  # type: ignore[arg-type]
    return [sample.advantage.tolist() for sample in made.samples([group(*episodes)])]  # type: ignore[union-attr]


def test_worked_by_hand() -> None:
    """Two turns against three: step rewards 1, 0 and a score of 1; step rewards 0, 0, 2 and no score."""
    long = episode(turn(1, 1), turn(2, reward=0.0), turn(3, reward=2.0), reward=2.0)
    short = episode(turn(1, reward=1.0), turn(2, 2), reward=2.0)
    # Returns: short 2, 1; long 2, 2, 2. Both first turns are worth the same; the third has no sibling.
    assert credited(centred, short, long) == [[0.0, -0.5, -0.5], [0.0, 0.0, 0.5, 0.0]]
    # Without a baseline there is nothing to compare with, and nothing is left out.
    assert credited(no_baseline, short, long, needs_siblings=False) == [[2.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]]


def test_a_function_of_the_users_own_sees_the_returns_of_each_turn() -> None:
    seen: list[list[float]] = []

    def own(returns: object) -> list[float]:
        seen.append(list(returns))  # type: ignore[call-overload]
        return [1.0] * len(seen[-1])

    three = [episode(turn(1, reward=r), *[turn(2)] * more, reward=3.0) for r, more in ((0.0, 0), (1.0, 1), (2.0, 2))]
    assert credited(own, *three) == [[1.0], [1.0, 1.0], [1.0, 1.0, 0.0]]
    assert seen == [[3.0, 3.0, 3.0], [2.0, 1.0]]


@pytest.mark.parametrize("own", [None, lambda e: 10 * e.reward])
def test_step_rewards_are_subtracted_from_the_environments_reward_only(own: Callable[[Episode], float] | None) -> None:
    """A reward of the user's own takes the place of all of it: no turn before has earned a part."""
    two = [episode(turn(1, reward=1.0), turn(2), reward=r) for r in (1.0, 3.0)]
    reward = TrainingReward(user_reward=own, addition=lambda e: 0.5)
    found = credited(no_baseline, *two, reward=reward, needs_siblings=False)
    assert found == ([[10.5, 10.5], [30.5, 30.5]] if own else [[1.5, 0.5], [3.5, 2.5]])


def test_what_rounding_leaves_of_a_reward_is_no_return() -> None:
    rewards = [0.1, 0.7, 0.0]
    three = episode(*(turn(1, reward=reward) for reward in rewards), reward=math.fsum([0.1, 0.7]))
    assert credited(relative_to_mean, three, three) == [[0.0] * 3] * 2
    many = [
        episode(turn(1, reward=first), turn(2, reward=0.1), reward=first + 0.1) for first in (1e6, 2e6)
    ]  # of the last turn both have earned 0.1, whatever came before
    assert [of_turns[1] for of_turns in credited(group_relative, *many)] == [0.0, 0.0]


@given(
    st.lists(
        st.tuples(st.integers(-200, 200).map(lambda n: n / 100), st.lists(st.integers(1, 3), min_size=3, max_size=3)),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([centred, group_relative]),
    st.booleans(),
)
def test_with_one_reward_at_the_end_and_equally_many_turns_it_is_credit_per_episode(
    siblings: list[tuple[float, list[int]]], advantages: Advantages, is_step_reward: bool
) -> None:
    """Whether the environment gave it as its last step reward, or as a score."""
    episodes = [
        episode(
            *(turn(*[7] * count, reward=reward * (is_step_reward and k == 2)) for k, count in enumerate(counts)),
            reward=reward,
        )
        for reward, counts in siblings
    ]
    parts = {
        "loss": lambda logprobs: logprobs,
        "advantages": advantages,
        "group_size": 2,
        "scale": lambda r: 2 + abs(sum(r)),
    }
    whole = Objective(**parts).samples([group(*episodes)])  # type: ignore[arg-type]
    by_turns = Objective(**parts, credit="turn").samples([group(*episodes)])  # type: ignore[arg-type]
    for one, other, own in zip(whole, by_turns, episodes, strict=True):
        assert other.advantage.tolist() == [one.advantage] * sum(turn_targets(own))  # type: ignore[union-attr]


def test_returns_of_each_turn_are_centred_among_those_who_took_it() -> None:
    found = turn_advantages([[1.0, 2.0], [3.0], [2.0, 6.0]], centred)
    assert found == [[-1.0, -2.0], [1.0], [0.0, 2.0]]
    assert math.fsum(value for values in found for value in values) == 0.0
    alone = [[5.0, 7.0], [3.0]]
    assert turn_advantages(alone, no_baseline) == [[5.0, 0.0], [3.0]] and turn_advantages([], centred) == []
    assert turn_advantages(alone, no_baseline, needs_siblings=False) == alone


@given(
    st.lists(st.tuples(numbered_episodes(), st.lists(st.booleans(), min_size=5, max_size=5)), min_size=1, max_size=4)
)
def test_a_summary_has_the_credit_of_the_step_after_it(drawn: list[tuple[Episode, list[bool]]]) -> None:
    """Against a slow reference: the returns of each step, compared among the siblings that came so far."""
    episodes = []
    for one, marks in drawn:
        marked = zip(one.turns, marks, strict=False)
        turns = [replace(t, is_summary=True, reward=0.0) if mark and n else t for n, (t, mark) in enumerate(marked)]
        episodes.append(replace(one, turns=tuple(turns), id=str(len(episodes))))

    def step_of(one: Episode, number: int) -> int:
        return sum(not turn.is_summary for turn in one.turns[:number])

    def return_of(one: Episode, step: int) -> float:
        assert one.reward is not None
        return one.reward - math.fsum(t.reward for n, t in enumerate(one.turns) if step_of(one, n) < step)

    samples = Objective(
        loss=lambda logprobs: logprobs,  # type: ignore[arg-type,return-value]
        advantages=no_baseline,
        group_size=1,
        needs_siblings=False,
        credit="turn",
    ).samples([group(*episodes)])
    for sample, one in zip(samples, episodes, strict=True):
        found = [part.tolist() for part in by_turn(sample.advantage, one)]  # type: ignore[arg-type]
        for number, (values, count) in enumerate(zip(found, turn_targets(one), strict=True)):
            assert values == pytest.approx([return_of(one, step_of(one, number))] * count, abs=1e-9)


def test_a_summary_is_compared_with_the_siblings_next_steps() -> None:
    """The first one's summary is its second turn; the sibling took its second step then."""
    one = episode(turn(1), replace(turn(2), is_summary=True), turn(3, starts_row=True, reward=2.0), reward=2.0)
    two = episode(turn(1, reward=1.0), turn(2, reward=4.0), reward=5.0)
    assert credited(centred, one, two) == [[-1.5, -1.0, -1.0], [1.5, 1.0]]
