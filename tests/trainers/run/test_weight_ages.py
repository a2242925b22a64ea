"""Ages of weights in optimizer steps, whatever was published, skipped or resumed in between."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from forge_env.core.episode import Episode
from tests.trainers.episodes import episode, turn
from trainers.run.weight_sync import WeightAges


def sampled(*versions: int) -> Episode:
    return episode(*(turn(1, version=version) for version in versions))


def test_an_episode_is_as_old_as_its_oldest_token() -> None:
    ages = WeightAges(staleness=3)
    ages.note_version(7)
    ages.note_step(skipped=False)
    ages.note_step(skipped=False)
    ages.note_version(8)
    assert ages.of([sampled(8), sampled(7), sampled(7, 8)]) == [0, 2, 2]
    ages.note_step(skipped=False)
    assert ages.of([sampled(8), sampled(7)]) == [1, 3]
    ages.note_step(skipped=True)
    ages.note_version(9)
    assert ages.of([sampled(9), sampled(8), sampled(7)]) == [0, 1, 3]


def test_weights_published_again_after_a_skipped_step_are_as_fresh_as_before() -> None:
    ages = WeightAges(staleness=1)
    ages.note_version(0)
    ages.note_step(skipped=True)
    ages.note_version(1)
    assert ages.of([sampled(0), sampled(1)]) == [0, 0]


@given(data=st.data(), interval=st.integers(1, 5), more=st.integers(0, 5), steps=st.integers(1, 30))
def test_no_age_is_beyond_the_setting_and_each_is_counted_in_steps(
    data: st.DataObject, interval: int, more: int, steps: int
) -> None:
    """With a kill and a resume at any step, and some steps skipped."""
    staleness = interval - 1 + more
    ages, version = WeightAges(staleness=staleness), data.draw(st.integers(0, 3))
    taken: list[tuple[int, int]] = [(0, version)]  # steps done at the publication of each version
    changed = [0]  # updates after so many steps
    for step in range(steps):  # from version `step`
        ages.note_version(version)
        allowed = [(at, v) for at, v in taken if step - at <= staleness]
        at, chosen = data.draw(st.sampled_from(allowed))
        assert ages.of([sampled(chosen)]) == [changed[step] - changed[at]]
        assert ages.of([sampled(chosen)])[0] <= staleness
        skipped = data.draw(st.booleans())
        ages.note_step(skipped=skipped)
        changed.append(changed[-1] + (not skipped))
        if (step + 1) % interval == 0:
            version += 1
            taken.append((step + 1, version))
        if data.draw(st.integers(0, 5)) == 0:
            state = json.loads(json.dumps(ages.state_dict()))
            ages = WeightAges(staleness=staleness)
            ages.load_state_dict(state)
            if (step + 1) % interval:  # the resumed run publishes what it goes on from
                version += 1
                taken.append((step + 1, version))
