"""Episodes for the tests of what is made of them: a few turns, on one row or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from forge_env.core.episode import Episode, Group, Turn
from forge_env.core.types import Outcome, Task

TASK = Task(prompt=())


def turn(
    *token_ids: int,
    prompt: int = 1,
    starts_row: bool = False,
    reward: float = 0.0,
    logprobs: Sequence[float] = (),
    version: int = 0,
) -> Turn:
    """A sampled turn after `prompt` tokens that the environment added."""
    return Turn(
        kind="sampled",
        observation=(),
        message={"role": "assistant", "content": ""},
        prompt_ids=(0,) * prompt,
        token_ids=token_ids,
        logprobs=tuple(logprobs) or (-1.0,) * len(token_ids),
        versions=((version, len(token_ids)),),
        starts_row=starts_row,
        reward=reward,
    )


def episode(*turns: Turn, reward: float = 0.0, name: str = "e", outcome: Outcome = Outcome.SCORED) -> Episode:
    """A valid episode; its first turn starts a row."""
    first = replace(turns[0], starts_row=True)
    return Episode(task=TASK, turns=(first, *turns[1:]), outcome=outcome, reward=reward, id=name)


def group(*episodes: Episode) -> Group:
    return Group(task=TASK, episodes=tuple(replace(e, id=str(i)) for i, e in enumerate(episodes)), id="g")


def numbered_episodes(*, step_rewards: bool = True) -> st.SearchStrategy[Episode]:
    """Episodes of one to five turns on any number of rows, some of which start without a prompt; each sampled token is
    the number of its turn, from 1, and some generator logprobs are not finite."""
    logprob = st.one_of(st.floats(-9, 0), st.sampled_from([float("nan"), float("-inf")]))
    shape = st.tuples(
        st.integers(0, 2),
        st.lists(logprob, min_size=1, max_size=3),
        st.booleans(),
        st.floats(-2, 2) if step_rewards else st.just(0.0),
    )

    def build(shapes: list[tuple[int, list[float], bool, float]], reward: float) -> Episode:
        turns = [
            turn(*[number] * len(logprobs), prompt=prompt, logprobs=logprobs, starts_row=starts, reward=earned)
            for number, (prompt, logprobs, starts, earned) in enumerate(shapes, 1)
        ]
        return episode(*turns, reward=reward)

    return st.builds(build, st.lists(shape, min_size=1, max_size=5), st.floats(-2, 2))
