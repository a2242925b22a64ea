"""WeightSync: the versions of one update after the other, with plain classes in place of actors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.generator.policy import Scored
from forge_env.core.episode import Episode
from forge_env.core.errors import ServiceError
from tests.helpers.waiting import until
from tests.trainers.episodes import episode, turn
from trainers.metrics.observer import Spans
from trainers.metrics.startup import Startup
from trainers.run.delivery import Delivery
from trainers.run.weight_sync import WeightAges, WeightSync


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed pull is told at once: there is no process whose death could explain it."""
    monkeypatch.setattr("forge_env.runtime.calls.answers.GRACE_S", 0.0)


def answer(steps: float) -> tuple[float, ...]:
    """What weights say to the fixed prompt that have taken so many steps."""
    return tuple(-5.0 - 0.1 * steps - place for place in range(15))


class Trainer:
    """Writes down what was asked of it: ("take", 0), ("commit",). A version is a step further than the one before."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.steps = 0

    def deadline(self, seconds: float, what: str) -> Trainer:
        return self

    async def call_one(self, endpoint: Any, *arguments: Any, of_folder: bool = False) -> Any:
        if endpoint.name == "score":
            return np.array(answer(0.0 if of_folder else self.steps))
        self.asked.append((endpoint.name, *arguments))
        if endpoint.name == "take":
            self.steps = arguments[0] + 1
        return 0.5


class Engines:
    """Two engines that take every version over, and sleep when they are told to; `deaf` ones keep what they have."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.asked: list[str] = []
        self.steps = {"generator_0": 0, "generator_1": 0}
        self.deaf: set[str] = set()

    def deadline(self, seconds: float) -> Engines:
        return self

    async def fanout(self, endpoint: Any, argument: Any = None, seconds: float = 0.0) -> list[Any]:
        if endpoint.name == "score":
            return [Scored(name, answer(steps)) for name, steps in self.steps.items()]
        self.asked.append(endpoint.name)
        if endpoint.name != "pull":
            return []
        self.versions.append(argument)
        self.steps |= {name: argument + 1 for name in self.steps if name not in self.deaf}
        return [{"fetch": 1.0, "swap": 0.25, "wake": 0.0}, {"fetch": 0.5, "swap": 2.0, "wake": 0.75}]


class NewEngine:
    """An engine that has just started; a `deaf` one scores as it did then, whatever it pulls."""

    def __init__(
        self, pull: Callable[[int], Awaitable[None]], name: str = "generator_1", *, deaf: bool = False
    ) -> None:
        self._pull, self._name, self._deaf = pull, name, deaf
        self._steps = 0
        self.asked: list[tuple[str, int]] = []
        self.dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def call_one(self, endpoint: Any, argument: Any = -1, seconds: float = 0.0) -> Any:
        if endpoint.name == "score":
            return Scored(self._name, answer(self._steps))
        self.asked.append((endpoint.name, argument))
        if endpoint.name == "pull":
            await self._pull(argument)
            self._steps = 0 if self._deaf else argument + 1


def made(*, sleeps: bool = False) -> tuple[WeightSync, Trainer, Engines]:
    ready: asyncio.Task[None] = asyncio.create_task(asyncio.sleep(0))
    trainer, engines = Trainer(), Engines()
    weights = WeightSync(
        trainer=trainer,  # type: ignore[arg-type]
        engines=engines,  # type: ignore[arg-type]
        engine_ready=ready,
        seconds=20.0,
        record=SimpleNamespace(phase=Startup().phase, span=Spans().span),  # type: ignore[arg-type]
        ages=WeightAges(staleness=2),
        delivery=Delivery(),
        sleeps=sleeps,
    )
    return weights, trainer, engines


async def test_the_life_of_an_update() -> None:
    weights, trainer, engines = made()
    assert (weights.newest, weights.in_store, weights.in_engines, weights.of_trainer) == (-1, -1, -1, 0)
    assert await weights.publish(0) == {"seconds/publish": 0.5}
    assert (weights.newest, weights.in_store, weights.in_engines, weights.of_trainer) == (0, -1, -1, 0)
    assert not weights.is_synced
    weights.mark_ahead()  # the first step of the next window
    assert await weights.pull() == {"seconds/commit": 0.5, "seconds/fetch": 1.0, "seconds/swap": 2.0}
    assert (weights.in_store, weights.in_engines, weights.engine_steps, weights.of_trainer) == (0, 0, 0, 1)
    await weights.publish(2)
    await weights.pull()
    assert (weights.in_engines, weights.engine_steps, weights.is_synced) == (1, 2, True)
    assert trainer.asked == [("take", 0), ("commit",), ("take", 1), ("commit",)] and engines.versions == [0, 1]


