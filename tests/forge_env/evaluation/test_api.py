"""`forge_env.evaluate`: an evaluation from Python, and tasks by their ids."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forge_env
from agents.scripted import ScriptedAgent
from envs.math import Math
from forge_env import EnvFactory, Task, ToolEnv, UserError, evaluate, evaluate_async, reward
from forge_env.core.types import Message
from forge_env.evaluation.api import EvalResult
from forge_env.evaluation.plan import limits_of


class Sums(ToolEnv):
    """Add one to a number."""

    def __init__(self, more: int = 1, lock: Any = None) -> None:
        super().__init__()

    @classmethod
    def tasks(cls, split: str = "train", *, count: int, seed: int = 0, more: int = 1) -> list[Task]:
        numbers = range(seed, seed + min(count, 500))
        return [Task(prompt=({"role": "user", "content": str(n)},), target=str(n + more)) for n in numbers]

    @reward
    def right(self, answer: str) -> float:
        return float(answer == self.task.target)


def add_one(messages: Sequence[Message]) -> Message:
    return {"role": "assistant", "content": str(int(messages[-1]["content"]) + 1)}


def measured(env: Any = Sums, agent: Any = add_one, **settings: Any) -> EvalResult:
    return evaluate(env, agent, **{"tasks": 3, "progress": False, **settings})


def test_an_evaluation_has_figures_and_episodes() -> None:
    result = measured(samples=2)
    assert (result.success, result.reward, result.interval[1], len(result.episodes)) == (1.0, 1.0, 1.0, 6)
    assert 0 < result.interval[0] < 1 and result.faults == ()
    assert result.figures["n"] == 2 and result.figures["env"] == f"{__name__}:Sums"
    assert repr(result).startswith(f"scripted:{__name__}:add_one in {__name__}:Sums: success 1.000 [")
    assert repr(result).endswith("mean reward 1.000, 6 episodes of 3 tasks")
    (difference, _) = result.compare(measured(agent=lambda messages: {"role": "assistant", "content": ""}))
    assert (difference.paired.difference.value, difference.paired.wins) == (1.0, 3)
    assert repr(difference).startswith("success: 0.000 to 1.000, difference +1.000 [")
    assert repr(difference).endswith("], 3 tasks better, 0 worse, 0 the same, p = 0.2500")
    faulty = repr(measured(agent=lambda: None))
    assert "0 episodes of 3 tasks, 3 faults (PolicyError: " in faulty and "takes 0 positional arguments" in faulty
    with pytest.raises(UserError, match="compare takes another result of evaluate, or its folder; this is 0.5"):
        result.compare(0.5)  # type: ignore[arg-type]


async def test_a_running_event_loop_is_no_obstacle() -> None:
    """As in a notebook."""
    assert measured().success == 1.0


def test_a_temporary_folder_goes_with_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = measured()
    assert result.folder.parent == tmp_path and len(result.episodes) == 3
    other = copy.copy(measured())
    del result
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="is gone: give evaluate a folder"):
        _ = other.episodes
    with pytest.raises(UserError):
        measured(agent="vllm:nowhere")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_the_one_of_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from forge_env.cli.main import main

    of_numpy = {"options": {"level": np.int64(2)}, "tasks": np.int64(3)}
    result = measured("math", "scripted:expert", **of_numpy, out=tmp_path / "out")
    command = ["eval", "--env", "math", "--option", "level=2", "--agent", "scripted:expert"]
    assert main([*command, "--tasks", "5", "--out", str(tmp_path / "out"), "--json"]) == 0
    again = json.loads(capfd.readouterr().out)
    assert (result.figures["episodes_run"], again["episodes_run"], again["episodes_read"]) == (3, 2, 3)
    factory = forge_env.make("math", level=2)
    assert measured(factory, "scripted:expert", tasks=5, out=tmp_path / "out").figures["episodes_run"] == 0
    with pytest.raises(UserError, match="holds results of other settings"):
        measured(EnvFactory(Math, level=3), "scripted:expert", tasks=5, out=tmp_path / "out")


def test_code_that_no_process_can_import_is_measured_and_its_change_is_noticed(tmp_path: Path) -> None:
    def environment(target: str) -> type[ToolEnv]:
        class Own(Sums):
            @staticmethod
            def expert(messages: Sequence[Message]) -> Message:
                return {"role": "assistant", "content": target}

            @reward
            def right(self, answer: str) -> float:
                return float(answer == "yes")

        return Own

    out = tmp_path / "out"
    assert measured(environment("yes"), "scripted:expert", out=out).success == 1.0
    assert measured(environment("yes"), "scripted:expert", out=out).figures["episodes_run"] == 0
    with pytest.raises(UserError, match="other settings"):
        measured(environment("yes"), lambda messages: add_one(messages), out=out)

    def one(messages: Sequence[Message]) -> Message:
        return add_one(messages)

    first, out = one, tmp_path / "other"
    assert measured(agent=first, out=out).success == 1.0

    def one(messages: Sequence[Message]) -> Message:  # type: ignore[no-redef]
        return {**add_one(messages)}

    with pytest.raises(UserError, match=r"a change of the agent \(.*one\)"):
        measured(agent=one, out=out)


def test_what_an_agent_holds_is_not_compared_and_that_is_said(tmp_path: Path) -> None:
    def add(messages: Sequence[Message], more: int) -> Message:
        return {"role": "assistant", "content": str(int(messages[-1]["content"]) + more)}

    out = tmp_path / "out"
    first = measured(agent=functools.partial(add, more=1), out=out)
    assert first.figures["agent"].endswith("<locals>.add")
    with pytest.warns(UserWarning, match="3 episodes of the same code were read from .* what an Agent holds"):
        assert measured(agent=functools.partial(add, more=2), out=out).success == 1.0
    with pytest.raises(UserError, match="other settings"):
        measured(agent=functools.partial(add_one), out=out)


def test_a_lambda_is_its_own_text_and_not_that_of_its_call(tmp_path: Path) -> None:
    out = tmp_path / "out"
    measured(agent=lambda messages: add_one(messages), tasks=2, out=out)
    more = measured(agent=lambda messages: add_one(messages), tasks=3, out=out)
    assert more.figures["episodes_run"] == 1
    with pytest.raises(UserError, match=r"a change of the agent \(.*<lambda>\)"):
        measured(agent=lambda messages: {**add_one(messages)}, tasks=3, out=out)


class Untold(Sums):
    right = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"agent": len}, "there is no result: all 3 episodes ended by a fault, the first one by PolicyError"),
        ({"tasks": 600}, "600 tasks were requested, and"),
        ({"env": Untold}, "nothing was scored"),
    ],
)
def test_what_a_command_says_of_a_result_python_warns_of_each_time(changes: dict[str, Any], words: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            measured(**changes)
    assert sum(str(warning.message).startswith(words) for warning in caught) == 2


def test_a_class_of_a_notebook_has_the_limits_of_its_training(tmp_path: Path) -> None:
    class Limited(Sums):
        @classmethod
        def limits(cls) -> dict[str, int]:
            return {"max_turns": 7}

    run = tmp_path / "run"
    run.mkdir()
    factory = EnvFactory(Limited, name=f"{__name__}:Limited")
    for name, turns in ((f"{run}/environment.pkl:Limited", 3), (f"{run}/environment.pkl:Other", 7), ("math", 7)):
        (run / "config.yaml").write_text(json.dumps({"env": {"name": name, "max_turns": 3}}))  # JSON is YAML
        assert limits_of(f"checkpoint:{run}", factory).max_turns == turns


def test_an_agent_may_be_an_object_and_an_environment_a_factory() -> None:
    lock = threading.Lock()  # no process can copy it
    result = measured(EnvFactory(Sums, more=2, lock=lock), ScriptedAgent(add_one))
    assert result.success == 0.0 and result.figures["options"] == {"more": 2, "lock": lock}
    assert result.figures["agent"] == "scripted:agents.scripted:ScriptedAgent"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tempature": 1}, "an evaluation has no setting 'tempature'. Did you mean temperature?"),
        ({"max_turn": 1}, "Did you mean max_turns?"),
        ({"tasks": "many"}, "tasks is 'many'; it must be a whole number"),
        ({"max_turns": 0}, "max_turns is 0"),
        ({"env": Math()}, "give a name, a target such as 'file.py:MyEnv', a class or an EnvFactory"),
        ({"env": int}, "'builtins:int' is not an environment: <class 'int'> is no subclass of forge_env.Env"),
        ({"agent": ScriptedAgent}, "an object with the method act"),
        ({"agent": 3}, "the agent is 3"),
        ({"agent": ScriptedAgent(add_one), "answer_seconds": 3}, "answer_seconds is 3, and an Agent that is given has"),
        ({"options": {"mor": 1}}, "has no option 'mor'. Did you mean more?"),
        ({"agent": "scripted:expert"}, f"{__name__}:Sums has no expert"),
        ({"sinks": ["no_such"]}, "--sink no_such: there is no sink 'no_such'"),
    ],
)
def test_a_mistake_is_one_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as raised:
        measured(**changes)
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_tasks_are_picked_by_their_ids(tmp_path: Path) -> None:
    tasks = Sums.tasks(count=500)
    ids = [tasks[499].id, tasks[3].id]
    out = tmp_path / "out"
    result = measured(task_ids=ids, samples=2, tasks=None, out=out)
    assert sorted({episode.task.id for episode in result.episodes}) == sorted(ids) and len(result.episodes) == 4
    plan = json.loads((out / "plan.json").read_text())
    assert (plan["task_ids"], plan["tasks"]) == (sorted(ids), 2)
    again = measured(task_ids=[*reversed(ids), ids[0]], samples=2, tasks=None, out=out)
    assert again.figures["episodes_run"] == 0, "neither their order nor how often they are named is a setting"
    whole = measured(tasks=5, samples=2)
    seeds = [{e.id: e.seed for e in run.episodes if e.task.id == ids[1]} for run in (result, whole)]
    assert seeds[0] == seeds[1], "an episode is the one of the whole evaluation"


def test_other_ids_are_another_evaluation(tmp_path: Path) -> None:
    first, second = (task.id for task in Sums.tasks(count=2))
    measured(task_ids=[first, second], tasks=None, out=tmp_path / "out")
    for settings in ({"task_ids": [first], "tasks": None}, {"tasks": 1}, {"tasks": 4}):
        with pytest.raises(UserError, match="holds results of other settings"):
            measured(**settings, out=tmp_path / "out")
    measured(tasks=1, out=tmp_path / "plain")
    assert "task_ids" not in json.loads((tmp_path / "plain" / "plan.json").read_text())
    with pytest.raises(UserError, match="other settings"):
        measured(task_ids=[first, second], tasks=None, out=tmp_path / "plain")


def test_an_unknown_id_is_one_sentence_with_the_nearest() -> None:
    known = Sums.tasks(count=500)[250].id
    with pytest.raises(UserError) as raised:
        measured(task_ids=[known[:9], "other"], tasks=None)
    words = f"no task of the id {known[:9]!r} nor of 1 others among the first 500 of the split 'test' of"
    assert words in str(raised.value) and str(raised.value).endswith(f"the nearest one is {known!r}")
    with pytest.raises(UserError, match="among the first 7 of"):
        measured(task_ids=[known], tasks=7)


def test_a_cancelled_coroutine_leaves_no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def cancelled() -> None:
        begun = asyncio.Event()

        async def wait(messages: Sequence[Message]) -> Message:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

        task = asyncio.create_task(evaluate_async(Sums, wait, tasks=1, progress=False))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert list(tmp_path.iterdir()) == []
