"""Training from Python: what `train` takes and refuses, callbacks, and how a run is stopped."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envs.math import Math
from forge_env import EnvFactory, Task, UserError, make, register
from trainers import Callback, TrainingRun, api, train, train_async
from trainers.algorithm import Algorithm
from trainers.grpo import GRPO, Config
from trainers.run.checkpointing import until_stopped


class Held(Math):
    lock = threading.Lock()


Held.__qualname__ = "Held.elsewhere"  # as a class of a notebook, which no module has


class Needs(Math):
    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0, needed: int) -> Sequence[Task]:  # type: ignore[override]
        return super().tasks(split, count=count, seed=seed)


class Fails(Callback):
    error: BaseException = ZeroDivisionError("no such\nfigure")

    def on_step(self, record: Mapping[str, Any]) -> None:
        raise self.error


def callback(**methods: Any) -> Callback:
    return type("Own", (Callback,), {name: staticmethod(method) for name, method in methods.items()})()


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The plans of runs that are not executed."""
    plans: list[Any] = []

    async def execute(plan: Any, run: TrainingRun) -> None:
        plans.append(plan)

    monkeypatch.setattr(api, "execute", execute)
    monkeypatch.chdir(tmp_path)
    return plans


def test_settings_are_those_of_the_command(plans: list[Any], tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("grpo: {n_samples: 6, clip_high: 0.3}\ntraining: {steps: 9}\n")
    settings = {"grpo": {"n_samples": 4}, "training.batch_size": 8, "env.options": {"format": "boxed"}}
    train(make("math", level=2), steps=3, seed=0, config=tmp_path / "run.yaml", settings=settings)
    nothing: dict[str, Any] = dict.fromkeys(("model", "steps", "config", "callbacks"))
    asyncio.run(train_async(Math, GRPO, **nothing, settings={"metrics.sinks": [], "env.options.level": 2}))
    config = plans[0].config
    assert (config.grpo.n_samples, config.grpo.clip_high, config.training.batch_size) == (4, 0.3, 8)
    assert (config.training.steps, config.training.seed) == (3, 0)
    assert (config.env.name, config.env.options) == ("math", {"level": 2, "format": "boxed"})
    assert (plans[1].config.env.name, plans[1].config.env.options) == ("envs.math.env:Math", {"level": 2})
    assert [path.name for path in (tmp_path / "outputs").iterdir()] == []  # nothing has run in them


def test_a_cell_of_a_notebook_may_train(plans: list[Any]) -> None:
    """Where an event loop runs already."""

    async def cell() -> None:
        train("math", steps=5)

    asyncio.run(cell())
    assert [plan.steps for plan in plans] == [5]


def test_a_class_is_an_environment_like_a_name(plans: list[Any], tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("output: ~/from_file\nenv: {options: {level: 3}}\n")
    register("of_this_process", Math)

    class Local(Math):
        pass

    train(Local, settings={"env.options.level": 2, "output": "from_settings"})
    train(Local, config=tmp_path / "run.yaml")
    train(
        Needs, settings={"env.options": {"needed": 5}}, output="run", **dict.fromkeys(("model", "config", "callbacks"))
    )
    train("of_this_process", output="run")
    assert [(plan.config.env.name, plan.config.env.options, plan.config.output) for plan in plans] == [
        (f"{tmp_path}/from_settings/environment.pkl:Local", {"level": 2}, "from_settings"),
        (f"{Path.home()}/from_file/environment.pkl:Local", {"level": 3}, f"{Path.home()}/from_file"),
        (f"{__name__}:Needs", {"needed": 5}, "run"),
        ("envs.math.env:Math", {}, "run"),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"settings": {"training.batch_sise": 8}}, "did you mean --training.batch_size?"),
        ({"settings": {"training": {"batch_size": "many"}}}, "--training.batch_size is 'many'; it must be a whole"),
        ({"settings": {"training.batch_size": 0}}, "--training.batch_size is 0; it must be at least 1"),
        ({"settings": {"training.learning_rate": math.nan}}, "--training.learning_rate is nan; it must be a finite"),
        ({"settings": "steps=3"}, "settings is 'steps=3'; give a dict"),
        ({"settings": {"env.options.level": object()}}, "env.options.level is a object, which has no text of its own"),
        ({"settings": ["training.batch_size=8"]}, "settings is ['training.batch_size=8']; give a dict"),
        ({"steps": 3, "settings": {"training.steps": 4}}, "two values of one setting"),
        ({"settings": {"dry_run": True}}, "python -m trainers.grpo --dry-run"),
        ({"batch_size": 8}, "train has no argument 'batch_size'"),
        ({"env": "code_exce"}, "Did you mean code_exec?"),
        ({"env": Held}, "the class Held cannot reach another process"),
        ({"env": Math()}, "is no class of an environment"),
        ({"env": EnvFactory(Math, level=2), "settings": {"env.options.level": 3}}, "two values of one setting"),
        ({"algorithm": "ppo"}, "Did you mean grpo?"),
        ({"algorithm": Algorithm(name="mine", config=Config)}, "'mine' cannot reach the trainer's process"),
        ({"algorithm": Config}, "give its name, cispo, dapo"),
        ({"callbacks": Fails()}, "give a list"),
        ({"callbacks": [Callback]}, "neither on_step(record) nor on_evaluation(record)"),
        ({"callbacks": [print]}, "neither on_step(record) nor on_evaluation(record)"),
        ({"env": Math, "settings": {"env.options.lvel": 3}}, "has no option 'lvel'. Did you mean level?"),
        ({"resume": True}, "give output=FOLDER too"),
        ({"callbacks": Fails()}, "give a list, as in callbacks=[Enough()]"),
        ({"callbacks": [callback(on_eval=lambda record: None)]}, "a method on_eval, which no run calls"),
        ({"callbacks": [callback(on_step=lambda: None)]}, "write def on_step(self, record)"),
        ({"callbacks": [callback(on_step=until_stopped)]}, "an async on_step, which nothing awaits"),
    ],
)
def test_a_mistake_is_one_sentence(plans: list[Any], tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        train(**{"env": "math", **arguments})
    assert words in str(error.value) and "\n" not in str(error.value)
    assert plans == [] and not list(tmp_path.rglob("*.*"))


def test_a_process_has_one_run_at_a_time(monkeypatch: pytest.MonkeyPatch, plans: list[Any]) -> None:
    async def execute(plan: Any, run: TrainingRun) -> None:
        await train_async("math")

    monkeypatch.setattr(api, "execute", execute)
    with pytest.raises(UserError, match="while a run is under way in this process"):
        train("math")


# ---- callbacks ----


@pytest.mark.parametrize("last", [3, 9])
async def test_a_stop_ends_the_run_after_its_step_with_a_checkpoint(last: int) -> None:
    class Enough(Callback):
        def on_step(self, record: Mapping[str, Any]) -> None:
            seen.append(record)
            if record["reward"] > 0.2:
                self.run.stop()

    seen: list[Mapping[str, Any]] = []
    caller = TrainingRun([Enough()])
    saved = await stopped(caller, last)
    assert [record["step"] for record in seen] == [1, 2, 3] and seen[0]["phase"] == "train"
    assert caller.stopped == (last > 3) and saved == ([3] if last > 3 else [])  # the last step ends the run anyhow


@pytest.mark.parametrize(
    ("error", "words"),
    [(Fails.error, "ZeroDivisionError: no such figure ("), (asyncio.CancelledError("gone"), "CancelledError: gone (")],
)
async def test_a_callback_that_raises_ends_the_run_with_a_checkpoint(error: BaseException, words: str) -> None:
    saved: list[int] = []
    callback = Fails()
    callback.error = error
    with pytest.raises(UserError) as caught:
        await stopped(TrainingRun([callback]), 9, saved)
    assert saved == [1]
    assert f"the callback Fails.on_step raised {words}" in str(caught.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(5)])
