"""`forge-env doctor`: what can run here, and what to do about the rest."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from contrib.check.cli import doctor
from forge_env.cli.main import main
from forge_env.registry.contrib import Row

if sys.platform != "linux":
    pytest.skip("sandboxes need Linux", allow_module_level=True)


async def parts() -> list[tuple[str, str, str]]:
    return [("a part", "no", "install it"), ("another", "yes", "")]


def test_each_part_is_tried_and_what_is_missing_has_its_remedy(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "rows", lambda table: {table: Row(table, f"{__name__}:parts")})
    code = main(["doctor", "--json"])
    told = json.loads(capfd.readouterr().out)
    assert told["parts"][0]["part"] == "sandbox, namespace" and code == (not told["ok"])
    assert all(part["notes"] for part in told["parts"] if part["ready"] != "yes")
    assert told["parts"][-2:] == [
        {"part": "a part", "ready": "no", "notes": ["install it"]},
        {"part": "another", "ready": "yes", "notes": []},
    ]


def test_a_machine_without_an_isolating_backend_exits_with_1(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {"namespace": {"unavailable": "the kernel refuses; set kernel.unprivileged_userns_clone=1"}}

    async def measured() -> dict[str, Any]:
        return {"sandbox": {"namespace": {"missing": []}}, "workspaces": refused}

    monkeypatch.setattr(doctor, "measure", measured)
    monkeypatch.setattr(doctor, "rows", lambda table: {})
    assert main(["doctor"]) == 1
    assert "the kernel refuses" in " ".join(capfd.readouterr().out.split())
