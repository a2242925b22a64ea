"""What a run writes down of itself when it begins: enough to start it again, and no secret."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from forge_env.utils.secret_values import FILE, HIDDEN
from forge_env.utils.settings import with_values
from trainers.config import SHORT_OPTIONS
from trainers.grpo import Config
from trainers.metrics import report
from trainers.run.run_record import RunRecord, add_fact, config_text, write_facts
from trainers.setup.options.parser import parse


def test_the_config_is_read_again(tmp_path: Path) -> None:
    options = ["--training.learning_rate", "1e-5", "--metrics.sinks", "a:B", "--env.options.level", "2"]
    config = parse(Config, options, SHORT_OPTIONS)
    (tmp_path / "config.yaml").write_text(config_text(asdict(config)))
    again = parse(Config, ["--config", str(tmp_path / "config.yaml")], SHORT_OPTIONS)
    assert asdict(again) == asdict(config) | {"output": ""}


def test_secrets_are_in_one_file_for_its_owner_alone(tmp_path: Path) -> None:
    options = {"api_key": "sk-1", "headers": '{"X-Api-Key": "sk-2"}', "url": "http://me:sk-3@host/", "max_tokens": 9}
    settings = asdict(with_values(Config(), {"env.options": options}))
    write_facts(tmp_path, "grpo", settings, {"model": "http://me:sk-3@host/"})
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert [name for name, text in files.items() if "sk-" in text] == [FILE]
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert yaml.safe_load(files["config.yaml"])["env"]["options"]["max_tokens"] == 9


def test_a_run_that_goes_on_keeps_its_beginning(tmp_path: Path) -> None:
    config = parse(Config, ["--seed", "7"], SHORT_OPTIONS)
    write_facts(tmp_path, "grpo", asdict(config), {"model": "m"})
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace(json.loads(path.read_text())["started"], "2001-01-01T00:00:00+00:00"))
    config = with_values(config, {"training.steps": 99})
    for digest in ("1", "2"):
        code = {"training": {"own.py": digest}}
        assert write_facts(tmp_path, "grpo", asdict(config), {"model": "m"}, code) == {"training": {"own.py": "1"}}
    facts = json.loads(path.read_text())
    assert facts["started"].startswith("2001") and facts["steps"] == 99
    assert (facts["algorithm"], facts["env"], facts["seed"], facts["model"]) == ("grpo", "code_exec", 7, "m")
    assert facts["machine"]["cores"] >= 1 and facts["versions"]["python"]


def test_a_fact_that_is_known_later(tmp_path: Path) -> None:
    write_facts(tmp_path, "grpo", asdict(parse(Config, [], SHORT_OPTIONS)), {"model": "m"})
    for seconds in (3.0, 2.0):
        add_fact(tmp_path, "startup", {"first_step": seconds})
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["startup"] == {"first_step": 2.0} and facts["model"] == "m"


def test_sinks_get_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(report, "open_sinks", lambda names, option, folder, config, say: given.append(config) or [])
    config = asdict(with_values(Config(), {"env.options": {"api_key": "sk-1", "level": 2}}))
    with RunRecord(tmp_path, config):
        assert given[0]["env"]["options"] == {"api_key": HIDDEN, "level": 2}
