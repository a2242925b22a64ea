"""Sinks of the user's own, and those that a config asks for."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from forge_env.core.episode import Episode
from forge_env.core.errors import UserError
from forge_env.evaluation.api import evaluate
from forge_env.records import sinks
from forge_env.records.sinks import load_sink
from forge_env.registry.contrib import Row
from trainers.config import SHORT_OPTIONS
from trainers.grpo import GRPO, Config
from trainers.metrics.report import Report
from trainers.metrics.settings import MetricsConfig
from trainers.setup.options.parser import parse
from trainers.setup.plan import make_plan

GOOD = """
import json

class Mine:
    def __init__(self, folder, config):
        self.file = (folder / "mine.jsonl").open("a")
        self.sinks = len(config["metrics"]["sinks"])

    def log(self, phase, step, values):
        self.file.write(json.dumps([self.sinks, phase, step, values]) + "\\n")

    def close(self):
        self.file.close()

class Watches(Mine):
    def __init__(self, folder, config, say):
        super().__init__(folder, {"metrics": {"sinks": []}})
        self.say = say

    def episode(self, episode, phase):
        self.log(phase, 0, {"reward": episode.reward})
        self.say(f"warning: episode {episode.id}")

class Refuses(Mine):
    @classmethod
    def check(cls, mode):
        from forge_env import UserError
        raise UserError("the moon is full")

class NoLog:
    def close(self): ...

class FewArguments:
    def log(self, values): ...
    def close(self): ...

class MadeOtherwise:
    def __init__(self): ...
    def log(self, phase, step, values): ...
    def close(self): ...

def function(): ...
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(GOOD)
    return str(tmp_path / "mine.py")


def test_a_sink_of_the_users_own_is_told_everything(source: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = MetricsConfig(tensorboard=False, sinks=[f"{source}:Mine"])
    report = Report(folder, {"metrics": asdict(settings)})
    report.metrics("train", 1, {"loss": 0.5})
    report.close()
    lines = [json.loads(line) for line in (folder / "mine.jsonl").read_text().splitlines()]
    assert lines == [[1, "train", 1, {"loss": 0.5}]]
    assert not (folder / "tensorboard").exists()


def test_a_sink_that_takes_episodes_gets_those_of_runs_and_of_evaluations(source: str, tmp_path: Path) -> None:
    entry = f"{source}:Watches"
    episode = Episode(prompt_ids=(1,), response_ids=(2,), logprobs=(-0.5,), reward=1.0, id="e")
    report = Report(tmp_path / "run", {"metrics": {"tensorboard": False, "sinks": [entry]}})
    report.episodes("train", [episode])
    report.close()
    assert json.loads((tmp_path / "run" / "mine.jsonl").read_text()) == [0, "train", 0, {"reward": 1.0}]
    said: list[str] = []
    settings: dict[str, Any] = {"tasks": 2, "out": tmp_path / "out", "progress": False, "warn": said.append}
    for _ in range(2):  # the second time nothing is run
        result = evaluate("math", "scripted:expert", sinks=[entry], **settings)
    lines = [json.loads(line) for line in (tmp_path / "out" / "mine.jsonl").read_text().splitlines()]
    assert [line[:3] for line in lines] == [[0, "", 0], [0, "", 0], [0, "evaluation", 0]]
    assert lines[2][3]["pass@1"] == result.success == 1.0
    assert sorted(said) == sorted(f"episode {each.id}" for each in result.episodes)


def test_an_unknown_name_is_refused_with_the_nearest_one(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(sinks, "rows", lambda table: {"mine": Row("mine", f"{source}:Mine")})
    with pytest.raises(UserError, match=r"^--sink min: there is no sink 'min'\. Did you mean mine\? Available"):
        load_sink("min", "--sink")
    with pytest.raises(UserError, match=r"there is no module 'min'\. Did you mean the sink mine\?$"):
        load_sink("min:offline", "--sink")
    with pytest.raises(UserError, match="--sink mine:offline: mine has no modes"):
        load_sink("mine:offline", "--sink")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Nothing", "has no attribute 'Nothing'"),
        ("function", "it must be a class with the methods log and close"),
        ("Refuses", r"mine\.py:Refuses: the moon is full"),
        ("NoLog", r"NoLog has no method log\(self, phase, step, values\)"),
        ("FewArguments", r"FewArguments has no method log\(self, phase, step, values\)"),
        ("MadeOtherwise", r"made as MadeOtherwise\(folder, config\), and does not take that"),
    ],
)
def test_a_sink_that_cannot_be_used_is_refused_with_a_sentence(source: str, name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_sink(f"{source}:{name}", "--sink")
    config = parse(Config, ["--metrics.sinks", f"{source}:{name}"], SHORT_OPTIONS)
    with pytest.raises(UserError, match=words):
        make_plan(config, GRPO).check()


def test_several_sinks_from_the_command_line_and_from_a_file(source: str, tmp_path: Path) -> None:
    names = [f"{source}:Mine", f"{source}:Other"]
    config = parse(Config, ["--metrics.sinks", ", ".join(names)], SHORT_OPTIONS)
    assert config.metrics.sinks == names
    (tmp_path / "config.yaml").write_text(f"metrics: {{sinks: {json.dumps(names)}}}\n")
    assert parse(Config, ["--config", str(tmp_path / "config.yaml")], SHORT_OPTIONS).metrics.sinks == names
    (tmp_path / "config.yaml").write_text("metrics: {sinks: 3}\n")
    with pytest.raises(UserError, match=r"--metrics\.sinks is 3; it must be texts"):
        parse(Config, ["--config", str(tmp_path / "config.yaml")], SHORT_OPTIONS)