async def test_weights_that_the_engines_have_are_not_published_again() -> None:
    weights, trainer, _ = made()
    await weights.sync(steps=0)
    asked = len(trainer.asked)
    assert await weights.sync(steps=0) == {} and len(trainer.asked) == asked
    weights.mark_ahead()
    assert await weights.sync(steps=1) != {} and weights.engine_steps == 1


async def test_a_run_that_goes_on_has_the_version_of_its_checkpoint() -> None:
    weights, _, engines = made()
    weights.restore(7)
    assert weights.of_trainer == 7 and not weights.is_synced
    await weights.sync(steps=12)
    assert (engines.versions, weights.engine_steps, weights.of_trainer) == ([7], 12, 7)


async def test_a_new_engine_is_given_the_newest_version() -> None:
    weights, *_ = made()
    pulled: list[int] = []

    async def pull(version: int) -> None:
        pulled.append(version)
        if len(pulled) == 1:
            await weights.sync(steps=1)  # published while the new engine takes the one before it over
            raise ServiceError("version 0 is gone")

    await weights.sync(steps=0)
    weights.mark_ahead()
    await weights.catch_up(NewEngine(pull))  # type: ignore[arg-type]
    assert pulled == [0, 1]


async def test_a_new_engine_waits_if_the_store_has_dropped_its_version() -> None:
    weights, trainer, _ = made()
    pulled: list[int] = []

    async def pull(version: int) -> None:
        pulled.append(version)
        if ("commit",) not in trainer.asked[2:]:
            raise ServiceError("the weight store has no version 0; it has none")

    await weights.sync(steps=0)
    weights.mark_ahead()
    await weights.publish(1)
    catching_up = asyncio.create_task(weights.catch_up(NewEngine(pull)))  # type: ignore[arg-type]
    await until(lambda: pulled == [0], "the engine has asked for the version that the others have")
    assert not catching_up.done()
    await weights.pull()
    await catching_up
    assert pulled == [0, 1]


async def test_an_engine_that_cannot_take_the_newest_version_over_is_an_error() -> None:
    weights, *_ = made()

    async def pull(version: int) -> None:
        raise ServiceError("no room")

    await weights.sync(steps=0)
    with pytest.raises(ServiceError, match="no room"):
        await weights.catch_up(NewEngine(pull))  # type: ignore[arg-type]


async def test_staleness_is_counted_from_what_is_published() -> None:
    weights, *_ = made()
    await weights.sync(steps=0)
    assert weights.ages_of([episode(turn(1, version=0))]) == [0]
    weights.mark_ahead()
    weights.ages.note_step(skipped=False)
    await weights.sync(steps=1)
    assert weights.ages_of([episode(turn(1, version=0)), episode(turn(1, version=1))]) == [1, 0]


async def test_engines_sleep_before_the_trainer_works_and_wake_by_its_weights() -> None:
    weights, trainer, engines = made(sleeps=True)
    await weights.sync(steps=0)
    for _ in range(2):  # two calls of the trainer in one step
        await weights.make_room()
    assert weights.are_asleep
    weights.mark_ahead()
    seconds = await weights.sync(steps=1)
    assert not weights.are_asleep
    assert seconds["seconds/wake"] == 0.75 and {"seconds/sleep", "seconds/release"} < seconds.keys()
    assert engines.asked == ["sleep", "pull", "sleep", "pull"], "before the first weights are published, too"
    update = ["commit", "release_memory"]  # of the trainer, before the engines take its place
    assert [name for name, *_ in trainer.asked] == ["take", *update, "take", *update]


async def test_engines_that_sleep_without_new_weights_wake_by_those_they_had() -> None:
    weights, _, engines = made(sleeps=True)
    await weights.sync(steps=0)
    await weights.make_room()
    assert await weights.sync(steps=0) != {}
    assert (engines.versions, weights.are_asleep, weights.newest) == ([0, 0], False, 0)
    assert await weights.sync(steps=0) == {}, "they are awake and have the newest"


async def test_engines_that_do_not_sleep_are_left_alone() -> None:
    weights, trainer, engines = made()
    await weights.make_room()
    await weights.sync(steps=0)
    assert engines.asked == ["pull"] and ("release_memory",) not in trainer.asked and not weights.are_asleep


