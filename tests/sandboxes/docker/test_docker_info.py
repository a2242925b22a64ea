"""What `forge-env sandbox info` says of an engine, or of none."""

from __future__ import annotations

import json

import pytest

from forge_env.cli.main import main


def test_info_says_what_the_engine_enforces_or_that_there_is_none(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "info", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert "Docker" in told["workspaces"]["docker"].get("unavailable", "Docker")
    assert "docker sandbox" in told["backends"]["docker"].get("unavailable", "docker sandbox")
    assert main(["sandbox", "info"]) == 0
    assert "workspaces, docker: " in " ".join(capfd.readouterr().out.split())