def test_an_exit_in_a_callback_ends_the_run_in_order(error: BaseException) -> None:
    saved: list[int] = []
    callback, code = Fails(), None
    callback.error = error
    caller = TrainingRun([callback])
    try:
        asyncio.run(stopped(caller, 9, saved))
    except SystemExit as end:
        code = end.code
    assert (saved, caller.stopped, code) == ([1], True, 5 if isinstance(error, SystemExit) else None)


@pytest.mark.parametrize("is_asked", [False, True])
async def test_a_cancellation_ends_the_run_after_its_step_with_a_checkpoint(is_asked: bool) -> None:
    saved: list[int] = []
    caller = TrainingRun()
    work = asyncio.ensure_future(stopped(caller, 9**9, saved))
    for _ in range(9):  # it takes steps
        await asyncio.sleep(0)
    if is_asked:
        caller.stop()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert caller.stopped and len(saved) == 1


async def stopped(caller: TrainingRun, last: int, saved: list[int] | None = None) -> list[int]:
    """A run of steps without any process; returns the steps of its checkpoints."""
    saved, done, is_stopped = [] if saved is None else saved, [0], asyncio.Event()

    async def training() -> None:
        while done[0] < last and not is_stopped.is_set():
            await asyncio.sleep(0)
            done[0] += 1
            caller.log("train", done[0], {"reward": done[0] / 10})

    async def save() -> None:
        saved.append(done[0])

    async def work() -> None:
        record: Any = SimpleNamespace(say=print, warn=print, folder=Path("nowhere"))
        deadlines = SimpleNamespace(checkpoint=60.0)
        config = SimpleNamespace(training=SimpleNamespace(step_seconds=60.0))
        plan = SimpleNamespace(steps=last, config=config, deadlines=deadlines)
        run: Any = SimpleNamespace(caller=caller, record=record, plan=plan)
        await until_stopped(run, training(), stop=is_stopped.set, steps=lambda: done[0], save=save)

    await caller.in_order(work(), print)
    return saved
