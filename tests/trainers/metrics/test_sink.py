"""Sinks of the user's own, and those that a config asks for."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from forge_env.core.errors import UserError
from trainers.config import SHORT_OPTIONS
from trainers.grpo import GRPO, Config
from trainers.metrics.report import Report
from trainers.metrics.settings import MetricsConfig
from trainers.metrics.sink import load_sink
from trainers.setup.options.parser import parse
from trainers.setup.plan import make_plan

GOOD = """
import json

class Mine:
    def __init__(self, folder, config):
        self.file = (folder / "mine.jsonl").open("a")
        self.project = config["metrics"]["wandb_project"]

    def log(self, phase, step, values):
        self.file.write(json.dumps([self.project, phase, step, values]) + "\\n")

    def close(self):
        self.file.close()

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
    settings = MetricsConfig(tensorboard=False, sinks=[f"{source}:Mine"], wandb_project="p")
    report = Report(folder, {"metrics": asdict(settings)})
    report.metrics("train", 1, {"loss": 0.5})
    report.close()
    lines = [json.loads(line) for line in (folder / "mine.jsonl").read_text().splitlines()]
    assert lines == [["p", "train", 1, {"loss": 0.5}]]
    assert not (folder / "tensorboard").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Nothing", "has no attribute 'Nothing'"),
        ("function", "it must be a class with the methods log and close"),
        ("NoLog", r"NoLog has no method log\(self, phase, step, values\)"),
        ("FewArguments", r"FewArguments has no method log\(self, phase, step, values\)"),
        ("MadeOtherwise", r"made as MadeOtherwise\(folder, config\), and does not take that"),
    ],
)
def test_a_sink_that_cannot_be_used_is_refused_with_a_sentence(source: str, name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_sink(f"{source}:{name}")
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
