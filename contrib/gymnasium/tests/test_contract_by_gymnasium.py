"""What holds for an episode of a run holds for one that a program plays by Gymnasium's interface."""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import forge_env
from contrib.gymnasium.env import SyncEnv
from forge_env.cli.main import main
from forge_env.core.types import EpisodeLimits, Task
from forge_env.evaluation.digests import environment_digests
from forge_env.evaluation.plan import limits_of
from forge_env.registry.registry import env_class
from forge_env.rollout.factory import make
from tests.forge_env.core.test_user_code import TASK as BREAKING_TASK
from tests.forge_env.core.test_user_code import Breaks
from tests.forge_env.rollout.test_overlap import LIMIT_S, MOMENT_S, Opened, Recorded
from tests.forge_env.rollout.test_overlap import TASK as SLOW_TASK
from tests.forge_env.rollout.test_own_copies import TASK, EditsTask
from tests.trainers.setup.test_defaults import has_the_same_limits


@pytest.mark.parametrize("error", ["exit", "ctrl-c"])
@pytest.mark.parametrize("part", ["reset", "right", "close"])
def test_a_program_that_uses_gymnasium_goes_on(part: str, error: str) -> None:
    class One(Breaks):
        @classmethod
        def tasks(cls, split: str = "train", *, count: int, seed: int = 0) -> Sequence[Task]:
            return [BREAKING_TASK]

    env = SyncEnv(One, part=part, error=error)
    try:
        for seed in (1, 0):
            env.reset(seed=seed)
            info = env.step("0")[-1]
            assert info["outcome"] == ("env_fault" if seed and part != "close" else "scored")
            if seed and part != "close":
                assert re.match(r"(reset|reward right) \(tests/forge_env/core/test_user_code.py:\d+\): ", info["error"])
    finally:
        env.close()


def test_a_gymnasium_environment_is_closed_after_its_set_up() -> None:
    with Opened(Recorded, "setup") as opened:
        env = SyncEnv(opened.factory, limits=EpisodeLimits(step_seconds=LIMIT_S))
        _, info = env.reset(seed=0, options={"task": SLOW_TASK})
        closing = threading.Thread(target=env.close)
        closing.start()
        closing.join(MOMENT_S)
        assert info["error"].startswith("reset took longer") and opened.notes == [opened.begins]
        opened.go_on()
        closing.join()
        assert opened.notes == [opened.begins, "close"]


def test_an_environment_that_gymnasium_resets_edits_its_own_task() -> None:
    task, env = copy.deepcopy(TASK), SyncEnv(EditsTask)
    try:
        options: dict[str, Any] = {"task": task, "more": ["a"]}
        texts = [env.reset(seed=0, options=options)[0] for _ in range(3)]
    finally:
        env.close()
    assert len(set(texts)) == 1 and task == TASK and options["more"] == ["a"]


def test_an_environment_of_gymnasium_is_made_of_its_package_too() -> None:
    taxi = environment_digests(make("gymnasium:Taxi-v4"))
    assert "gymnasium" in taxi and "contrib/gymnasium/text/env.py" in taxi


def test_the_limits_of_a_checkpoint_do_not_cut_a_game_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    Path("run/config.yaml").write_text(json.dumps({"env": {"name": "math", "max_turns": 3, "max_tokens": 512}}))
    assert limits_of("checkpoint:run", make("gymnasium:Taxi-v4")) == EpisodeLimits(max_turns=200, max_tokens=512)


def test_a_member_of_a_family_is_an_environment(capsys: pytest.CaptureFixture[str]) -> None:
    name = "gymnasium:FrozenLake-v1"
    assert issubclass(env_class(name), forge_env.Env)
    assert main(["info", name]) == 0
    assert "make_options" in capsys.readouterr().out


def test_a_given_model_is_trained_and_evaluated_with_the_same_limits() -> None:
    has_the_same_limits("gymnasium:Taxi-v4")
