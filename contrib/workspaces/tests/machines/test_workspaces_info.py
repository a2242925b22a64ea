"""What `forge-env sandbox info` says of workspaces."""

from __future__ import annotations

import json

import pytest

from forge_env.cli.main import main


def test_info_says_what_each_backend_of_workspaces_has(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "info", "--json"]) == 0
    namespace = json.loads(capfd.readouterr().out)["workspaces"]["namespace"]
    if "unavailable" in namespace:
        pytest.skip(namespace["unavailable"])
    assert namespace["seccomp"] and namespace["disk_in_memory"]
    assert main(["sandbox", "info"]) == 0
    text = capfd.readouterr().out
    assert "workspaces" in text and "disk_in_memory" in text
