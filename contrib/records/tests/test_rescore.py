"""`forge-env score`: final answers on disk are scored anew; failures of the reward function are no zeros."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contrib.records.rescore import has_answer
from contrib.records.tests.conftest import Command
from forge_env.cli.main import main
from forge_env.core.episode import Episode, Turn, read_jsonl, write_jsonl
from forge_env.core.types import Message, Outcome, Task
from tests.helpers.disks import full_disk

REWARDS = """\
def length(answer, target):
    if answer == "bad":
        raise ValueError("bad answer")
    return float(len(answer) == target)


async def talk(messages):
    return float(sum(message["role"] == "assistant" for message in messages))


class Strict:
    def __call__(self, response):
        return -1.0


def unknown(respnse):
    return 0.0
"""


@pytest.fixture
def run(tmp_path: Path, command: Command) -> Command:
    """Score the run of this test with a reward."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    write_jsonl(tmp_path / "episodes.jsonl", EPISODES)

    def score(reward: str, *more: str, code: int = 0) -> dict[str, Any]:
        return command("score", str(tmp_path), "--reward", f"{tmp_path}/rewards.py:{reward}", *more, code=code)

    return score


def episode(number: int, *answers: str, outcome: Outcome = Outcome.SCORED, tail: tuple[Message, ...] = ()) -> Episode:
    turns = [Turn(kind="text", observation=(), message={"role": "assistant", "content": text}) for text in answers]
    if turns:
        turns[-1].reward = 0.25
    reward = None if outcome is Outcome.ENV_FAULT else 0.25
    return Episode(
        task=Task(prompt=(), target=3, id=str(number)),
        turns=tuple(turns),
        outcome=outcome,
        reward=reward,
        id=f"{number}/0",
        tail=tail,
    )


EPISODES = [
    episode(0, "one"),
    episode(1, "three", "two"),
    episode(2, "three"),
    episode(3, "cut", outcome=Outcome.TRUNCATED),
    episode(4, outcome=Outcome.ENV_FAULT),
    episode(5, "asks", tail=({"role": "tool", "content": "no answer"},)),
]


def test_answers_are_scored_anew_and_the_rest_stays(run: Command, tmp_path: Path) -> None:
    (phase,) = run("length", "--out", str(tmp_path / "new.jsonl"))["phases"]
    assert (phase["answers"], phase["changed"], phase["failed"]) == (3, 3, 0)
    assert (phase["reward_before"], phase["reward_now"]) == (0.25, pytest.approx(2 / 3))
    assert (phase["success_before"], phase["success_now"]) == (0.0, pytest.approx(2 / 3))
    new = list(read_jsonl(tmp_path / "new.jsonl"))
    assert [e.id for e in new] == [e.id for e in EPISODES]
    assert [e.reward for e in new] == [1.0, 1.0, 0.0, 0.25, None, 0.25]
    assert [sum(t.reward for t in e.turns) for e in new if has_answer(e)] == [1.0, 1.0, 0.0]
    assert new[0].rewards == {"length": 1.0}
    assert new[3:] == EPISODES[3:]


def test_coroutines_and_classes_are_rewards(run: Command) -> None:
    assert run("talk")["phases"][0]["reward_now"] == pytest.approx(4 / 3)
    assert run("Strict")["phases"][0]["reward_now"] == -1.0


def test_a_failing_reward_is_counted_and_scores_nothing(run: Command, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "episodes.jsonl", [episode(9, "bad")])
    (phase,) = run("length")["phases"]
    assert (phase["answers"], phase["failed"], phase["changed"]) == (4, 1, 3)
    assert phase["first_error"] == f"reward length ({tmp_path}/rewards.py:3): ValueError: bad answer"
    (tmp_path / "episodes.jsonl").write_text(episode(9, "bad").to_json() + "\n")
    assert run("length", code=1)["phases"][0]["failed"] == 1


def test_what_failed_is_shown_and_is_in_no_figure(
    run: Command, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(tmp_path / "episodes.jsonl", [episode(9, "bad"), episode(10, "bad")])
    (phase,) = run("length", "--out", str(tmp_path / "new.jsonl"))["phases"]
    assert phase["reward_now"] == pytest.approx(2 / 3)
    reason = f"reward length ({tmp_path}/rewards.py:3): ValueError: bad answer"
    assert phase["failures"] == [{"error": reason, "answers": 2, "first": "9/0"}]
    failed = list(read_jsonl(tmp_path / "new.jsonl"))[-1]
    assert (failed.outcome, failed.reward, failed.error) == (Outcome.ENV_FAULT, None, reason)
    assert main(["score", str(tmp_path), "--reward", f"{tmp_path}/rewards.py:length"]) == 0
    err = capfd.readouterr().err
    assert "note: the reward failed on 2 of 5 answers, which are in no figure" in err
    assert f"note: 2 of them, 9/0 first: {reason}" in err


def test_what_the_environment_called_a_success_is_not_said_of_another_reward(run: Command, tmp_path: Path) -> None:
    (tmp_path / "episodes.jsonl").write_text(replace(episode(0, "three"), success=True).to_json() + "\n")
    (phase,) = run("length", "--out", str(tmp_path / "new.jsonl"))["phases"]
    assert (phase["success_before"], phase["success_now"]) == (1.0, 0.0)
    assert [e.success for e in read_jsonl(tmp_path / "new.jsonl")] == [None]


def test_mistakes_are_sentences(run: Command, tmp_path: Path) -> None:
    assert "Did you mean response?" in run("unknown", code=2)["error"]
    assert "no attribute 'lenght'" in run("lenght", code=2)["error"]
    (tmp_path / "there.jsonl").touch()
    assert "exists already" in run("length", "--out", str(tmp_path / "there.jsonl"), code=2)["error"]
    with full_disk(1000):
        assert "nothing is left of it" in run("length", "--out", str(tmp_path / "full.jsonl"), code=1)["error"]
    assert not (tmp_path / "full.jsonl").exists()
