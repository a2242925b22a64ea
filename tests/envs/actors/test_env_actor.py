"""EnvActor: the group that arrives has its episodes' lines with it, its tokens still packed; its tools are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forge_env.core.episode import Episode, write_jsonl
from forge_env.core.faults import FaultPolicy
from forge_env.core.types import EpisodeLimits
from forge_env.rollout.factory import make
from forge_env.rollout.rollout import GroupSpec

pytest.importorskip("monarch")

from envs.actors.env import EnvActor
from forge_env.runtime.launcher import Launcher


async def test_a_group_arrives_with_its_lines(launcher: Launcher, tiny_model: Path, tmp_path: Path) -> None:
    expert = ("agents.scripted:scripted_agent", {"env": "math", "model": str(tiny_model)})
    envs = await EnvActor.options().as_service(
        env="math", options={}, agents={"expert": expert}, limits=EpisodeLimits(), on_fault=FaultPolicy()
    )
    (task,) = make("math").tasks("train", count=1, seed=0)
    asked: dict[str, Any] = {"agent": "expert", "count": 2, "seed": 3, "env_options": {}}
    group = await envs.route(EnvActor.run_group, GroupSpec(task=task, group_id="g", **asked))
    (other,) = await envs.route(EnvActor.run_wave, [GroupSpec(task=task, group_id="h", **asked)])
    assert await envs.route(EnvActor.offers_tools, GroupSpec(task=task, **asked))
    without = asked | {"env_options": {"calculator": False}}
    assert not await envs.route(EnvActor.offers_tools, GroupSpec(task=task, **without))
    for episode in (*group.episodes, *other.episodes):
        line = vars(episode)["line"]
        assert episode.turns and all(len(turn.token_ids) for turn in episode.turns)
        assert Episode.from_json(line.decode()) == episode
        write_jsonl(tmp_path / "train.jsonl", [episode])
    assert (tmp_path / "train.jsonl").read_text().count("\n") == 4