async def test_a_new_engine_goes_to_sleep_if_the_others_sleep() -> None:
    weights, *_ = made(sleeps=True)

    async def pull(version: int) -> None:
        if version == 1:
            return
        await weights.sync(steps=1)  # the others wake while the new engine takes over what they had

    await weights.make_room()
    early = NewEngine(pull)
    await weights.catch_up(early)  # type: ignore[arg-type]
    assert early.asked == [("sleep", -1)], "there are no weights yet"
    await weights.sync(steps=0)
    await weights.make_room()
    weights.mark_ahead()
    late = NewEngine(pull)
    await weights.catch_up(late)  # type: ignore[arg-type]
    assert late.asked == [("pull", 0), ("sleep", -1), ("pull", 1)]


async def begun(*, deaf: str = "") -> tuple[WeightSync, Trainer, Engines]:
    """Two engines that have started, of which one may not take updates over."""
    weights, trainer, engines = made()
    engines.deaf = {deaf} if deaf else set()
    for name in engines.steps:
        await weights.catch_up(NewEngine(silent, name))  # type: ignore[arg-type]
    await weights.begin()
    return weights, trainer, engines


async def updates(weights: WeightSync, steps: Iterable[int]) -> list[dict[str, float]]:
    """An update before each of these steps."""
    found = []
    for step in steps:
        found.append(await weights.sync(step))
        weights.mark_ahead()
    return found


async def silent(version: int) -> None:
    """A pull that nothing comes of but the weights."""


async def test_updates_that_arrive_are_proved_with_each_of_them() -> None:
    weights, *_ = await begun()
    for proof in await updates(weights, range(4)):
        assert (proof["delivery/difference"], proof["delivery/missing"]) == pytest.approx((0.0, 0.0), abs=1e-9)
        assert proof["seconds/proof"] > 0


async def test_one_engine_of_two_without_the_updates_ends_the_run_at_the_second() -> None:
    weights, *_ = await begun(deaf="generator_1")
    assert (await weights.sync(0))["delivery/missing"] == pytest.approx(1.0)
    weights.mark_ahead()
    with pytest.raises(
        ServiceError, match=r"the engine generator_1 does not generate .* after 2 updates in a row: at"
    ) as e:
        await weights.sync(1)
    assert "have moved by 0.2 since the start, the engine's by 0, and 0.2 is between" in str(e.value)
    assert "answers as the model of the start" in str(e.value) and "logs/generator_1.log" in str(e.value)


async def test_an_update_that_an_engine_pulls_twice_counts_once() -> None:
    """When it starts and with the others, or when it wakes without new weights."""
    weights, *_ = await begun(deaf="generator_0")
    await weights.sync(0)
    await weights.prove()
    weights.are_asleep = True
    assert (await weights.sync(0))["delivery/missing"] == pytest.approx(1.0)


async def test_an_engine_that_stops_taking_updates_over_is_found_at_the_second() -> None:
    weights, _, engines = await begun()
    await updates(weights, range(3))
    engines.deaf = {"generator_0"}
    await updates(weights, [3])
    with pytest.raises(ServiceError, match=r"generator_0 .*moved by 0\.2 since update 2.* it answers as before"):
        await weights.sync(4)


async def test_an_engine_that_replaced_another_is_checked_from_its_own_start_on() -> None:
    weights, _, engines = await begun()
    await updates(weights, range(3))
    await weights.catch_up(NewEngine(silent))  # type: ignore[arg-type]
    await updates(weights, [3])
    engines.deaf, engines.steps["generator_1"] = {"generator_1"}, 0
    await weights.catch_up(NewEngine(silent, deaf=True))  # type: ignore[arg-type]
    with pytest.raises(ServiceError, match=r"generator_1 .*moved by 0\.5 since the start, the engine's by 0,"):
        await weights.sync(4)  # the second time after that of its replacement


async def test_an_engine_that_is_too_busy_to_answer_is_judged_the_next_time() -> None:
    weights, _, engines = await begun()

    async def busy(endpoint: Any, *arguments: Any) -> list[Any]:
        found = await Engines.fanout(engines, endpoint, *arguments)
        return [Scored(each.engine, ()) for each in found] if endpoint.name == "score" else found

    engines.fanout = busy  # type: ignore[method-assign]
    assert "delivery/missing" not in await weights.sync(0)
    del engines.fanout  # type: ignore[method-assign]
    weights.mark_ahead()
    assert (await weights.sync(1))["delivery/missing"] == pytest.approx(0.0, abs=1e-9)


# ---- ages ----


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
