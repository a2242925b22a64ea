"""Ready groups go to a checkpoint's folder and come back as they were."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from forge_env.core.episode import Episode, Group
from forge_env.core.errors import UserError
from forge_env.core.types import Outcome, Task
from tests.trainers.episodes import turn
from trainers.controller.ledger import Ledger
from trainers.controller.loop_state import READY_FILE, LoopState, ReadyGroup, pack, unpack


def make_group(number: int, members: int, replaced: int = 0) -> Group:
    task = Task(prompt=({"role": "user", "content": f"\ud800 {number}"},), target=number)
    sampled = turn(number, 2, logprobs=(-0.1, -1 / 3), starts_row=True)
    sampled = replace(sampled, message={"role": "assistant", "content": "é\n"}, versions=((3, 1), (4, 1)))
    name = f"train/{number}"
    episodes = tuple(
        Episode(task=task, turns=(sampled,), outcome=Outcome.SCORED, reward=i / 3, id=f"{name}/{i}", group_id=name)
        for i in range(members)
    )
    faulted = tuple(
        replace(episodes[0], outcome=Outcome.ENV_FAULT, reward=None, error="gone", id=f"{name}/0.{i + 1}")
        for i in range(replaced)
    )
    return Group(task=task, episodes=episodes, id=name, replaced=faulted)


def test_they_come_back_as_they_were(tmp_path: Path) -> None:
    groups = [ReadyGroup(7, 5, make_group(7, 3)), ReadyGroup(2, 4, make_group(2, 1, replaced=2))]
    places, lines = pack(groups)
    (tmp_path / READY_FILE).write_bytes(b"".join(lines))
    assert unpack(places, tmp_path) == groups


def test_without_ready_groups_there_is_no_file(tmp_path: Path) -> None:
    assert pack([]) == ([], []) and unpack([], tmp_path) == []


@pytest.mark.parametrize("lines", [slice(0, 2), slice(1, None)], ids=["too few", "others"])
def test_a_file_of_other_episodes_is_refused(lines: slice, tmp_path: Path) -> None:
    places, written = pack([ReadyGroup(7, 5, make_group(7, 2)), ReadyGroup(8, 5, make_group(8, 2))])
    (tmp_path / READY_FILE).write_bytes(b"".join(written[lines]))
    with pytest.raises(UserError, match=r"ready\.jsonl does not hold the episodes of group train/"):
        unpack(places, tmp_path)


def test_the_state_of_a_loop_comes_back_from_a_checkpoint(tmp_path: Path) -> None:
    state = LoopState(steps_done=5, ready=[ReadyGroup(1, 6, make_group(1, 2))])
    numbers = state.ledger.prompts()
    next(numbers), next(numbers)
    state.ledger.finish(1)
    state.drops.drop_faulty("", "gone")
    place, texts = state.to_json()
    for name, lines in texts.items():
        (tmp_path / name).write_bytes(b"".join(lines))
    again = LoopState.of(json.loads(json.dumps(place)), 5, tmp_path, Ledger())
    assert (again.ready, again.drops) == (state.ready, state.drops)
    assert again.steps_done == 5 and again.ledger.state_dict() == state.ledger.state_dict()
