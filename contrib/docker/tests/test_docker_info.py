"""What `forge-env sandbox info` says of an engine, or of none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forge_env.cli.main import main


def test_info_says_what_the_engine_enforces_or_that_there_is_none(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "info", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert "Docker" in told["workspaces"]["docker"].get("unavailable", "Docker")
    assert "docker sandbox" in told["backends"]["docker"].get("unavailable", "docker sandbox")
    assert main(["sandbox", "info"]) == 0
    assert "workspaces, docker: " in " ".join(capfd.readouterr().out.split())


def test_an_engine_that_does_not_answer_is_named_with_the_remedy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    main(["doctor", "--json"])
    parts = {part["part"]: part for part in json.loads(capfd.readouterr().out)["parts"]}
    assert "start one, or name it with DOCKER_HOST" in parts["workspaces, docker"]["notes"][0]
